/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bench of one model: what is to be measured (bench.c), and measuring it
 * (rounds.c).
 */
#ifndef FSTFS_BENCH_BENCH_H
#define FSTFS_BENCH_BENCH_H

#include "cache.h"
#include "common/progress.h"
#include "model.h"
#include "mount.h"
#include "options.h"
#include "ways.h"

enum { ROWS_MOST = WAYS_MOST * 2 * TEMPERATURES };

struct bench {
    const struct options *options;
    const struct device *device; /* to load into; or NULL */
    struct model model; /* the bare files */
    /* How the mounted files are reached: a mount of our own for each run, or the
     * one that the path lies on. */
    bool own_mount;
    char program[PATH_MAX]; /* then: fstfs */
    struct mount mount; /* else: that one */
    struct model mounted; /* and the model as it shows there */
    struct eviction eviction; /* how files were made cold */
    struct way ways[WAYS_MOST];
    unsigned way_count;
    struct row rows[ROWS_MOST]; /* see bench_row() */
    unsigned row_count;
    /* The readers' sums, by order: all ways must come to the same. */
    uint64_t sums[2];
    bool has_sum[2];
    unsigned rounds; /* ended */
    bool interrupted;
};

/* Finds out what there is to measure, and which rows cannot be. To be freed with
 * bench_close() in any case. -EINTR when a signal came. */
errint_t bench_open(const char *path, const struct options *options, const struct device *device,
                    struct bench *bench, struct reason *reason);
void bench_close(struct bench *bench);

/* Measures all rows, round after round, until a signal comes. */
void bench_run(struct bench *bench);

struct row *bench_row(struct bench *bench, unsigned way, bool mounted,
                      enum temperature temperature);
/* The bare row beside a mounted one: the same way, as cold. */
const struct row *bench_bare(const struct bench *bench, const struct row *row);
/* What the storage gave at best; NULL: that was not measured. */
const struct row *bench_best(const struct bench *bench);

/* Marks a row as one that is not measured. */
void row_skip(struct row *row, bool failed, const char *why);

#endif
