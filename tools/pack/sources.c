/* SPDX-License-Identifier: Apache-2.0 */
#include "sources.h"

#include "base/array.h"
#include "base/file.h"
#include "client/mount.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { MOUNT_DEPTH_MOST = 16 }; /* of mounts of fstfs that show each other's files */

/* Returns whether the file is on a file system (overlayfs, FUSE) that may show files of another
 * one, with its own inode and device numbers. Sets *may_have_acl, unless that is NULL, if the file
 * may have an ACL. */
static bool
probe_source_file(int directory, const char *name, bool *may_have_acl)
{
    int fd = openat(directory, name, O_PATH | O_CLOEXEC);
    struct statfs fs;
    bool found;

    if (fd < 0) {
        if (may_have_acl)
            *may_have_acl = true;
        return false;
    }
    found = fstatfs(fd, &fs) == 0 &&
            (fs.f_type == OVERLAYFS_SUPER_MAGIC || fs.f_type == FUSE_SUPER_MAGIC);
    if (may_have_acl)
        *may_have_acl = *may_have_acl || file_may_have_acl(fd);
    close(fd);
    return found;
}

/* Adds the file `real`, which belongs to the input `path`. *is_stacked: a mount may have made it of
 * other files. */
static errint_t
add_source_file(struct sources *sources, const char *real, const char *path, bool *is_stacked)
{
    struct source_entry entry;
    size_t number;

    *is_stacked = false;
    if (file_identity_at(&entry.identity, AT_FDCWD, real)) {
        sources->may_have_acl = true;
        return 0; /* not accessible by this path; a mount may still report its version */
    }
    entry.is_stacked = probe_source_file(AT_FDCWD, real, &sources->may_have_acl);
    *is_stacked = entry.is_stacked;
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
add_reported_version(struct sources *sources, uint64_t version, const char *path)
{
    struct reported_source reported = {NULL, version};

    /* Consecutive files of a directory of tensors usually have the same version. */
    if (sources->reported_count &&
        sources->reported[sources->reported_count - 1].version == version)
        return 0;
    reported.path = strdup(path);
    if (reported.path && array_add(sources->reported, sources->reported_count, reported))
        return 0;
    free(reported.path);
    return -ENOMEM;
}

static errint_t add_input_path(struct sources *sources, const char *real, const char *path,
                               unsigned depth);

/* Whether the file with this path is the one that a mount has reported. `version`: 0 if it has
 * reported only the name. */
static bool
is_reported_file(const char *real, uint64_t version)
{
    struct file_identity identity;

    return file_identity_at(&identity, AT_FDCWD, real) == 0 &&
           (version == 0 || file_identity_hash(&identity, 0) == version);
}

/* Adds a file that a mount has reported. The mount does not show its ACL. */
static errint_t
add_reported_file(struct sources *sources, const char *directory, const char *name,
                  uint64_t version, const char *path, unsigned depth)
{
    char *real = path_join(directory, name);
    errint_t error = real ? add_input_path(sources, real, path, depth) : -ENOMEM;

    if (!error && !is_reported_file(real, version))
        sources->may_have_acl = true;
    free(real);
    return error || !version ? error : add_reported_version(sources, version, path);
}

/* Adds all files of the directory, unless it is not accessible here. */
static errint_t
add_source_directory(struct sources *sources, const char *directory, const char *path,
                     unsigned depth)
{
    DIR *stream = opendir(directory);
    const struct dirent *entry;
    errint_t error = 0;

    while (stream && !error && (entry = readdir(stream)))
        if (entry->d_type != DT_DIR)
            error = add_reported_file(sources, directory, entry->d_name, 0, path, depth);
    if (stream)
        closedir(stream);
    else
        sources->may_have_acl = true;
    return error;
}

static errint_t
add_origin_shards(struct sources *sources, const struct mount_origin *origin, const char *path,
                  unsigned depth)
{
    errint_t error = 0;

    if (!origin->shards) /* there are too many names for an xattr */
        error = add_source_directory(sources, origin->directory, path, depth);
    for (uint32_t i = 0; !error && i < origin->shard_count; i++)
        error = origin->shards ? add_reported_file(sources, origin->directory, origin->shards[i],
                                                   origin->shard_versions[i], path, depth)
                               : add_reported_version(sources, origin->shard_versions[i], path);
    return error;
}

/* Adds a file and, if a mount reports them, the files that it is made of, which may be on a mount
 * of fstfs, too. */
static errint_t
add_input_path(struct sources *sources, const char *real, const char *path, unsigned depth)
{
    struct mount_origin origin;
    struct mount_extent extent;
    bool is_stacked;
    errint_t error = add_source_file(sources, real, path, &is_stacked);
    int fd;

    if (error || !is_stacked)
        return error;
    fd = depth == MOUNT_DEPTH_MOST ? -ELOOP : mount_open(real);
    if (fd < 0) {
        sources->may_have_acl = true;
        return 0; /* as above */
    }
    if (mount_read_extent(fd, &extent) == 0) {
        error = add_reported_file(sources, "", extent.path, extent.version, path, depth + 1);
        free(extent.path);
    } else if (mount_read_origin(fd, &origin) == 0) {
        error = add_origin_shards(sources, &origin, path, depth + 1);
        mount_origin_free(&origin);
    } else if (mount_is_fstfs(real)) {
        sources->may_have_acl = true; /* its source may just have been replaced */
    }
    close(fd);
    return error;
}

errint_t
sources_add(struct sources *sources, const char *path)
{
    return add_input_path(sources, path, path, 0);
}

errint_t
sources_add_in(struct sources *sources, const char *directory, const char *name)
{
    char *path = path_join(directory, name);
    errint_t error = path ? sources_add(sources, path) : -ENOMEM;

    free(path);
    return error;
}

static bool
is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Returns the input for which a mount has reported this version; NULL: none. */
static const char *
find_reported_source(const struct sources *sources, const struct file_identity *identity)
{
    uint64_t version = file_identity_hash(identity, 0);

    for (size_t i = 0; i < sources->reported_count; i++)
        if (sources->reported[i].version == version)
            return sources->reported[i].path;
    return NULL;
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
    return number ? sources->all[number - 1].path : find_reported_source(sources, &identity);
}

void
sources_free(struct sources *sources)
{
    for (size_t i = 0; i < sources->count; i++)
        free(sources->all[i].path);
    free(sources->all);
    for (size_t i = 0; i < sources->reported_count; i++)
        free(sources->reported[i].path);
    free(sources->reported);
    inode_map_free(&sources->inodes);
}
