/* SPDX-License-Identifier: Apache-2.0 */
/* Matches names of tensors with the patterns of --pick, --drop and --tensors. */
#ifndef FSTFS_COMMON_GLOB_H
#define FSTFS_COMMON_GLOB_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Sets *matches to whether fnmatch(3) without flags finds that the pattern matches the whole name
 * of `length` bytes. A NUL in the name is matched by `*`, `?` and `[!...]`. -ENOMEM. */
errint_t glob_match(const char *glob, const char *name, size_t length, bool *matches);

#endif
