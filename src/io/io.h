/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: reads extent lists, asynchronously.
 *
 * One engine serves one mount or one libfstfs handle. It opens backing files on demand, limits the
 * number of open descriptors, and verifies after each read that the file is still the version of
 * its backing.
 */
#ifndef FSTFS_IO_IO_H
#define FSTFS_IO_IO_H

#include "base/buffer.h"
#include "base/error.h"
#include "base/extent.h"
#include "base/histogram.h"
#include "io/answer.h"
#include "io/options.h"

#include <stddef.h>
#include <stdint.h>

struct io;
struct storage;

errint_t io_new(const struct io_options *options, struct io **io);

/* Waits until all reads have ended, then detaches the engine from all backings and frees it. All
 * calls of io_read() must have returned, and no other may follow. NULL is allowed. */
void io_free(struct io *io);

/* Tells the engine the size of the kernel's readahead on this mount, in bytes. By default it
 * assumes 128 KiB. A request of that size may be readahead that no program asked for. A file's own
 * value (extent_list.readahead) overrides it. */
void io_set_readahead(struct io *io, uint64_t bytes);

/* Called once for each io_read(): by that call, by another call of io_read(), or by a thread of the
 * engine, without locks of the engine. */
typedef void (*io_done)(void *arg, const struct io_answer *answer);

/*
 * Reads bytes [offset, offset + length) of the list, which must contain them; length is not 0. The
 * engine holds a reference to the list until `done` has returned. Any thread. Never blocks on
 * storage.
 */
void io_read(struct io *io, struct extent_list *list, uint64_t offset, size_t length, io_done done,
             void *arg);

/* The engine's storage, for reads into the caller's buffers that bypass the chunk cache. They must
 * end before io_free(). */
struct storage *io_storage(struct io *io);

/* Counters since the start. Any thread. */
struct io_counters {
    uint64_t bytes_asked; /* requested by io_read() calls */
    uint64_t reads; /* io_read() calls answered */
    uint64_t bytes; /* delivered to them */
    uint64_t cached_bytes; /* of these: not read from storage for this call */
    uint64_t storage_reads; /* system calls or ring entries */
    uint64_t storage_bytes; /* bytes that these returned */
    uint64_t errors; /* reads answered with an error */
    uint64_t stale; /* of these: -ESTALE */
    uint64_t descriptors; /* open */
    uint64_t in_flight; /* io_read() calls not answered */
    uint64_t stalls; /* io_read() calls that waited for storage */
    uint64_t page_cache_bytes; /* of storage_bytes: from the page cache of the backing */
    uint64_t prefetched_bytes; /* read before they were requested */
    uint64_t prefetched_used; /* of these: requested since */
    uint64_t prefetched_wasted; /* of these: evicted without a request */
    uint64_t expired; /* bytes evicted because they were idle for five seconds */
    uint64_t retries; /* of storage reads */
    uint64_t storage_in_flight; /* storage reads */
    uint64_t storage_waiting; /* queued storage reads, and those that wait for an open */
    uint64_t memory; /* bytes of buffers in use */
    uint64_t memory_budget;
    enum io_fallback fallbacks[IO_MECHANISMS];
    struct histogram_snapshot duration; /* of io_read() calls, until the answer */
    struct histogram_snapshot storage_duration; /* of storage reads, not from the page cache */
};

void io_counters(struct io *io, struct io_counters *counters);

/* What was read of the files of a family since the start. */
struct io_family_counters {
    uint64_t bytes[FAMILY_COUNTERS];
    uint64_t pieces_started; /* after another piece of the same file */
    uint64_t started_in_file_order, started_by_name; /* of these */
};

void io_family_counters(struct io *io, struct family *family, struct io_family_counters *counters);

/* Appends a JSON object for the status page: which mechanisms are used, and why others are not. */
void io_status(struct io *io, struct buffer *out);

#endif
