/* SPDX-License-Identifier: Apache-2.0 */
/* What fstfs-cache prints to standard output. */
#ifndef FSTFS_CACHE_REPORT_H
#define FSTFS_CACHE_REPORT_H

#include "base/buffer.h"
#include "selection.h"

/* Require selection_measure(). */
void report_add_table(struct buffer *out, const struct selection *selection);
void report_add_json(struct buffer *out, const struct selection *selection);

#endif
