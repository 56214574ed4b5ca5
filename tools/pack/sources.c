/* SPDX-License-Identifier: Apache-2.0 */
#include "sources.h"

#include "base/array.h"
#include "base/file.h"
#include "client/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static bool
may_have_acl(const char *path)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    bool found = fd >= 0 && file_may_have_acl(fd);

    if (fd >= 0)
        close(fd);
    return found;
}

/* Whether the file system shows files of another one, with other inode numbers or devices. */
static bool
is_stacked(int directory, const char *name)
{
    int fd = openat(directory, name, O_PATH | O_CLOEXEC);
    struct statfs fs;
    bool found = fd >= 0 && fstatfs(fd, &fs) == 0 &&
                 (fs.f_type == OVERLAYFS_SUPER_MAGIC || fs.f_type == FUSE_SUPER_MAGIC);

    if (fd >= 0)
        close(fd);
    return found;
}

/* Adds the file `real`, which belongs to the input `path`. */
static errint_t
add_source_file(struct sources *sources, const char *real, const char *path)
{
    struct stat st;
    size_t number;
    struct source_entry entry;

    if (stat(real, &st) < 0)
        return 0; /* ignored: reading it will fail, too */
    sources->has_acl |= may_have_acl(real);
    number = inode_map_add(&sources->inodes, st.st_dev, st.st_ino, sources->count + 1);
    if (number <= sources->count)
        return number ? 0 : -ENOMEM;
    entry = (struct source_entry){
        .path = strdup(path),
        .device = st.st_dev,
        .is_stacked = is_stacked(AT_FDCWD, real),
        .size = st.st_size,
        .mtime = st.st_mtim,
        .ctime = st.st_ctim,
    };
    if (entry.path && array_add(sources->all, sources->count, entry))
        return 0;
    free(entry.path);
    return -ENOMEM;
}

static errint_t
add_origin_shards(struct sources *sources, const struct mount_origin *origin, const char *path)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < origin->shard_count; i++) {
        char *shard = path_join(origin->directory, origin->shards[i]);

        if (!shard)
            return -ENOMEM;
        error = add_source_file(sources, shard, path);
        free(shard);
    }
    return error;
}

errint_t
sources_add(struct sources *sources, const char *path)
{
    struct mount_origin origin;
    struct mount_extent extent;
    errint_t error = add_source_file(sources, path, path);

    if (error || !mount_is_fstfs(path))
        return error;
    if (mount_read_extent(path, &extent) == 0) {
        error = add_source_file(sources, extent.path, path);
        free(extent.path);
    } else if (mount_read_origin(path, &origin) == 0) {
        error = add_origin_shards(sources, &origin, path);
        mount_origin_free(&origin);
    }
    return error;
}

static bool
is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Returns the number of the source that is the same file on another device, by size and times; 0:
 * none. The change time cannot be set, so that a copy has another one. */
static size_t
find_shown_source(const struct sources *sources, const struct stat *st, bool stacked)
{
    for (size_t i = 0; i < sources->count; i++) {
        const struct source_entry *entry = &sources->all[i];

        if ((stacked || entry->is_stacked) && entry->device != st->st_dev &&
            entry->size == st->st_size && is_same_time(&entry->mtime, &st->st_mtim) &&
            is_same_time(&entry->ctime, &st->st_ctim))
            return i + 1;
    }
    return 0;
}

const char *
sources_find_in(const struct sources *sources, int directory, const char *name)
{
    struct stat st;
    size_t number;

    if (fstatat(directory, name, &st, 0) < 0)
        return NULL;
    number = inode_map_find(&sources->inodes, st.st_dev, st.st_ino);
    if (number == 0)
        number = find_shown_source(sources, &st, is_stacked(directory, name));
    return number ? sources->all[number - 1].path : NULL;
}

void
sources_free(struct sources *sources)
{
    for (size_t i = 0; i < sources->count; i++)
        free(sources->all[i].path);
    free(sources->all);
    inode_map_free(&sources->inodes);
}
