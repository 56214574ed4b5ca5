/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timed readers: each reads a plan as one kind of loader would.
 *
 * A reader runs in processes of its own, so that its memory can be told and so
 * that nothing of it is left. Its threads claim the segments of the plan in
 * order. The clock starts when all are there with buffers touched, before files
 * are opened, and stops when the last of them has its bytes.
 */
#ifndef FSTFS_BENCH_READERS_H
#define FSTFS_BENCH_READERS_H

#include "child.h"
#include "plan.h"

#include <stdatomic.h>

enum reader_kind {
    READER_READ, /* every file opened once; pread of `block` bytes */
    READER_MMAP, /* every file mapped once; a byte of each page touched */
    READER_COPY, /* every file mapped once; `block` bytes copied at a time */
    READER_FILE, /* each segment's file opened, read of `block` bytes, closed */
    READER_DIRECT, /* as READ, with O_DIRECT and `depth` reads under way (io_uring) */
};

enum { READER_PROCESSES_MOST = 64 };

struct reader {
    enum reader_kind kind;
    size_t block; /* bytes, a multiple of 4096 */
    unsigned depth;
    unsigned threads, processes; /* at least 1 */
    bool each_all; /* every process reads all of the plan, its threads sharing that */
};

struct reader_result {
    double seconds;
    uint64_t bytes;
    /* Of one byte each 4096 from a segment's start and its last byte: the same
     * wherever the segment lies. */
    uint64_t sum;
    uint64_t memory; /* bytes: the most a process of it had */
};

/*
 * Runs it. `done` may be NULL; else it lies in memory shared with children, and
 * the bytes read are added to it as they come. Errors as child_wait().
 */
errint_t reader_run(const struct reader *reader, const struct plan *plan, const struct watch *watch,
                    _Atomic uint64_t *done, struct reader_result *result, struct reason *reason);

#endif
