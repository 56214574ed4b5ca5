/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How functions fail.
 *
 * A function that can fail returns 0 or a negative errno and nothing else
 * (errint_t marks it). Where a person must learn more than the errno says, the
 * caller hands in a `struct reason` and the function fills it on failure.
 */
#ifndef FSTFS_BASE_ERROR_H
#define FSTFS_BASE_ERROR_H

#include <stddef.h>

typedef int errint_t;

/*
 * Why something was refused. `rule` is a static string, the name of the broken
 * rule ("InvalidOffset", in safetensors' own terms where it is safetensors'
 * rule); `text` is one line for a person: the tensor, what was found, what was
 * expected. Names in it are quoted with buffer_add_quoted().
 */
struct reason {
    const char *rule;
    char text[512];
};

/* Fills `reason` (which may be NULL) and returns `error`, a negative errno. */
errint_t reason_set(struct reason *reason, errint_t error, const char *rule, const char *format,
                    ...) __attribute__((format(printf, 4, 5)));

/* Writes `text` quoted (see buffer_add_quoted) into `out` and returns `out`:
 * for the arguments of reason_set and log lines. */
#define QUOTED_SIZE 320
char *quoted(char out[QUOTED_SIZE], const char *text, size_t length);

#endif
