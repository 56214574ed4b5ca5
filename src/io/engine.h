/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's state, for the modules of src/io that make it up: io.c (interface, lifetime),
 * request.c (reads), prefetch_submit.c (prefetches) and reclaim.c (idle memory and descriptors).
 */
#ifndef FSTFS_IO_ENGINE_H
#define FSTFS_IO_ENGINE_H

#include "base/histogram.h"
#include "io/chunk_cache.h"
#include "io/prefetch.h"
#include "io/storage.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct request_counters {
    atomic_uint_fast64_t bytes_requested, answered, bytes, cached_bytes, errors, stale, in_flight;
    atomic_uint_fast64_t stalls; /* requests that waited for a read from storage */
    struct histogram duration; /* nanoseconds from io_read() to the answer */
};

struct io {
    struct storage *storage;
    struct request_counters counters;
    struct chunk_cache cache; /* cache.lock guards all below */
    struct prefetch_limits limits;
    unsigned queued; /* requests that wait for memory, in the lanes of the cache */
    bool is_admitting; /* a thread is in requests_admit() */
    unsigned active; /* requests that hold pins */
    pthread_cond_t drained; /* for io_free(): a request or a read has ended */
    pthread_cond_t reclaim; /* wakes the reclaim thread: shutdown, or new work */
    bool reclaim_sleeps; /* the thread has nothing to reclaim */
    bool is_stopping;
    bool has_reclaim_thread;
    pthread_t reclaim_thread;
};

#endif
