/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors. A function that can fail returns errint_t: 0 or a negative errno. If a person needs to
 * know more, it also takes a `struct reason`, which it fills in on failure.
 */
#ifndef FSTFS_BASE_ERROR_H
#define FSTFS_BASE_ERROR_H

#include <stddef.h>

typedef int errint_t;

/*
 * Why something was refused. `rule` names the broken rule, as safetensors does for its own
 * ("InvalidOffset"); a static string. `text` is one line: the tensor, what was found, what was
 * expected, with names quoted by buffer_add_quoted().
 */
struct reason {
    const char *rule;
    char text[512];
};

/* Fills `reason` (which may be NULL) and returns `error`, a negative errno. */
errint_t reason_set(struct reason *reason, errint_t error, const char *rule, const char *format,
                    ...) __attribute__((format(printf, 4, 5)));

/* Reason "out of memory". Returns -ENOMEM. */
errint_t reason_no_memory(struct reason *reason);

/* Reason "WHAT: " and strerror(-error), or that alone if `what` is NULL. Returns `error`. */
errint_t reason_errno(struct reason *reason, errint_t error, const char *what);

/* Quotes `text` as buffer_add_quoted() does, into `out`, and returns `out`. */
#define QUOTED_SIZE 320
char *quoted(char out[QUOTED_SIZE], const char *text, size_t length);

#endif
