/* SPDX-License-Identifier: Apache-2.0 */
/* Counts NaN and infinite values in the bytes of a tensor. */
#ifndef FSTFS_CHECK_VALUES_H
#define FSTFS_CHECK_VALUES_H

#include "format/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct values {
    enum dtype dtype;
    uint64_t nan, inf; /* counted so far */
    unsigned char rest[8]; /* the first bytes of an incomplete element */
    unsigned rest_length;
};

/* Returns whether the dtype has NaN or infinity, and elements of whole bytes. */
bool values_has(enum dtype dtype);

/* Adds the next bytes of a tensor, which may begin and end within an element. Requires
 * values_has(values->dtype). */
void values_add(struct values *values, const void *bytes, size_t length);

#endif
