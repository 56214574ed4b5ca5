/* SPDX-License-Identifier: Apache-2.0 */
#include "client/library.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/version.h"
#include "client/error.h"
#include "client/gpu/devices.h"
#include "io/batch.h"
#include "io/descriptors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *
fstfs_version(void)
{
    return FSTFS_VERSION;
}

/* One worker per processor, at most BATCH_WORKERS. */
static unsigned
count_workers(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);

    if (processors < 1)
        return 1;
    return processors > BATCH_WORKERS ? BATCH_WORKERS : (unsigned)processors;
}

/* The number in LOCAL_WORLD_SIZE; 1: it is not set, or not a number. */
static unsigned long
ranks_of_environment(void)
{
    const char *text = getenv("LOCAL_WORLD_SIZE"); /* NOLINT(concurrency-mt-unsafe) */
    unsigned long ranks = text ? strtoul(text, NULL, 10) : 1;

    return ranks > 0 ? ranks : 1;
}

static atomic_uint generation; /* of this process: fork() increments it in the child */
static int atfork_error;

/* Runs in the child. Reinitializes global locks, which other threads of the parent may have held.
 * Locks of objects need not be: the child does not use objects of its parent. */
static void
after_fork(void)
{
    atomic_fetch_add(&generation, 1);
    descriptors_after_fork();
    version_after_fork();
    parallel_after_fork();
}

static void
register_after_fork(void)
{
    atfork_error = pthread_atfork(NULL, NULL, after_fork);
}

bool
library_is_inherited(const struct fstfs *fstfs)
{
    return fstfs->generation != atomic_load(&generation);
}

int
fstfs_new(const struct fstfs_options *options, struct fstfs **out)
{
    static const struct fstfs_options defaults;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct fstfs *fstfs;
    struct io_options io;
    errint_t error;

    if (!options)
        options = &defaults;
    error = CHECK_RESERVED(options, fstfs_options);
    if (error)
        return error;
    pthread_once(&once, register_after_fork);
    fstfs = atfork_error ? NULL : calloc(1, sizeof(*fstfs));
    if (!fstfs)
        return fail_no_memory();
    fstfs->generation = atomic_load(&generation);
    /* A library does not write to standard error; errors are returned. */
    log_disable();
    io = (struct io_options){
        .no_ring = options->no_uring != 0,
        .no_direct = options->no_direct != 0,
        .no_prefetch = true,
        .keeps_pages = (options->local_ranks ? options->local_ranks : ranks_of_environment()) > 1,
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
    if (!fstfs || library_is_inherited(fstfs))
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
        out.length--; /* drop the closing brace: more members follow */
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
        return fail_no_memory();
    }
    length = snprintf(text, size, "%s", out.data);
    buffer_free(&out);
    return length;
}
