/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: the length of a fixed one; growing ones, whose capacity follows from the count, so that
 * nothing has to store it. */
#ifndef FSTFS_BASE_ARRAY_H
#define FSTFS_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* The number of elements of an array whose size is known at compile time. */
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/*
 * Makes room for one more element in an array of `count` elements of `size` bytes each. The array
 * is NULL if `count` is 0; otherwise this function must have been called for each element. Returns
 * the array, which may have moved. NULL: out of memory; the array is unchanged.
 */
static inline void *
array_room(void *array, size_t count, size_t size)
{
    /* The capacity is 8 or the next power of two, so the array is full only at these counts. */
    if (array && (count & (count - 1) || (count > 0 && count < 8)))
        return array;
    return realloc(array, (count ? 2 * count : 8) * size);
}

/* Appends an element to an array of `count` elements; both are variables, which it updates. False:
 * out of memory. */
#define array_add(array, count, ...)                                                               \
    ({                                                                                             \
        __typeof__(array) array_moved_ = array_room(array, count, sizeof(*(array)));               \
                                                                                                   \
        if (array_moved_) {                                                                        \
            (array) = array_moved_;                                                                \
            (array)[(count)++] = (__VA_ARGS__);                                                    \
        }                                                                                          \
        array_moved_ != NULL;                                                                      \
    })

#endif
