/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known problems of the source, for .fstfs/problems.
 *
 * Problems are kept in sets. A set belongs to an object (a listing, a version of a checkpoint).
 * catalog_write_problems() writes the sets of current objects only: an object that was replaced
 * lives on while it has references. Any thread may call any function.
 *
 * New problems are also logged, up to 1,000 per hour. A line that was logged is not logged again
 * while it is among the last 1,000.
 */
#ifndef FSTFS_CATALOG_PROBLEMS_H
#define FSTFS_CATALOG_PROBLEMS_H

#include "base/buffer.h"
#include "base/error.h"

#include <stddef.h>

struct problems;
struct problem_set;

/* How problems are reported when they are found. */
struct problem_watch {
    /* Called in the thread that found the problem, with the directory of the set and the arguments
     * of problem_set_add(): `text` is quoted, `directory` and `name` are not. NULL: problems are
     * logged. */
    void (*report)(void *arg, const char *directory, const char *name, const char *text);
    void *arg;
    /* Limits the problems of one kind in one checkpoint that are reported one by one; if there are
     * more, a last line reports their total number. 0: the default, 3. */
    size_t named;
};

struct problems *problems_new(const struct problem_watch *watch); /* NULL: out of memory */
void problems_free(struct problems *problems);

/* A set for problems of `directory`, relative to the source. NULL: out of memory. References are
 * counted, and must be released before problems_free(). */
struct problem_set *problem_set_new(struct problems *problems, const char *directory);
struct problem_set *problem_set_ref(struct problem_set *set); /* NULL is allowed */
void problem_set_unref(struct problem_set *set); /* NULL is allowed */

/*
 * Adds the line "PATH: TEXT", unless the set contains it, and logs it. `name` is that of a file in
 * the directory, which this function quotes; NULL: the directory itself. Does nothing if `set` is
 * NULL or memory is exhausted, because recording a problem must not make the caller fail.
 */
void problem_set_add(struct problem_set *set, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

const char *problem_set_directory(const struct problem_set *set);

/* The number of lines. */
size_t problem_set_count(const struct problem_set *set);

/* How many problems of one kind are added one by one: problem_watch.named. */
size_t problem_set_named_max(const struct problem_set *set);

/* Appends the lines of these sets, sorted, without duplicates. */
void problems_write(struct problems *problems, struct problem_set *const *sets, size_t set_count,
                    struct buffer *out);

#endif
