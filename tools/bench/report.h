/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was measured, as text: for people, for machines, and as a picture. Each
 * appends to a buffer.
 */
#ifndef FSTFS_BENCH_REPORT_H
#define FSTFS_BENCH_REPORT_H

#include "base/buffer.h"
#include "bench.h"
#include "machine.h"

/* A line about the machine; and about the model: its sizes and storage. Without an end. */
void report_machine(struct buffer *out, const struct machine *machine);
void report_model(struct buffer *out, const struct bench *bench);

/* `device` may be NULL: there is none to load into. */
void report_table_machine(struct buffer *out, const struct machine *machine,
                          const struct device *device);
void report_table(struct buffer *out, const struct bench *bench);

/* One JSON object. */
void report_json(struct buffer *out, const struct machine *machine, const struct device *device,
                 const struct bench *benches, unsigned count);

/* One SVG picture: a bar for each row that was measured. */
void report_svg(struct buffer *out, const struct machine *machine, const struct bench *benches,
                unsigned count);

/* Whether there is such a row at all: O_DIRECT has no warm one. */
bool report_has(const struct row *row);

#endif
