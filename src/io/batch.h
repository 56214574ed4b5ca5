/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads many ranges with several in flight.
 *
 * next() names the ranges one after another. A batch keeps up to `depth` of them in flight. A read
 * is in flight from next() until batch_release(), so the limit also covers data that has been read
 * and is not processed yet. Completed reads are handed over in one of two ways:
 *
 *   batch_take()   The caller's threads submit reads, wait for them and process them: hashing,
 *                  writing. Reads that fail are not returned.
 *   complete()     Called by the thread that completed the read: copying. batch_release() then
 *                  submits the next ones, from that thread or from a worker.
 *
 * A read is done by the engine (an extent list, through its chunk cache), by the storage (a
 * backing, straight into the buffer) or by read() of the caller.
 *
 * Any thread may call, except where it is stated. No lock is held while reads are submitted or
 * completed.
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
    /* The batch's own. */
    struct batch *batch;
    uint64_t submitted; /* monotonic_ns() */
    bool is_completed;
    struct storage_read storage;
};

struct batch_options {
    struct io *io; /* NULL if no list is read */
    struct storage *storage; /* NULL: that of `io` */
    unsigned depth; /* most reads in flight */
    /* Most bytes in flight; 0: no limit. Each read that takes longer than 8 ms raises the limit by
     * its length, up to bytes_most. */
    uint64_t bytes, bytes_most;
    size_t read_bytes; /* sizeof() the caller's structure; 0: of a struct batch_read */
    char *buffers; /* `depth` buffers, aligned to BLOCK_SIZE, owned by the caller; or NULL */
    size_t buffer_bytes; /* of each; a multiple of BLOCK_SIZE */
    bool is_ordered; /* batch_take() returns reads in the order of next() */
    void *arg; /* for the functions below */

    /* Sets the next read. False: there are none, for now or at all. Called with the batch's lock,
     * by one thread at a time; must call nothing of the batch. */
    bool (*next)(void *arg, struct batch_read *read);
    /* If not NULL, called for each completed read instead of batch_take(). The vectors are those of
     * io_done. Must lead to one batch_release() or batch_retry(), now or later. */
    void (*complete)(struct batch_read *read, const struct iovec *vectors, int count);
    /* If not NULL, called when no read is in flight and next() has returned false. It is the last
     * use of the batch, which may be freed in it. */
    void (*end)(void *arg);
    /* If not NULL, starts the read instead of engine and storage; batch_completed() ends it. */
    void (*read)(struct batch_read *read);
    /* With complete(): threads that submit, so that several copy from the page cache. */
    struct workers *workers;
    unsigned worker_count; /* at most BATCH_WORKERS */
    bool submits_by_workers; /* batch_release() never submits itself */
};

/* Most workers that submit reads of one batch. */
enum { BATCH_WORKERS = 8 };

/* -ENOMEM. */
errint_t batch_new(const struct batch_options *options, struct batch **batch);

/* No read may be in flight. NULL is allowed. */
void batch_free(struct batch *batch);

/* Submits reads until the limit is reached, then waits for a completed one. NULL: all reads have
 * ended, or the batch was stopped and no read is being read. Only without complete(). */
struct batch_read *batch_take(struct batch *batch);

/* Ends a read: its buffer may be used again. */
void batch_release(struct batch_read *read);

/* Submits the read again, in place of batch_release(). It may have been changed. */
void batch_retry(struct batch_read *read);

/* With complete(): has up to `threads` workers and, with `here`, this thread submit reads. To be
 * called again when next() has reads after it had none; but not after end(). */
void batch_start(struct batch *batch, unsigned threads, bool here);

/* For batch_options.read: the read has ended. */
void batch_completed(struct batch_read *read, errint_t result);

/* Submits no more reads. `offset` is where the error is. Without effect if the batch has already
 * stopped; returns whether it had not. */
bool batch_stop(struct batch *batch, errint_t error, uint64_t offset);

/* The first error: of a read that batch_take() did not return, or given to batch_stop(). 0: none.
 * `offset` may be NULL. */
errint_t batch_error(struct batch *batch, uint64_t *offset);

#endif
