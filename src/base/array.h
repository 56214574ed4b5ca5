/* SPDX-License-Identifier: Apache-2.0 */
/* Growing arrays. The capacity follows from the count, so that nothing has to store it. */
#ifndef FSTFS_BASE_ARRAY_H
#define FSTFS_BASE_ARRAY_H

#include <stddef.h>
#include <stdlib.h>

/*
 * Makes room for one more element in an array of `count` elements of `size` bytes each, which is
 * NULL if `count` is 0, and otherwise was grown by this function for each element. Returns the
 * array, which may have moved. NULL: out of memory; the array is unchanged.
 */
static inline void *
array_room(void *array, size_t count, size_t size)
{
    /* The capacity is 8 or the next power of two, so that only at these counts it is full. */
    if (array && (count & (count - 1) || (count > 0 && count < 8)))
        return array;
    return realloc(array, (count ? 2 * count : 8) * size);
}

#endif
