/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's own: what it is, how it does, what was opened.
 */
#include "fstfs.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/text.h"
#include "client/build.h"
#include "client/gpu/device.h"
#include "client/private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static __thread char error_text[1024];

errint_t
fail(errint_t error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(error_text, sizeof(error_text), format, arguments);
    va_end(arguments);
    return error;
}

errint_t
check_reserved(const char *structure, const uint64_t *reserved, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (reserved[i])
            return fail(-EINVAL,
                        "struct %s: reserved[%zu] is %#llx, expected 0: the program needs a newer "
                        "libfstfs than " FSTFS_VERSION ", or did not clear the structure",
                        structure, i, (unsigned long long)reserved[i]);
    return 0;
}

const char *
fstfs_error(void)
{
    return error_text;
}

const char *
fstfs_version(void)
{
    return FSTFS_VERSION;
}

/* One for each processor. */
static unsigned
count_workers(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);

    if (processors < 1)
        return 1;
    return processors > CLIENT_WORKERS ? CLIENT_WORKERS : (unsigned)processors;
}

int
fstfs_new(const struct fstfs_options *options, struct fstfs **out)
{
    static const struct fstfs_options defaults;
    struct fstfs *fstfs;
    struct io_options io;
    errint_t error;

    if (!options)
        options = &defaults;
    error = CHECK_RESERVED(options, fstfs_options);
    if (error)
        return error;
    fstfs = calloc(1, sizeof(*fstfs));
    if (!fstfs)
        return fail(-ENOMEM, "out of memory");
    /* Errors are the caller's to tell, and standard error is his. */
    log_set_level(LOG_LEVEL_NONE);
    io = (struct io_options){.no_ring = options->no_uring != 0,
                             .no_direct = options->no_direct != 0,
                             .no_prefetch = true,
                             .memory = options->memory};
    fstfs->no_source = options->no_source != 0;
    pthread_mutex_init(&fstfs->loading_lock, NULL);
    fstfs->worker_count = count_workers();
    error = io_new(&io, &fstfs->io);
    if (!error)
        error = workers_new(fstfs->worker_count, &fstfs->workers);
    if (error) {
        fstfs_free(fstfs);
        return fail(error, "the engine cannot start: %s", strerror(-error));
    }
    *out = fstfs;
    return 0;
}

void
fstfs_free(struct fstfs *fstfs)
{
    if (!fstfs)
        return;
    workers_free(fstfs->workers);
    devices_free(fstfs);
    pthread_mutex_destroy(&fstfs->loading_lock);
    io_free(fstfs->io);
    free(fstfs);
}

int
fstfs_status(struct fstfs *fstfs, char *text, size_t size)
{
    struct buffer out = BUFFER_INIT;
    struct io_counters counters;
    int length;

    io_counters(fstfs->io, &counters);
    io_status(fstfs->io, &out);
    if (out.length > 0)
        out.length--; /* goes on in the object that the engine has closed */
    counters.bytes += atomic_load(&fstfs->own_bytes);
    counters.storage_reads += atomic_load(&fstfs->cufile_reads);
    counters.storage_bytes += atomic_load(&fstfs->cufile_bytes);
    buffer_addf(&out,
                ",\"memory_used\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"storage_bytes\":%" PRIu64
                ",\"storage_reads\":%" PRIu64 ",\"expired_bytes\":%" PRIu64 ",",
                counters.memory, counters.bytes, counters.storage_bytes, counters.storage_reads,
                counters.expired);
    devices_status(fstfs, &out);
    buffer_add_char(&out, '}');
    if (buffer_failed(&out)) {
        buffer_free(&out);
        return fail(-ENOMEM, "out of memory");
    }
    length = snprintf(text, size, "%s", out.data);
    buffer_free(&out);
    return length;
}

void
fstfs_close(struct fstfs_checkpoint *checkpoint)
{
    checkpoint_destroy(checkpoint);
}

const char *
fstfs_through_mount(const struct fstfs_checkpoint *checkpoint)
{
    return checkpoint->through_mount;
}

bool
checkpoint_has(const struct fstfs_checkpoint *checkpoint, const struct fstfs_tensor *tensor)
{
    const struct client_tensor *own = (const struct client_tensor *)tensor;

    return own >= checkpoint->tensors && own < checkpoint->tensors + checkpoint->count;
}

size_t
fstfs_count(const struct fstfs_checkpoint *checkpoint)
{
    return checkpoint->count;
}

const struct fstfs_tensor *
fstfs_tensor(const struct fstfs_checkpoint *checkpoint, size_t place)
{
    return place < checkpoint->count ? &checkpoint->tensors[place].shown : NULL;
}

const struct fstfs_tensor *
fstfs_find(const struct fstfs_checkpoint *checkpoint, const char *name)
{
    size_t low = 0, high = checkpoint->count, length = strlen(name);

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct fstfs_tensor *tensor = &checkpoint->tensors[middle].shown;
        int order = text_compare(tensor->name, tensor->name_length, name, length);

        if (order == 0)
            return tensor;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const struct fstfs_metadata *
fstfs_metadata(const struct fstfs_checkpoint *checkpoint, size_t place)
{
    return place < checkpoint->metadata_count ? &checkpoint->metadata[place] : NULL;
}
