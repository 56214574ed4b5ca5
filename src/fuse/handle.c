/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/handle.h"

#include <errno.h>
#include <stdlib.h>

void
handles_init(struct handles *handles)
{
    *handles = (struct handles){0};
    list_init(&handles->all);
    pthread_mutex_init(&handles->lock, NULL);
}

void
handles_destroy(struct handles *handles)
{
    struct list *first;

    while ((first = list_first(&handles->all)))
        handle_unref(handles, container_of(first, struct handle, node));
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
    list_add(&handles->all, &handle->node);
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
    list_remove(&handle->node);
    handles->count--;
    if (handle->is_counted)
        handles->page_bytes -= handle->list->size;
    pthread_mutex_unlock(&handles->lock);
    if (handle->passthrough)
        passthrough_close(handles->passthrough, handle->passthrough);
    loads_close(handles->loads, handle->load);
    if (handle->list)
        view_close(handles->view, handle->list);
    if (handle->directory)
        view_closedir(handles->view, handle->directory);
    pthread_mutex_destroy(&handle->directory_lock);
    free(handle);
}

errint_t
handle_count_page(struct handles *handles, struct handle *handle, bool is_limited)
{
    pthread_mutex_lock(&handles->lock);
    handle->is_counted =
        !is_limited || handles->page_bytes + handle->list->size <= HANDLE_PAGE_BYTES;
    if (handle->is_counted)
        handles->page_bytes += handle->list->size;
    pthread_mutex_unlock(&handles->lock);
    return handle->is_counted ? 0 : -ENFILE;
}

struct handle *
handle_of(const struct fuse_file_info *fi)
{
    return (struct handle *)(uintptr_t)fi->fh;
}
