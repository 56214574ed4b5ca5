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
#include <sys/vfs.h>
#include <unistd.h>

/* Returns whether the file is on a file system (overlayfs, FUSE) that may show files of another
 * one, with its own inode and device numbers. Sets *has_acl, unless that is NULL, if the file may
 * have an ACL. */
static bool
probe_source_file(int directory, const char *name, bool *has_acl)
{
    int fd = openat(directory, name, O_PATH | O_CLOEXEC);
    struct statfs fs;
    bool found;

    if (fd < 0)
        return false;
    found = fstatfs(fd, &fs) == 0 &&
            (fs.f_type == OVERLAYFS_SUPER_MAGIC || fs.f_type == FUSE_SUPER_MAGIC);
    if (has_acl)
        *has_acl = *has_acl || file_may_have_acl(fd);
    close(fd);
    return found;
}

/* Adds the file `real`, which belongs to the input `path`. */
static errint_t
add_source_file(struct sources *sources, const char *real, const char *path)
{
    struct source_entry entry;
    size_t number;

    if (file_identity_at(&entry.identity, AT_FDCWD, real))
        return 0; /* ignored: reading it will fail, too */
    entry.is_stacked = probe_source_file(AT_FDCWD, real, &sources->has_acl);
    number = inode_map_add(&sources->inodes, &entry.identity);
    if (number <= sources->count)
        return number ? 0 : -ENOMEM;
    entry.path = strdup(path);
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
    int fd;

    if (error || !mount_is_fstfs(path))
        return error;
    fd = mount_open(path);
    if (fd < 0)
        return 0; /* ignored: reading it will fail, too */
    if (mount_read_extent(fd, &extent) == 0) {
        error = add_source_file(sources, extent.path, path);
        free(extent.path);
    } else if (mount_read_origin(fd, &origin) == 0) {
        error = add_origin_shards(sources, &origin, path);
        mount_origin_free(&origin);
    }
    close(fd);
    return error;
}

static bool
is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Returns the number of the source that has another device number but the same size and times, and
 * so is the same file; 0: none. A copy has another change time, which programs cannot set. */
static size_t
find_shown_source(const struct sources *sources, const struct file_identity *identity, bool stacked)
{
    for (size_t i = 0; i < sources->count; i++) {
        const struct file_identity *other = &sources->all[i].identity;

        if ((stacked || sources->all[i].is_stacked) && other->device != identity->device &&
            other->size == identity->size && is_same_time(&other->modified, &identity->modified) &&
            is_same_time(&other->changed, &identity->changed))
            return i + 1;
    }
    return 0;
}

const char *
sources_find_in(const struct sources *sources, int directory, const char *name)
{
    struct file_identity identity;
    size_t number;

    if (file_identity_at(&identity, directory, name))
        return NULL;
    number = inode_map_find(&sources->inodes, &identity);
    if (number == 0)
        number = find_shown_source(sources, &identity, probe_source_file(directory, name, NULL));
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
