/* SPDX-License-Identifier: Apache-2.0 */
#include "client/read.h"

#include "base/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fstfs_read *
read_new(struct fstfs *fstfs, size_t count, const struct fstfs_read_options *options)
{
    struct fstfs_read *read = calloc(1, sizeof(*read));

    if (!read)
        return NULL;
    read->plan.items = calloc(count + 1, sizeof(*read->plan.items));
    if (!read->plan.items) {
        free(read);
        return NULL;
    }
    if (options)
        read->options = *options;
    read->fstfs = fstfs;
    read->is_host = true;
    pthread_mutex_init(&read->progress_lock, NULL);
    pthread_mutex_init(&read->lock, NULL);
    condition_init(&read->ended);
    return read;
}

void
read_free(struct fstfs_read *read)
{
    batch_free(read->batch);
    for (size_t i = 0; i < read->plan.count; i++)
        strided_slice_free(&read->plan.items[i].slice);
    free(read->plan.items);
    pthread_cond_destroy(&read->ended);
    pthread_mutex_destroy(&read->lock);
    pthread_mutex_destroy(&read->progress_lock);
    free(read);
}

/* Calls progress(). If another thread is in it, waits for that thread at the end of the read, and
 * otherwise skips this report. */
static void
read_report_progress(struct fstfs_read *read, bool at_end)
{
    uint64_t done;

    if (!read->options.progress)
        return;
    if (at_end)
        pthread_mutex_lock(&read->progress_lock);
    else if (pthread_mutex_trylock(&read->progress_lock) != 0)
        return;
    done = atomic_load(&read->done);
    if ((done > read->reported || at_end) &&
        read->options.progress(read->options.arg, done, read->total) != 0)
        atomic_store(&read->is_cancelled, true);
    read->reported = done;
    pthread_mutex_unlock(&read->progress_lock);
}

void
read_add_done(struct fstfs_read *read, uint64_t bytes, bool own)
{
    if (own)
        atomic_fetch_add(&read->fstfs->own_bytes, bytes);
    atomic_fetch_add(&read->done, bytes);
    read_report_progress(read, false);
}

void
read_fail(struct fstfs_read *read, errint_t error, const char *path, const char *text)
{
    pthread_mutex_lock(&read->lock);
    if (read->result == 0) {
        read->result = error;
        if (text)
            snprintf(read->text, sizeof(read->text), "%s", text);
        else if (error == -ESTALE)
            snprintf(read->text, sizeof(read->text),
                     "%s: changed, replaced or removed since it was opened", path);
        else
            snprintf(read->text, sizeof(read->text), "%s: %s", path, strerror(-error));
    }
    pthread_mutex_unlock(&read->lock);
}

bool
read_is_over(struct fstfs_read *read)
{
    bool is_over;

    if (atomic_load(&read->is_cancelled))
        read_fail(read, -ECANCELED, NULL, "the read was cancelled");
    pthread_mutex_lock(&read->lock);
    is_over = read->result < 0;
    pthread_mutex_unlock(&read->lock);
    return is_over;
}

void
read_end(struct fstfs_read *read)
{
    read_report_progress(read, true);
    pthread_mutex_lock(&read->lock);
    read->has_ended = true;
    pthread_cond_broadcast(&read->ended);
    pthread_mutex_unlock(&read->lock);
}
