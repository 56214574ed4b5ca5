/* SPDX-License-Identifier: Apache-2.0 */
/* The text of fstfs_error(), and the check of structures that callers make. Any thread. */
#ifndef FSTFS_CLIENT_ERROR_H
#define FSTFS_CLIENT_ERROR_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Sets this thread's fstfs_error(); returns `error`, a negative errno. */
errint_t fail(errint_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* fail() with -ENOMEM. */
errint_t fail_no_memory(void);

/* -EINVAL, set by fail(), if one of the `reserved` words of the caller's structure is not 0. */
errint_t check_reserved(const char *structure, const uint64_t *reserved, size_t count);
#define CHECK_RESERVED(structure, type)                                                            \
    check_reserved(#type, (structure)->reserved,                                                   \
                   sizeof((structure)->reserved) / sizeof(*(structure)->reserved))

#endif
