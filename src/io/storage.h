/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads of backing files into buffers, the best way each file allows: from the
 * page cache what lies there already, else directly, else through the page
 * cache leaving nothing in it; by a ring, else by threads.
 *
 * Owned by the engine, called from any thread. Each way that is refused is given
 * up once, with its reason in storage_status().
 */
#ifndef FSTFS_IO_STORAGE_H
#define FSTFS_IO_STORAGE_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/extent.h"
#include "base/histogram.h"
#include "io/descriptors.h"
#include "io/fallbacks.h"
#include "io/ring.h"
#include "io/workers.h"

#include <stdatomic.h>

struct storage;

struct storage_options {
    bool ring; /* false: threads only */
    bool direct; /* false: through the page cache only */
    unsigned rings; /* 0: a right number for this machine */
    unsigned depth; /* reads given to the kernel at once by each ring; 0: 64 */
    unsigned threads; /* at most; 0: a right number */
    unsigned descriptors; /* at most; 0: from RLIMIT_NOFILE */
};

/*
 * One read. `offset` is a multiple of 4096, `buffer` aligned to a page, `length`
 * a multiple of 4096; the last of them may reach past the end of the file:
 * `valid` bytes of it must come.
 */
struct storage_read {
    /* By the caller, constant until `complete`; it has a reference to the backing. */
    struct backing *backing;
    uint64_t offset;
    size_t length;
    size_t valid;
    char *buffer;
    atomic_bool urgent; /* a reader waits for it; may become true later */
    /* Called once: from storage_read() itself or from any thread of the storage,
     * with no lock held. 0, or a negative errno: -ESTALE when the file is not the
     * version the backing names; -ECANCELED when the read is not urgent and all of
     * it lies in the page cache. */
    void (*complete)(struct storage_read *read, errint_t result);
    /* By the storage. */
    struct storage *storage;
    struct ring_read ring_read;
    struct job job;
    enum access access;
    int flags; /* RWF_... */
    bool alone; /* a worker is to do it, step by step */
    bool is_read; /* a worker is to verify the version */
    bool was_cached; /* all of it lay in the page cache before */
    bool copied; /* all of it came from there */
};

errint_t storage_new(const struct storage_options *options, struct storage **storage);

/* Stops its threads. Nothing may be under way. Backings are let go only by the
 * next call, so that what hangs on them can still be freed in between. */
void storage_stop(struct storage *storage);
void storage_free(struct storage *storage);

/* Never blocks on storage. */
void storage_read(struct storage *storage, struct storage_read *read);

struct descriptors *storage_descriptors(struct storage *storage);

struct storage_counters {
    atomic_uint_fast64_t reads; /* system calls or ring entries that brought bytes */
    atomic_uint_fast64_t bytes;
    atomic_uint_fast64_t cached_bytes; /* of these, from the page cache */
    atomic_uint_fast64_t retries; /* after EIO, EAGAIN, or a short read */
    struct histogram duration; /* of what the kernel was given to read, whatever came of it */
};

struct storage_counters *storage_counters(struct storage *storage);

/* Reads that the kernel has now, and those that are yet to be given to it. */
void storage_queue(struct storage *storage, uint64_t *in_flight, uint64_t *waiting);

void storage_fallbacks(struct storage *storage, enum io_fallback fallbacks[IO_WAYS]);

/* Appends members of a JSON object, without its braces. */
void storage_status(struct storage *storage, struct buffer *out);

#endif
