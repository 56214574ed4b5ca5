/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads of backing files into buffers, with a fallback chain for each file: a copy from the page
 * cache if all of the read is cached, else O_DIRECT, else a buffered read that leaves nothing in
 * the page cache; with io_uring, else with worker threads. With keeps_pages, all reads are
 * buffered and leave the bytes in the page cache.
 *
 * Owned by the engine, called from any thread. A fallback happens once, and storage_status()
 * reports its reason.
 */
#ifndef FSTFS_IO_STORAGE_H
#define FSTFS_IO_STORAGE_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/extent.h"
#include "base/histogram.h"
#include "io/descriptors.h"
#include "io/options.h"
#include "io/ring.h"
#include "io/workers.h"

#include <stdatomic.h>

struct storage;

/*
 * One read. `offset`, `length` and the address of `buffer` are multiples of 4096. The range may
 * extend past the end of the file: the first `valid` bytes must be there.
 */
struct storage_read {
    /* Set by the caller, constant until `complete`. The caller holds a reference to the backing. */
    struct backing *backing;
    uint64_t offset;
    size_t length;
    size_t valid;
    char *buffer;
    atomic_bool urgent; /* a foreground read; may become true later */
    /* Called once, by storage_read() or a thread of the storage, without locks. `result`: 0 or a
     * negative errno. -ESTALE: the file is not the version of the backing. -ECANCELED: a background
     * read whose bytes are all in the page cache. */
    void (*complete)(struct storage_read *read, errint_t result);
    /* Set by the storage: */
    struct storage *storage;
    struct ring_read ring_read;
    struct job job;
    enum access access;
    int flags; /* RWF_... */
    bool alone; /* a worker reads it with pread() */
    bool is_read; /* a worker is to verify the version */
    bool was_cached; /* all of it was in the page cache */
    bool copied; /* all of it was copied from there */
    bool has_waited; /* for an open by another read */
};

/* Ignores the options for prefetching and memory. */
errint_t storage_new(const struct io_options *options, struct storage **storage);

/* storage_stop() stops the threads; no read may be in flight. storage_free() then frees the state
 * that is attached to backings (descriptors_free()), and the storage. */
void storage_stop(struct storage *storage);
void storage_free(struct storage *storage);

/* Never blocks on storage. */
void storage_read(struct storage *storage, struct storage_read *read);

struct descriptors *storage_descriptors(struct storage *storage);

struct storage_counters {
    atomic_uint_fast64_t reads; /* system calls or ring entries that returned bytes */
    atomic_uint_fast64_t bytes;
    atomic_uint_fast64_t cached_bytes; /* of these, from the page cache */
    atomic_uint_fast64_t retries; /* after EIO, EAGAIN, EINTR, a short read, or a ring's fallback */
    struct histogram duration; /* of the reads by the kernel, whatever their result */
};

struct storage_counters *storage_counters(struct storage *storage);

/* The reads in flight, and those not submitted yet. */
void storage_queue(struct storage *storage, uint64_t *in_flight, uint64_t *waiting);

void storage_fallbacks(struct storage *storage, enum io_fallback fallbacks[IO_MECHANISMS]);

/* Appends members of a JSON object, without its braces. */
void storage_status(struct storage *storage, struct buffer *out);

#endif
