/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mount of fstfs says of its files: where their bytes lie below it.
 */
#ifndef FSTFS_CLIENT_MOUNT_H
#define FSTFS_CLIENT_MOUNT_H

#include "base/error.h"
#include "base/extent.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether the path is on a mount of fstfs, also where that is bound elsewhere. */
bool mount_is_ours(const char *path);

/* user.fstfs.extents: of a tensor, or of a file that is one of the source. */
struct mount_extent {
    char *path;
    uint64_t offset, length;
    uint64_t version;
};

/* user.fstfs.source: of what is made of a checkpoint. */
struct mount_origin {
    char *directory, *stem;
    uint64_t version;
    char **shards; /* their file names in the directory, sorted, each once... */
    uint32_t shard_count; /* ...0: the mount does not say */
};

/* -ENODATA: the file has none; -EBADMSG: it cannot be understood; -ENOMEM, and what
 * the system says. On 0 the caller frees the strings. */
errint_t mount_extent(const char *path, struct mount_extent *extent);
errint_t mount_origin(const char *path, struct mount_origin *origin);
void mount_origin_free(struct mount_origin *origin);

/* Any xattr: malloc'ed, with a NUL behind it, `length` without that. -ENODATA, ... */
errint_t mount_xattr(const char *path, const char *name, char **value, size_t *length);

/* The file below as it is now, if it can be opened and is that version; else an
 * error, and why in `why`. */
errint_t mount_look_below(const struct mount_extent *extent, struct file_identity *identity,
                          struct reason *why);

#endif
