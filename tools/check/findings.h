/* SPDX-License-Identifier: Apache-2.0 */
/* What fstfs-check found: collected from any thread, printed as lines or as JSON. */
#ifndef FSTFS_CHECK_FINDINGS_H
#define FSTFS_CHECK_FINDINGS_H

#include "base/buffer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct finding {
    char *path; /* begins with the path on the command line; not quoted */
    char *text; /* one line; names in it are quoted */
    bool unchecked; /* the file could not be checked, and may be valid */
};

struct findings {
    pthread_mutex_t lock; /* guards the rest */
    struct finding *all;
    size_t count;
    size_t printed; /* of `all`, from the start */
    size_t unchecked; /* findings with `unchecked` set */
    bool failed; /* out of memory: findings are missing; or standard output failed */
};

void findings_init(struct findings *findings);
void findings_free(struct findings *findings);

/* Adds a finding. Takes ownership of `path`, which is malloc'ed, or NULL if that failed. */
void findings_add(struct findings *findings, char *path, bool unchecked, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Removes all findings but the first `count`. None of those removed may have been printed, and no
 * other thread may add findings. */
void findings_truncate(struct findings *findings, size_t count);

/* Prints the findings that are not printed yet to standard output, one line each, sorted by path.
 */
void findings_print(struct findings *findings);

/* Appends all findings as a JSON array. */
void findings_json(struct findings *findings, struct buffer *out);

#endif
