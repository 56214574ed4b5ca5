/* SPDX-License-Identifier: Apache-2.0 */
#include "sources.h"

#include "base/array.h"
#include "base/file.h"
#include "client/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

/* Adds the file `real`, which belongs to the input `path`. */
static errint_t
add_source_file(struct sources *sources, const char *real, const char *path)
{
    struct stat st;
    size_t number;
    char *copy;

    if (stat(real, &st) < 0)
        return 0; /* ignored: reading it will fail, too */
    sources->has_acl |= may_have_acl(real);
    number = inode_map_add(&sources->inodes, st.st_dev, st.st_ino, sources->count + 1);
    if (number <= sources->count)
        return number ? 0 : -ENOMEM;
    copy = strdup(path);
    if (copy && array_add(sources->paths, sources->count, copy))
        return 0; /* cppcheck-suppress memleak ; the array owns it */
    free(copy);
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

const char *
sources_find_in(const struct sources *sources, int directory, const char *name)
{
    struct stat st;
    size_t number = fstatat(directory, name, &st, 0) == 0
                        ? inode_map_find(&sources->inodes, st.st_dev, st.st_ino)
                        : 0;

    return number ? sources->paths[number - 1] : NULL;
}

void
sources_free(struct sources *sources)
{
    for (size_t i = 0; i < sources->count; i++)
        free(sources->paths[i]);
    free(sources->paths);
    inode_map_free(&sources->inodes);
}
