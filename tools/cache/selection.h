/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command line selects: files, the ranges of their pages, and the rows of the report in
 * which they are counted. One thread makes a selection, which is then constant except for the
 * results of selection_measure() and selection_limit().
 */
#ifndef FSTFS_CACHE_SELECTION_H
#define FSTFS_CACHE_SELECTION_H

#include "base/extent.h"
#include "common/inode_map.h"
#include "common/page_cache.h"
#include "options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct selected_file {
    char *path;
    struct file_identity identity;
    struct page_range *ranges; /* sorted, disjoint, none empty */
    size_t range_count;
    uint64_t pages; /* of all ranges */
    uint64_t wanted; /* number of pages, from the first on, to be warmed or kept */
    size_t row;
    bool failed; /* an error of it was printed */
    _Atomic errint_t error; /* the first one in the last warm_run() or evict_run(); 0: none */
};

/* A line of the report: a PATH that is a file, or a directory. */
struct selection_row {
    char *path;
    size_t files, tensors;
    uint64_t bytes; /* of the tensors (shared bytes count once), or of the files */
    uint64_t pages, wanted;
    /* Set by selection_measure(): */
    uint64_t cached; /* pages */
    uint64_t missing; /* wanted pages that are not cached; only of files for which this is known */
    /* It is unknown which pages of some file are cached: the kernel does not reveal it, or the file
     * cannot be opened. */
    bool is_hidden;
};

struct selection {
    struct selected_file *files;
    size_t file_count;
    struct selection_row *rows;
    size_t row_count;
    bool failed; /* an error was printed */
    uint64_t measured_ns; /* duration of the last selection_measure() */
    const struct globs *globs;
    bool *glob_matched; /* for each glob */
    struct fstfs *fstfs; /* finds tensors */
    struct inode_map inodes; /* each file is selected once */
};

/* Resolves the paths. If one is invalid, prints the error, sets `failed` and continues. Returns
 * -ENOMEM, or -EINTR after a signal. Call selection_free() in any case. */
errint_t selection_make(struct selection *selection, const struct cache_options *options);

void selection_free(struct selection *selection);

/* Limits the wanted pages to `bytes`. */
void selection_limit(struct selection *selection, uint64_t bytes);

/* The bytes of the wanted pages. */
uint64_t selection_wanted_bytes(const struct selection *selection);

/* Returns the sum of all rows, without a path. */
struct selection_row selection_total(const struct selection *selection);

/* Iterates over the wanted ranges of a file: call it with i = 0, 1, ... and with `*left` set to
 * file->wanted before the first call. Stores the wanted part of ranges[i], or returns false: there
 * is none, nor in the ranges after it. */
bool selected_range(const struct selected_file *file, size_t i, uint64_t *left,
                    struct page_range *range);

/* Prints the first error of a selected file, and sets `failed`. Does nothing for later ones. */
void selection_fail_file(struct selection *selection, size_t number, errint_t error);

/* Counts the cached pages of all rows. */
void selection_measure(struct selection *selection);

#endif
