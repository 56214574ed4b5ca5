/* SPDX-License-Identifier: Apache-2.0 */
/* The activity of a mount between two samples, as text and as JSON. */
#ifndef FSTFS_TOP_REPORT_H
#define FSTFS_TOP_REPORT_H

#include "base/buffer.h"
#include "sample.h"
#include "users.h"

struct report {
    const char *point;
    const struct sample *now;
    const struct users *users;
    double seconds; /* between the samples */
    uint64_t increase[GAUGES]; /* of the counters in this time */
    double read_seconds; /* increase of the total duration of reads */
    const char *state; /* one word for what limits the throughput */
    const char *meaning; /* `state` as a sentence */
};

/* Compares two samples; the caller sets report->point and report->users. The buffers of `before`
 * are not used. If `now` is of another mount, its counters are compared with 0. */
void report_make(struct report *report, const struct sample *before, const struct sample *now);

void report_screen(const struct report *report, struct buffer *out); /* several lines */
void report_line(const struct report *report, struct buffer *out);
void report_json(const struct report *report, struct buffer *out); /* one line */

#endif
