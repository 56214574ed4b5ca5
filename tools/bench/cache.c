/* SPDX-License-Identifier: Apache-2.0 */
#include "cache.h"

#include "common/page_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Counts or evicts all pages of an open file. */
typedef errint_t cache_range_function(int fd, const struct page_range *range, uint64_t *pages);

/* Calls the function for the whole file. Returns the pages that it counts, in bytes, and the size
 * of the file unless `size` is NULL. */
static errint_t
cache_whole_file(const char *path, cache_range_function *function, uint64_t *bytes, uint64_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    errint_t error = 0;
    uint64_t pages = 0;
    struct stat st;

    *bytes = 0;
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        error = -errno;
    else
        error = function(fd, &(struct page_range){0, (uint64_t)st.st_size}, &pages);
    close(fd);
    if (error)
        return error;
    *bytes = pages * page_bytes();
    if (size)
        *size = (uint64_t)st.st_size;
    return 0;
}

errint_t
cache_bytes(const char *path, uint64_t *bytes)
{
    return cache_whole_file(path, page_cache_count, bytes, NULL);
}

/* ---- eviction ---- */

/* Evicts all files. `*stays` is the file with the most bytes left (`*left`); NULL: none. */
static errint_t
evict_files(char *const *paths, size_t count, struct eviction *eviction, const char **stays,
            uint64_t *left, struct reason *reason)
{
    *stays = NULL;
    for (size_t i = 0; i < count; i++) {
        uint64_t remaining = 0, size = 0;
        errint_t error = cache_whole_file(paths[i], page_cache_evict, &remaining, &size);

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
is_in_memory_only(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool in_memory = fd >= 0 && page_cache_is_storage(fd);

    if (fd >= 0)
        close(fd);
    return in_memory;
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

    if (!error && stays && !is_in_memory_only(stays) && drop_page_cache()) {
        eviction->dropped_all = true;
        error = evict_files(paths, count, eviction, &stays, &left, reason);
    }
    if (!error && stays)
        return reason_set(reason, -EBUSY, "Cache",
                          "cannot be read cold: %" PRIu64 " bytes of %s stay in the page cache",
                          left, stays);
    return error;
}
