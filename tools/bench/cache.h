/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page cache: what it holds of files, and how it is made to let go.
 */
#ifndef FSTFS_BENCH_CACHE_H
#define FSTFS_BENCH_CACHE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a file that the page cache holds. -EPERM: the kernel tells only who
 * owns the file or may write it. */
errint_t cache_bytes(const char *path, uint64_t *bytes);

/* How files were made cold. */
struct eviction {
    bool unverified; /* the kernel does not tell this user what it holds of them */
    bool dropped_all; /* only root's dropping of the whole page cache did it */
};

/*
 * Has files dropped from the page cache, and looks that they are gone: less than
 * a hundredth may be left. Where that is not enough, root drops the whole page
 * cache. -EBUSY and the reason where they stay (tmpfs; pages others have mapped).
 * What was found out is added to `eviction`.
 */
errint_t cache_evict(char *const *paths, size_t count, struct eviction *eviction,
                     struct reason *reason);

#endif
