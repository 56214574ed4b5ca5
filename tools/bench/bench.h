/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmark of one model: what is measured (bench.c), and the measurement (rounds.c). */
#ifndef FSTFS_BENCH_BENCH_H
#define FSTFS_BENCH_BENCH_H

#include "cache.h"
#include "device.h"
#include "methods.h"
#include "mount.h"
#include "options.h"

struct bench {
    const struct bench_options *options;
    const struct device *device; /* to load into; or NULL */
    struct model model; /* the bare files */
    /* Each run gets a temporary mount, made with `program`; or the path is on `mount`, and the
     * model in it is `mounted`. */
    bool own_mount;
    char program[PATH_MAX];
    struct mount mount;
    struct model mounted;
    struct eviction eviction; /* how files were made cold */
    struct method methods[METHODS_MOST];
    unsigned method_count;
    struct row *rows; /* see bench_row() */
    unsigned row_count;
    /* Checksums by order; all methods must agree. */
    uint64_t sums[2];
    bool has_sum[2];
    unsigned rounds; /* completed */
    bool interrupted;
};

/* Determines what to measure, and which rows cannot be measured. Call bench_close() in any case.
 * -EINTR after a signal. */
errint_t bench_open(const char *path, const struct bench_options *options,
                    const struct device *device, struct bench *bench, struct reason *reason);
void bench_close(struct bench *bench);

/* Measures all rows in options->rounds rounds, or until a signal arrives. */
void bench_run(struct bench *bench);

struct row *bench_row(struct bench *bench, unsigned method, bool mounted,
                      enum temperature temperature);
/* The bare row of the same method and temperature. */
const struct row *bench_bare(const struct bench *bench, const struct row *row);
/* The storage's best rate: O_DIRECT on the bare files. NULL: not measured. */
const struct row *bench_best(const struct bench *bench);

/* The path as given on the command line. */
const char *bench_path(const struct bench *bench);

#endif
