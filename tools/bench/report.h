/* SPDX-License-Identifier: Apache-2.0 */
/* The results: as a table for people, as JSON, and as a chart. Each function appends to a buffer.
 */
#ifndef FSTFS_BENCH_REPORT_H
#define FSTFS_BENCH_REPORT_H

#include "base/buffer.h"
#include "bench.h"
#include "machine.h"

/* One line about the machine, and one about a model: size and storage. Without line ends. */
void report_machine(struct buffer *out, const struct machine *machine);
void report_model(struct buffer *out, const struct bench *bench);

/* "bare" or "mounted"; "cold" or "warm". */
const char *row_place(const struct row *row);
const char *row_state(const struct row *row);

void report_table(struct buffer *out, const struct bench *bench);

/* One JSON object. `device` may be NULL. */
void report_json(struct buffer *out, const struct machine *machine, const struct device *device,
                 const struct bench *benches, unsigned count);

/* One SVG image with a bar for each measured row. */
void report_svg(struct buffer *out, const struct machine *machine, const struct bench *benches,
                unsigned count);

#endif
