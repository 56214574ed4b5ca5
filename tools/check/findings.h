/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was found: kept, printed a line each, and written as JSON.
 */
#ifndef FSTFS_CHECK_FINDINGS_H
#define FSTFS_CHECK_FINDINGS_H

#include "base/buffer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct finding {
    char *path; /* as the command line began it; not quoted */
    char *text; /* one line, what it quotes being quoted */
    bool unseen; /* no fault of the file: it could not be looked at */
};

struct findings {
    pthread_mutex_t lock; /* guards the rest; any thread adds */
    struct finding *all;
    size_t count;
    size_t printed; /* of `all`, from the front */
    size_t unseen;
    bool failed; /* out of memory: there is more than what is here */
};

void findings_init(struct findings *findings);
void findings_free(struct findings *findings);

/* Adds one. Takes over `path` (malloc'ed; NULL: there was no memory for it). */
void findings_add(struct findings *findings, char *path, bool unseen, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Prints those not yet printed to standard output, sorted by path. */
void findings_print(struct findings *findings);

/* Appends a JSON array of all of them. */
void findings_json(struct findings *findings, struct buffer *out);

#endif
