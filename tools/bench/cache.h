/* SPDX-License-Identifier: Apache-2.0 */
/* Files in the page cache: how much of them, and cold reads. */
#ifndef FSTFS_BENCH_CACHE_H
#define FSTFS_BENCH_CACHE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the bytes of a file in the page cache. -EPERM: the kernel reveals this only to the owner
 * of the file and to users who may write it. */
errint_t cache_bytes(const char *path, uint64_t *bytes);

struct eviction {
    bool unverified; /* the kernel hides from this user what is cached */
    bool dropped_all; /* the whole page cache had to be dropped */
};

/*
 * Evicts files from the page cache and verifies that less than 1 % of each remains. If that is not
 * enough, root drops the whole page cache. Sets members of `eviction`, and clears none. -EBUSY: a
 * file stays cached, as on tmpfs or while it is mapped.
 */
errint_t cache_evict(char *const *paths, size_t count, struct eviction *eviction,
                     struct reason *reason);

#endif
