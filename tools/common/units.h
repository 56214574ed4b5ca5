/* SPDX-License-Identifier: Apache-2.0 */
/* Formats numbers of bytes for people. */
#ifndef FSTFS_COMMON_UNITS_H
#define FSTFS_COMMON_UNITS_H

enum { UNITS_SIZE = 24 };

/* Formats a number of bytes with three digits and a unit ("1.23 GB") in `out`. Returns `out`. */
char *units_bytes(char out[UNITS_SIZE], double bytes);

#endif
