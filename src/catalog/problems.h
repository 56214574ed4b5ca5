/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known to be wrong with the source, for .fstfs/problems.
 *
 * Problems are kept in sets. A set belongs to what was looked at (a listing, a
 * version of a checkpoint) and goes when that goes, so that the page says what
 * is true now. Any thread; one lock inside.
 */
#ifndef FSTFS_CATALOG_PROBLEMS_H
#define FSTFS_CATALOG_PROBLEMS_H

#include "base/buffer.h"
#include "base/error.h"

#include <stddef.h>

struct problems;
struct problem_set;

/* Who is told of problems as they are found, in place of the log. */
struct problem_watch {
    /* From the thread that found it. As problem_set_add() got them: not quoted, but
     * for `text`. NULL: nobody, and the log is. */
    void (*tell)(void *arg, const char *directory, const char *name, const char *text);
    void *arg;
    /* Of problems of one kind in one checkpoint so many are told one by one, and then
     * how many there are; 0: 3. */
    size_t named;
};

struct problems *problems_new(const struct problem_watch *watch); /* NULL: out of memory */
void problems_free(struct problems *problems);

struct problem_set *problem_set_new(struct problems *problems); /* NULL: out of memory */
void problem_set_free(struct problem_set *set); /* NULL is allowed */

/*
 * Adds one line, "PATH: TEXT", unless the set has it. `directory` and `name` make the path in the
 * source ("" and NULL for the source itself); it is quoted here. The first
 * lines are logged as well. Does nothing when `set` is NULL or memory is out:
 * problems are never a reason to fail.
 */
void problem_set_add(struct problem_set *set, const char *directory, const char *name,
                     const char *format, ...) __attribute__((format(printf, 4, 5)));

/* How many lines it has. */
size_t problem_set_count(const struct problem_set *set);

/* How many problems of one kind are to be added one by one. */
size_t problem_set_named(const struct problem_set *set);

/* All lines, sorted, each once. */
void problems_write(struct problems *problems, struct buffer *out);
size_t problems_count(struct problems *problems);

#endif
