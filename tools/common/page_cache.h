/* SPDX-License-Identifier: Apache-2.0 */
/* Counts and evicts the pages of an open file in the page cache. Any thread may call. */
#ifndef FSTFS_COMMON_PAGE_CACHE_H
#define FSTFS_COMMON_PAGE_CACHE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes [begin, end) of a file; `begin` is a multiple of the page size, `end` may be beyond the end
 * of the file. */
struct page_range {
    uint64_t begin, end;
};

uint64_t page_bytes(void);

/* The number of pages of a range. */
uint64_t page_range_count(const struct page_range *range);

/* Adds the number of cached pages of a range to *pages. -EPERM: the kernel reveals it only to
 * processes with CAP_FOWNER, the owner of the file and users who may write it. */
errint_t page_cache_count(int fd, const struct page_range *range, uint64_t *pages);

/* Writes the dirty pages of the file to storage, and evicts the pages of a range, except those that
 * are mapped or locked. Adds the number of pages that are still cached to *left. -EPERM: this
 * number is unknown, as above. */
errint_t page_cache_evict(int fd, const struct page_range *range, uint64_t *left);

/* Whether the page cache is the only storage of a file, as on tmpfs, which therefore ignores
 * requests to evict pages. */
bool page_cache_is_storage(int fd);

/* Whether the cached pages of a file, which has some, belong to its backing file by FUSE
 * passthrough. They are evicted there. Returns false where the kernel does not reveal it. */
bool page_cache_is_passed_through(int fd);

#endif
