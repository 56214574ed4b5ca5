/* SPDX-License-Identifier: Apache-2.0 */
/* Stats and opens files by their path in the source, and decides when a check is due. */
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/open.h"
#include "catalog/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Returns the source's descriptor. If its directory is no longer reachable and another one is at
 * the source's path, the descriptor is first replaced by one of that directory. One thread checks
 * this; the others do not wait for it.
 */
static int
source_root(struct catalog *catalog)
{
    const char *path = catalog->source.path;
    enum renewal renewal;
    char name[QUOTED_SIZE];

    if (monotonic_ms() - atomic_load(&catalog->root_checked) < CATALOG_CHECK_MS ||
        atomic_exchange(&catalog->root_checking, true))
        return catalog->root_fd;
    renewal = renewal_renew(&catalog->source, catalog->root_fd);
    if (renewal == RENEWAL_DONE)
        log_warning("%s: was replaced by another directory, which is now shown",
                    quoted(name, path, strlen(path)));
    else if (renewal == RENEWAL_REFUSED && !catalog->has_reported_root)
        log_warning("%s: was replaced by another directory, which is not shown: users other than "
                    "root and the mounting user can replace directories above it; mount it again",
                    quoted(name, path, strlen(path)));
    catalog->has_reported_root = renewal == RENEWAL_REFUSED;
    atomic_store(&catalog->root_checked, monotonic_ms());
    atomic_store(&catalog->root_checking, false);
    return catalog->root_fd;
}

static int
open_in_source(struct catalog *catalog, const char *path, int flags)
{
    return open_at(source_root(catalog), *path ? path : ".", flags | O_CLOEXEC);
}

/* As stat(2), following links. */
static errint_t
stat_in_source(struct catalog *catalog, const char *path, struct file_identity *identity)
{
    int fd = open_in_source(catalog, path, O_PATH);
    errint_t error;

    memset(identity, 0, sizeof(*identity)); /* the analyzer does not know that errno is set */
    if (fd < 0)
        return fd;
    error = file_identity_from_fd(identity, fd);
    close(fd);
    return error;
}

struct source_dir *
source_dir_ref(struct source_dir *dir)
{
    pthread_mutex_lock(&dir->catalog->lock);
    dir->references++;
    pthread_mutex_unlock(&dir->catalog->lock);
    return dir;
}

errint_t
source_dir_stat(struct source_dir *dir, struct file_identity *identity)
{
    errint_t error = stat_in_source(dir->catalog, dir->path, identity);

    if (!error && !S_ISDIR(identity->mode))
        return -ENOTDIR;
    if (!error)
        atomic_store_explicit(&dir->device, identity->device, memory_order_relaxed);
    return error;
}

uint64_t
source_dir_device(const struct source_dir *dir)
{
    return atomic_load_explicit(&dir->device, memory_order_relaxed);
}

const char *
source_dir_path(const struct source_dir *dir)
{
    return dir->path;
}

errint_t
source_dir_file(struct source_dir *dir, const char *name, struct file_identity *identity)
{
    char *path = path_join(dir->path, name);
    errint_t error;

    if (!path)
        return -ENOMEM;
    error = stat_in_source(dir->catalog, path, identity);
    free(path);
    if (!error && !S_ISREG(identity->mode))
        return S_ISDIR(identity->mode) ? -EISDIR : -ENOENT;
    return error;
}

struct backing *
source_dir_backing(struct source_dir *dir, const char *name, const struct file_identity *identity)
{
    char *path = path_join(dir->path, name);
    struct backing *backing = NULL;

    if (path)
        backing = backing_new(dir->catalog->root_fd, path, identity);
    free(path);
    return backing;
}

int
source_dir_open_self(struct source_dir *dir)
{
    return open_in_source(dir->catalog, dir->path, O_RDONLY | O_DIRECTORY);
}

int
source_dir_open_path(struct source_dir *dir)
{
    return open_in_source(dir->catalog, dir->path, O_PATH | O_DIRECTORY);
}

int
source_dir_open(struct source_dir *dir, const char *name)
{
    char *path = path_join(dir->path, name);
    int fd;

    if (!path)
        return -ENOMEM;
    /* O_NONBLOCK: the path may now refer to a FIFO. */
    fd = open_at(dir->catalog->root_fd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0)
        /* Disable the kernel's readahead: its pages would stay in the page cache, and the marks in
         * them would trigger more readahead when the engine reads there. */
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    free(path);
    return fd;
}

bool
file_identity_equal(const struct file_identity *a, const struct file_identity *b)
{
    return file_identity_same_content(a, b) && a->mode == b->mode && a->owner == b->owner &&
           a->group == b->group;
}

/* ---- when a check is due ---- */

void
source_dir_expire(struct source_dir *dir)
{
    atomic_store(&dir->expired, monotonic_ms());
}

void
source_dir_expire_listing(struct source_dir *dir)
{
    atomic_store(&dir->listing_expired, monotonic_ms());
}

bool
source_dir_is_older(const struct source_dir *dir, uint64_t checked, uint64_t ms)
{
    return monotonic_ms() - checked >= ms || checked <= atomic_load(&dir->expired);
}

uint64_t
source_dir_checked(const struct source_dir *dir, uint64_t began)
{
    return began <= atomic_load(&dir->expired) ? began : monotonic_ms();
}
