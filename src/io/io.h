/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: reads extent lists, asynchronously.
 *
 * One engine serves one mount (or one libfstfs handle). It opens backing files
 * when it needs them, keeps a limited number of descriptors, and checks after
 * each read that the file is still the version its backing names. It knows
 * extents and backings; it knows nothing of tensors or FUSE.
 */
#ifndef FSTFS_IO_IO_H
#define FSTFS_IO_IO_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/extent.h"
#include "base/histogram.h"
#include "io/fallbacks.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct io;
struct storage;

/* All zero is right for most. */
struct io_options {
    unsigned threads; /* workers; 0: a right number for this machine */
    unsigned descriptors; /* most backing files open at once; 0: from RLIMIT_NOFILE */
    bool no_ring; /* no io_uring: workers only */
    bool no_direct; /* no O_DIRECT: through the page cache only */
    bool no_prefetch; /* only what is asked for */
    unsigned rings; /* io_urings, each with a thread; 0: a right number */
    unsigned queue_depth; /* reads each ring has under way at most; 0: 64 */
    uint64_t memory; /* bytes for all buffers; 0: a right number */
};

errint_t io_new(const struct io_options *options, struct io **io);

/* Waits until every read submitted has been answered, then frees the engine.
 * Nothing may be submitted any more. All backings it holds are let go. */
void io_free(struct io *io); /* NULL is allowed */

/* Bytes that the kernel reads ahead of a program by itself on this mount, which
 * are no sign of what the program wants; 128 KiB if nobody says. */
void io_set_readahead(struct io *io, uint64_t bytes);

/*
 * How a read ends: called exactly once for each io_read(), from any thread of
 * the engine or from io_read() itself, with no lock of the engine held.
 * `result` is 0 or a negative errno. On 0 the vectors hold all the bytes asked
 * for, in order; they are valid until the call returns. On an error `count` is 0.
 * Errors: -ESTALE: the file is no longer the version its backing names (changed,
 * truncated, replaced, removed); -EIO and others: what the storage said.
 */
typedef void (*io_done)(void *arg, errint_t result, const struct iovec *vectors, int count);

/*
 * Reads bytes [offset, offset + length) of the list; the range must lie inside
 * it and length must be over 0. The engine keeps its own reference to the list
 * until `done` has returned. Any thread. Never blocks on storage.
 */
void io_read(struct io *io, struct extent_list *list, uint64_t offset, size_t length, io_done done,
             void *arg);

/* What the engine reads by: for who has buffers of his own, and nobody to share what is
 * read with. What is under way there must end before io_free(). */
struct storage *io_storage(struct io *io);

/* Counters since the start, for metrics. Any thread. */
struct io_counters {
    uint64_t bytes_asked; /* by io_read() calls */
    uint64_t reads; /* io_read() calls answered */
    uint64_t bytes; /* bytes handed to them */
    uint64_t cached_bytes; /* of these: the call itself had no need to read the storage for them */
    uint64_t storage_reads; /* system calls (or ring entries) to the backing */
    uint64_t storage_bytes; /* bytes they brought */
    uint64_t errors; /* reads answered with an error */
    uint64_t stale; /* of these: -ESTALE */
    uint64_t descriptors; /* open now */
    uint64_t in_flight; /* reads not yet answered */
    uint64_t stalls; /* reads that had to wait for the storage */
    uint64_t page_cache_bytes; /* of storage_bytes: from the page cache of the backing */
    uint64_t prefetched_bytes; /* read before anybody asked */
    uint64_t prefetched_used; /* of these: asked for since */
    uint64_t prefetched_wasted; /* of these: let go unasked */
    uint64_t expired; /* bytes freed because they were not read for five seconds */
    uint64_t retries; /* reads of the storage done over */
    uint64_t storage_in_flight; /* reads the kernel has now */
    uint64_t storage_waiting; /* reads that wait to be given to it, or for a file to be opened */
    uint64_t memory; /* bytes of buffers in use now */
    uint64_t memory_budget;
    enum io_fallback fallbacks[IO_WAYS];
    struct histogram_snapshot duration; /* of an io_read(), to its answer */
    struct histogram_snapshot storage_duration; /* of a read by the kernel, not from its cache */
};

void io_counters(struct io *io, struct io_counters *counters);

/* What is on, what is not, and why: appends one JSON object for status. */
void io_status(struct io *io, struct buffer *out);

#endif
