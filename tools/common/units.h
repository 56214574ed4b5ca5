/* SPDX-License-Identifier: Apache-2.0 */
/* Formats numbers of bytes for people. */
#ifndef FSTFS_COMMON_UNITS_H
#define FSTFS_COMMON_UNITS_H

#include "base/buffer.h"

/* Appends a number of bytes with three digits and a unit: "1.23 GB". */
void units_add_bytes(struct buffer *out, double bytes);

#endif
