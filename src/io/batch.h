/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads many ranges with several in flight.
 *
 * A batch gets the ranges from next() and keeps up to `depth` reads in flight. A read counts as in
 * flight until batch_release(), so the limit includes data that was read but not yet processed. The
 * caller gets completed reads in one of two ways:
 *
 *   batch_take()   The caller's threads submit reads, wait for them and process them: hashing,
 *                  writing. Reads that fail are not returned.
 *   complete()     Called by the thread that completed the read: copying. batch_release() then
 *                  submits the next ones, from that thread or from a worker.
 *
 * A read is done by the engine (an extent list, through its chunk cache), by the storage (a
 * backing, straight into the buffer) or by read() of the caller.
 *
 * Any thread may call these functions, unless stated otherwise. No lock is held while reads are
 * submitted or completed.
 */
#ifndef FSTFS_IO_BATCH_H
#define FSTFS_IO_BATCH_H

#include "base/error.h"
#include "base/extent.h"
#include "base/fifo.h"
#include "io/io.h"
#include "io/storage.h"
#include "io/workers.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct batch;

/* One read. The caller's own structure may begin with it (batch_options.read_bytes). */
struct batch_read {
    struct fifo_node node; /* of the list that it is in */
    /* Set by next(). With a backing, `offset` is a multiple of BLOCK_SIZE and the buffer has room
     * for whole blocks. The caller keeps the reference to the backing or the list. */
    struct backing *backing; /* NULL: `list` */
    struct extent_list *list;
    uint64_t offset; /* bytes */
    size_t length; /* bytes, over 0 */
    /* Where the bytes go; the batch sets it if it has buffers, and next() may change it. NULL with
     * a list: complete() gets the engine's buffers. */
    char *buffer;
    errint_t result; /* once completed */
    unsigned index; /* of its buffer, below `depth`; constant */
    /* Private to the batch. */
    struct batch *batch;
    uint64_t submitted; /* monotonic_ns() */
    bool is_completed;
    struct storage_read storage;
};

struct batch_options {
    struct io *io; /* NULL if no list is read */
    struct storage *storage; /* NULL: that of `io` */
    unsigned depth; /* limit of reads in flight */
    /* No read is submitted while this many bytes are in flight; 0: no limit. Each read that takes
     * longer than 8 ms raises the limit by its length, while it is below bytes_most. */
    uint64_t bytes, bytes_most;
    size_t read_bytes; /* sizeof() the caller's structure; 0: of a struct batch_read */
    char *buffers; /* `depth` buffers, aligned to BLOCK_SIZE, owned by the caller; or NULL */
    size_t buffer_bytes; /* of each; a multiple of BLOCK_SIZE */
    bool is_ordered; /* batch_take() returns reads in the order of next() */
    void *arg; /* for the functions below */

    /* Fills in the next read. False: there is none, for now or at all. Called with the batch's lock
     * held, so it must not call functions of the batch. */
    bool (*next)(void *arg, struct batch_read *read);
    /* If not NULL, called for each completed read instead of batch_take(). The vectors are those of
     * io_done. Must lead to one batch_release() or batch_retry(), now or later. */
    void (*complete)(struct batch_read *read, const struct iovec *vectors, int count);
    /* If not NULL, called when no read is in flight and next() has returned false, or the batch was
     * stopped or is out of memory. It may free the batch. Only with complete(). */
    void (*end)(void *arg);
    /* If not NULL, starts the read instead of engine and storage; batch_completed() ends it. */
    void (*read)(struct batch_read *read);
    /* With complete(): threads that submit, so that several copy from the page cache. */
    struct workers *workers;
    unsigned worker_count; /* at most BATCH_WORKERS */
    bool submits_by_workers; /* batch_release() never submits itself */
};

/* Limit of workers that submit reads of one batch. */
enum { BATCH_WORKERS = 8 };

/* Copies the options. Fails with -ENOMEM only. */
errint_t batch_new(const struct batch_options *options, struct batch **batch);

/* No read may be in flight. NULL is allowed. */
void batch_free(struct batch *batch);

/* Submits reads up to the limit, then waits for a completed one. NULL: all reads have ended, or the
 * batch was stopped and its reads have completed. Only without complete(). */
struct batch_read *batch_take(struct batch *batch);

/* Ends a read: its buffer may be used again. */
void batch_release(struct batch_read *read);

/* Only with complete(), instead of batch_release(): submits the read again. The caller may have
 * changed it, except its length. */
void batch_retry(struct batch_read *read);

/* Only with complete(): makes up to `threads` workers and, if `here` is set, this thread submit
 * reads. Call it again when next() has reads after it had none, but not after end(). */
void batch_start(struct batch *batch, unsigned threads, bool here);

/* Ends a read of batch_options.read(). */
void batch_completed(struct batch_read *read, errint_t result);

/* Stops submitting reads, because of an error at `offset`. Returns false, without effect, if the
 * batch had already stopped. */
bool batch_stop(struct batch *batch, errint_t error, uint64_t offset);

/* The first error: of a read that batch_take() did not return, or given to batch_stop(). 0: none.
 * `offset` may be NULL. */
errint_t batch_error(struct batch *batch, uint64_t *offset);

#endif
