/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WINDOW ((size_t)256 << 20) /* bytes per mincore() */

enum { TRIES = 20 };

/* Without this permission, mincore() reports every page as cached. */
static bool
may_count_pages(const char *path, const struct stat *st)
{
    return geteuid() == 0 || st->st_uid == geteuid() || access(path, W_OK) == 0;
}

static errint_t
count_window(int fd, uint64_t from, size_t length, unsigned char *pages, uint64_t *bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, (off_t)from);
    errint_t error = 0;

    if (at == MAP_FAILED)
        return -errno;
    if (mincore(at, length, pages) < 0)
        error = -errno;
    munmap(at, length);
    for (size_t i = 0; !error && i < (length + page - 1) / page; i++)
        *bytes += pages[i] & 1 ? page : 0;
    return error;
}

static errint_t
count_pages(int fd, const char *path, uint64_t *bytes)
{
    unsigned char *pages;
    errint_t error = 0;
    struct stat st;
    uint64_t size;

    *bytes = 0;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!may_count_pages(path, &st))
        return -EPERM;
    pages = malloc(WINDOW / (size_t)sysconf(_SC_PAGESIZE));
    if (!pages)
        return -ENOMEM;
    size = (uint64_t)st.st_size;
    for (uint64_t from = 0; !error && from < size; from += WINDOW)
        error = count_window(fd, from, size - from < WINDOW ? (size_t)(size - from) : WINDOW, pages,
                             bytes);
    free(pages);
    return error;
}

errint_t
cache_bytes(const char *path, uint64_t *bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    errint_t error;

    *bytes = 0;
    if (fd < 0)
        return -errno;
    error = count_pages(fd, path, bytes);
    close(fd);
    return error;
}

/* ---- eviction ---- */

/* Evicts one file of `*size` bytes, and returns how many of them remain. */
static errint_t
evict_file(const char *path, uint64_t *left, uint64_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    errint_t error = 0;
    struct stat st;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        error = -errno;
    else
        *size = (uint64_t)st.st_size;
    if (!error)
        fdatasync(fd); /* dirty pages are not evicted */
    for (int i = 0; !error && i < TRIES; i++) {
        struct timespec pause = {0, 10000000}; /* a page may be in use for a moment */

        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        error = count_pages(fd, path, left);
        if (error || *left == 0)
            break;
        nanosleep(&pause, NULL);
    }
    close(fd);
    return error;
}

/* Evicts all files. `*stays` is the file with the most bytes left (`*left`); NULL: none. */
static errint_t
evict_files(char *const *paths, size_t count, struct eviction *eviction, const char **stays,
            uint64_t *left, struct reason *reason)
{
    *stays = NULL;
    for (size_t i = 0; i < count; i++) {
        uint64_t remaining = 0, size = 0;
        errint_t error = evict_file(paths[i], &remaining, &size);

        if (error == -EPERM) {
            eviction->unverified = true;
        } else if (error) {
            return reason_set(reason, error, "Cache", "%s: %s", paths[i], strerror(-error));
        } else if (remaining > size / 100 && (!*stays || remaining > *left)) {
            *stays = paths[i];
            *left = remaining;
        }
    }
    return 0;
}

static bool
drop_page_cache(void)
{
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, "1", 1) == 1;

    if (fd >= 0)
        close(fd);
    return done;
}

errint_t
cache_evict(char *const *paths, size_t count, struct eviction *eviction, struct reason *reason)
{
    const char *stays;
    uint64_t left = 0;
    errint_t error = evict_files(paths, count, eviction, &stays, &left, reason);

    if (!error && stays && drop_page_cache()) {
        eviction->dropped_all = true;
        error = evict_files(paths, count, eviction, &stays, &left, reason);
    }
    if (!error && stays)
        return reason_set(reason, -EBUSY, "Cache",
                          "cannot be read cold: %" PRIu64 " bytes of %s stay in the page cache",
                          left, stays);
    return error;
}
