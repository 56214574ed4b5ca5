/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of names and other text that may hold NUL: that of their bytes, which is
 * Python's for UTF-8, so that of safetensors' keys(), and of most loaders.
 */
#ifndef FSTFS_BASE_TEXT_H
#define FSTFS_BASE_TEXT_H

#include <stddef.h>
#include <string.h>

/* Below, at or over 0, as memcmp(). */
static inline int
text_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);

    return order ? order : (a_length > b_length) - (a_length < b_length);
}

#endif
