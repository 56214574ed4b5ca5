/* SPDX-License-Identifier: Apache-2.0 */
#include "common/page_cache.h"

#include "base/system_call.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define WINDOW ((size_t)256 << 20) /* bytes per mincore() */

/* No folio of the page cache is larger. Folios are aligned to their size. */
#define FOLIO_BYTES_MAX ((uint64_t)1 << 30)

enum { TRIES = 20 };

uint64_t
page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t
page_range_count(const struct page_range *range)
{
    return (range->end - range->begin + page_bytes() - 1) / page_bytes();
}

static errint_t
count_window(int fd, uint64_t from, size_t length, unsigned char *pages, uint64_t *count)
{
    const size_t page = page_bytes();
    void *at = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, (off_t)from);
    errint_t error = 0;

    if (at == MAP_FAILED)
        return -errno;
    if (mincore(at, length, pages) < 0)
        error = -errno;
    munmap(at, length);
    for (size_t i = 0; !error && i < (length + page - 1) / page; i++)
        *count += pages[i] & 1;
    return error;
}

/* Returns -EPERM if the kernel does not reveal to this process what is cached. mincore() then
 * reports every page as cached, even one beyond the end of the file that no folio can cover. */
static errint_t
mincore_check_permission(int fd)
{
    unsigned char page;
    uint64_t count = 0, beyond;
    errint_t error;
    struct stat st;

    if (fstat(fd, &st) < 0)
        return -errno;
    beyond = ((uint64_t)st.st_size / FOLIO_BYTES_MAX + 1) * FOLIO_BYTES_MAX;
    error = count_window(fd, beyond, page_bytes(), &page, &count);
    return !error && count > 0 ? -EPERM : error;
}

static errint_t
count_mapped_pages(int fd, const struct page_range *range, uint64_t *count)
{
    unsigned char *pages;
    errint_t error = mincore_check_permission(fd);

    if (error)
        return error;
    pages = malloc(WINDOW / page_bytes());
    if (!pages)
        return -ENOMEM;
    for (uint64_t from = range->begin; !error && from < range->end; from += WINDOW) {
        uint64_t length = range->end - from;

        error = count_window(fd, from, length < WINDOW ? (size_t)length : WINDOW, pages, count);
    }
    free(pages);
    return error;
}

static bool
file_system_is(int fd, long magic)
{
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && (long)fs.f_type == magic;
}

/* Counts the pages of the file itself, not those of a backing file. An empty range extends to the
 * end of the file. Kernels before 6.5 do not have cachestat(). Later ones may refuse it to users
 * from whom mincore() hides the pages, and a seccomp filter may refuse it to all. */
static errint_t
count_own_pages(int fd, const struct page_range *range, uint64_t *count)
{
    struct {
        uint64_t offset, length;
    } part = {range->begin, range->end - range->begin};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } state;

    if (syscall(SYS_cachestat, fd, &part, &state, 0) < 0)
        return -errno;
    *count += state.cached;
    return 0;
}

errint_t
page_cache_count(int fd, const struct page_range *range, uint64_t *pages)
{
    if (range->begin == range->end)
        return 0;
    /* On overlayfs, and with FUSE passthrough, the pages belong to a backing file. mincore() counts
     * them, because it is the backing file that is mapped. */
    if (!file_system_is(fd, FUSE_SUPER_MAGIC) && !file_system_is(fd, OVERLAYFS_SUPER_MAGIC) &&
        count_own_pages(fd, range, pages) == 0)
        return 0;
    return count_mapped_pages(fd, range, pages);
}

bool
page_cache_is_storage(int fd)
{
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 &&
           (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC);
}

bool
page_cache_is_passed_through(int fd)
{
    const struct page_range all = {0, 0};
    uint64_t own = 0;

    return file_system_is(fd, FUSE_SUPER_MAGIC) && count_own_pages(fd, &all, &own) == 0 && own == 0;
}

errint_t
page_cache_evict(int fd, const struct page_range *range, uint64_t *left)
{
    uint64_t cached = 0;
    errint_t error = 0;

    fdatasync(fd); /* dirty pages are not evicted */
    for (int i = 0; i < TRIES; i++) {
        struct timespec pause = {0, 10000000}; /* a page may be in use for a moment */

        if (i > 0)
            nanosleep(&pause, NULL);
        /* Only pages that the range covers entirely are evicted. */
        posix_fadvise(fd, (off_t)range->begin, (off_t)(page_range_count(range) * page_bytes()),
                      POSIX_FADV_DONTNEED);
        cached = 0;
        error = page_cache_count(fd, range, &cached);
        if (error || cached == 0)
            break;
    }
    *left += cached;
    return error;
}
