/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happened between two looks at a mount, for people and for programs.
 */
#ifndef FSTFS_TOP_ANSWER_H
#define FSTFS_TOP_ANSWER_H

#include "base/buffer.h"
#include "sample.h"
#include "users.h"

struct answer {
    const char *point;
    const struct sample *now;
    const struct users *users;
    double seconds; /* between the two */
    /* In these seconds: */
    uint64_t reads, bytes, cached, storage, stalls, errors, stale, prefetched, used, wasted;
    double read_seconds;
    const char *state; /* one word for what is waited for */
    const char *meaning; /* the same for a person */
};

/* `before` needs no buffers. Of a mount that came in its place `now` is all new. */
void answer_make(struct answer *answer, const struct sample *before, const struct sample *now);

void answer_screen(const struct answer *answer, struct buffer *out); /* lines */
void answer_line(const struct answer *answer, struct buffer *out);
void answer_json(const struct answer *answer, struct buffer *out); /* a line */

#endif
