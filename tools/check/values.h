/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of a tensor that are no numbers, counted as its bytes come.
 */
#ifndef FSTFS_CHECK_VALUES_H
#define FSTFS_CHECK_VALUES_H

#include "format/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct values {
    enum dtype dtype;
    uint64_t nan, inf; /* how many so far */
    unsigned char rest[8]; /* the beginning of an element whose end is yet to come */
    unsigned rest_length;
};

/* Whether a dtype has NaN or infinity at all, in whole bytes. */
bool values_has(enum dtype dtype);

/* Bytes of a tensor, in order, however cut. values->dtype is one that values_has(). */
void values_add(struct values *values, const void *bytes, size_t length);

#endif
