/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The xattrs of a mount of fstfs, which say where the bytes of its files are stored in the source.
 * Anyone can mount a file system with such xattrs: offsets and lengths are not validated here but
 * by checkpoint_add_tensor().
 */
#ifndef FSTFS_CLIENT_MOUNT_H
#define FSTFS_CLIENT_MOUNT_H

#include "base/error.h"
#include "base/extent.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether the path is on a mount of fstfs, which may be a bind mount. */
bool mount_is_fstfs(const char *path);

/* user.fstfs.extents of a file that is one extent of a source file: a tensor, an unchanged shard.
 */
struct mount_extent {
    char *path; /* of the source file; malloc'ed */
    uint64_t offset, length; /* bytes */
    uint64_t version; /* file_identity_hash() of the source file */
};

/* user.fstfs.source of a file or directory that is made of a checkpoint. */
struct mount_origin {
    char *directory, *stem;
    uint64_t version; /* checkpoint_version() */
    char **shards; /* file names in the directory, sorted, each once */
    uint32_t shard_count; /* 0: the mount does not name them */
};

/* -ENODATA: there is no such xattr; -EBADMSG: it cannot be parsed; -ENOMEM; errors of getxattr(2).
 * On 0 the caller frees the strings. */
errint_t mount_read_extent(const char *path, struct mount_extent *extent);
errint_t mount_read_origin(const char *path, struct mount_origin *origin);
void mount_origin_free(struct mount_origin *origin);

/* Any xattr: malloc'ed and NUL-terminated; `length` is without the NUL. */
errint_t mount_read_xattr(const char *path, const char *name, char **value, size_t *length);

/* The identity of the source file, if it can be opened and is the version of the extent; else an
 * error, described in `why`. */
errint_t mount_check_source(const struct mount_extent *extent, struct file_identity *identity,
                            struct reason *why);

#endif
