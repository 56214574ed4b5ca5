/* SPDX-License-Identifier: Apache-2.0 */
/* Matches names of tensors with the patterns of --pick, --drop and --tensors. */
#ifndef FSTFS_COMMON_GLOB_H
#define FSTFS_COMMON_GLOB_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Sets *matches to whether the pattern matches the whole name of `length` bytes, as fnmatch(3) does
 * without flags. `*`, `?` and `[!...]` also match NUL. -ENOMEM. */
errint_t glob_match(const char *glob, const char *name, size_t length, bool *matches);

#endif
