/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors. A function that can fail returns errint_t: 0 or a negative errno. If the user needs
 * details, it also takes a `struct reason`, which it fills in on failure.
 */
#ifndef FSTFS_BASE_ERROR_H
#define FSTFS_BASE_ERROR_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

typedef int errint_t;

/* Whether the process or the system has no free descriptor. */
static inline bool
error_is_no_descriptor(errint_t error)
{
    return error == -EMFILE || error == -ENFILE;
}

/* Whether the process lacks memory or descriptors. That says nothing about the file, and may not
 * occur again. */
static inline bool
error_is_lack(errint_t error)
{
    return error == -ENOMEM || error_is_no_descriptor(error);
}

/* Whether following a link failed without showing what it leads to: storage has failed, or
 * (-EACCES) the caller may not know. With the other errors the link leads to nothing, or must not
 * be followed. */
static inline bool
error_hides_target(errint_t error)
{
    switch (error) {
    case 0:
    case -ENOENT:
    case -ENOTDIR:
    case -ELOOP:
    case -ENAMETOOLONG:
    case -EXDEV: /* a link into the mount itself */
    case -EPERM: /* a link that is not followed: what it leads to must not show */
        return false;
    default:
        return true;
    }
}

/*
 * Why something was refused. `rule` is the name of the broken rule, in the style of the safetensors
 * library ("InvalidOffset"); a static string. `text` is one line: the tensor, what was found, what
 * was expected, with names quoted by buffer_add_quoted().
 */
struct reason {
    const char *rule;
    char text[512];
};

/* Fills `reason`, which may be NULL. Leaves errno as it is. */
void reason_fill(struct reason *reason, const char *rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fills `reason` (which may be NULL) and returns `error`, a negative errno: a macro, so that
 * compilers and analyzers see which value a function returns. */
#define reason_set(reason, error, rule, ...) (reason_fill(reason, rule, __VA_ARGS__), (error))

/* Sets the reason to "out of memory". Returns -ENOMEM. */
#define reason_no_memory(reason) reason_set(reason, -ENOMEM, "OutOfMemory", "out of memory")

/* Sets the reason to "WHAT: " and strerror(-error); without "WHAT: " if `what` is NULL. Returns
 * `error`. */
errint_t reason_errno(struct reason *reason, errint_t error, const char *what);

/* Quotes `text` as buffer_add_quoted() does, into `out`, and returns `out`. */
#define QUOTED_SIZE 320
char *quoted(char out[QUOTED_SIZE], const char *text, size_t length);

#endif
