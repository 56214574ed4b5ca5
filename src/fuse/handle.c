/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/handle.h"

#include <stdlib.h>

void
handles_init(struct handles *handles)
{
    *handles = (struct handles){0};
    pthread_mutex_init(&handles->lock, NULL);
}

void
handles_destroy(struct handles *handles)
{
    while (handles->first)
        handle_unref(handles, handles->first);
    pthread_mutex_destroy(&handles->lock);
}

uint64_t
handles_count(struct handles *handles)
{
    uint64_t count;

    pthread_mutex_lock(&handles->lock);
    count = handles->count;
    pthread_mutex_unlock(&handles->lock);
    return count;
}

struct handle *
handle_new(struct handles *handles)
{
    struct handle *handle = calloc(1, sizeof(*handle));

    if (!handle)
        return NULL;
    handle->references = 1;
    pthread_mutex_init(&handle->directory_lock, NULL);
    pthread_mutex_lock(&handles->lock);
    handle->next = handles->first;
    if (handle->next)
        handle->next->previous = handle;
    handles->first = handle;
    handles->count++;
    pthread_mutex_unlock(&handles->lock);
    return handle;
}

struct handle *
handle_ref(struct handles *handles, struct handle *handle)
{
    pthread_mutex_lock(&handles->lock);
    handle->references++;
    pthread_mutex_unlock(&handles->lock);
    return handle;
}

void
handle_unref(struct handles *handles, struct handle *handle)
{
    pthread_mutex_lock(&handles->lock);
    if (--handle->references > 0) {
        pthread_mutex_unlock(&handles->lock);
        return;
    }
    if (handle->next)
        handle->next->previous = handle->previous;
    if (handle->previous)
        handle->previous->next = handle->next;
    else
        handles->first = handle->next;
    handles->count--;
    pthread_mutex_unlock(&handles->lock);
    if (handle->passthrough)
        passthrough_close(handles->passthrough, handle->passthrough);
    if (handle->list)
        view_close(handles->view, handle->list);
    if (handle->directory)
        view_closedir(handles->view, handle->directory);
    pthread_mutex_destroy(&handle->directory_lock);
    free(handle);
}

struct handle *
handle_of(const struct fuse_file_info *fi)
{
    return (struct handle *)(uintptr_t)fi->fh;
}
