/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timed readers. Each reads a plan (byte ranges of files, in an order) as one kind of loader
 * would.
 *
 * A reader runs in one or more child processes. Its threads claim the segments of the plan in
 * order. The clock starts when all threads are running with their buffers touched, before files
 * are opened, and stops when the last thread has its bytes.
 */
#ifndef FSTFS_BENCH_READERS_H
#define FSTFS_BENCH_READERS_H

#include "child.h"

struct plan_segment {
    uint64_t offset;
    uint64_t length; /* never 0 */
    size_t file; /* index into files */
};

/* All zero is an empty plan. Free it with plan_free(). */
struct plan {
    char **files; /* each path once */
    size_t file_count;
    struct plan_segment *segments;
    size_t segment_count;
    uint64_t bytes; /* of all segments */
};

/* Appends a file, which must not be in the plan yet. -ENOMEM. */
errint_t plan_add_file(struct plan *plan, const char *path);
/* Appends a segment of a file of the plan; an empty one is left out. -ENOMEM. */
errint_t plan_add_segment(struct plan *plan, size_t file, uint64_t offset, uint64_t length);
void plan_free(struct plan *plan);

enum reader_kind {
    READER_READ, /* every file opened once; pread of `block` bytes */
    READER_MMAP, /* every file mapped once; one byte of each page touched */
    READER_COPY, /* every file mapped once; `block` bytes copied at a time */
    READER_FILE, /* each segment's file opened, read of `block` bytes, closed */
    READER_DIRECT, /* as READER_READ, with O_DIRECT and `depth` reads in flight (io_uring) */
};

struct reader {
    enum reader_kind kind;
    size_t block; /* bytes, a multiple of 4096 */
    unsigned depth;
    unsigned threads, processes; /* at least 1; at most CHILDREN_MOST processes */
    bool each_all; /* every process reads the whole plan, shared by its threads */
};

struct reader_result {
    double seconds;
    uint64_t bytes;
    /* Checksum: the sum of the bytes at multiples of 4096 from the start of each segment, and of
     * the last byte of each. It does not depend on where a segment is stored. */
    uint64_t sum;
    uint64_t memory; /* peak memory of a process in bytes */
};

/* Runs a reader. `progress` may be NULL; otherwise the bytes are added to progress->running as
 * they are read. Errors as in children_run(). */
errint_t reader_run(const struct reader *reader, const struct plan *plan, struct progress *progress,
                    struct reader_result *result, struct reason *reason);

#endif
