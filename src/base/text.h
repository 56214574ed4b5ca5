/* SPDX-License-Identifier: Apache-2.0 */
/* Compares text by bytes. For UTF-8 this is Python's order, and therefore the order of
 * safetensors' keys(). */
#ifndef FSTFS_BASE_TEXT_H
#define FSTFS_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Text that may contain NUL. Returns a value below, equal to or above 0, as memcmp(3). */
static inline int
text_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);

    return order ? order : (a_length > b_length) - (a_length < b_length);
}

/* Whether text that may contain NUL is this string. */
static inline bool
text_is(const char *text, size_t length, const char *string)
{
    return length == strlen(string) && memcmp(text, string, length) == 0;
}

/* Whether a string ends in `suffix` and has at least one byte before it. */
static inline bool
text_has_suffix(const char *string, const char *suffix)
{
    size_t length = strlen(string), end = strlen(suffix);

    return length > end && strcmp(string + length - end, suffix) == 0;
}

/* Copies a string to *room and advances *room past the copy, which it returns. NULL: copies
 * nothing, and returns NULL. */
static inline const char *
text_copy(char **room, const char *string)
{
    char *copy = *room;

    if (!string)
        return NULL;
    *room = stpcpy(copy, string) + 1;
    return copy;
}

/* A key for bsearch(3) over entries that have the offset and length of a text in `base`. */
struct text_key {
    const char *base;
    const char *text;
    size_t length;
};

/* Compares two strings by strcmp(3), for qsort(3) and bsearch(3) over arrays of `const char *`. */
static inline int
text_compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

#endif
