/* SPDX-License-Identifier: Apache-2.0 */
/* The message that fstfs_error() returns, and validation of the caller's structures. Any thread. */
#ifndef FSTFS_CLIENT_ERROR_H
#define FSTFS_CLIENT_ERROR_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Sets the message that fstfs_error() returns on this thread. Returns `error`, a negative errno. */
errint_t fail(errint_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* fail() with -ENOMEM. */
errint_t fail_no_memory(void);

/* -EINVAL, with fail(), if a `reserved` word of the caller's structure is not 0. */
errint_t check_reserved(const char *structure, const uint64_t *reserved, size_t count);
#define CHECK_RESERVED(structure, type)                                                            \
    check_reserved(#type, (structure)->reserved,                                                   \
                   sizeof((structure)->reserved) / sizeof(*(structure)->reserved))

#endif
