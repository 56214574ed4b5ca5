/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the xattrs of a mount of fstfs, which describe where the bytes of its files are stored in
 * the source. Any user can mount a file system with such xattrs, so they are untrusted.
 * checkpoint_add_tensor() validates offsets and lengths.
 */
#ifndef FSTFS_CLIENT_MOUNT_H
#define FSTFS_CLIENT_MOUNT_H

#include "base/error.h"
#include "base/extent.h"
#include "base/mountinfo.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether the path is on a mount of fstfs or on a bind mount of one. */
bool mount_is_fstfs(const char *path);

/* As mount_is_fstfs(); then also sets *owner. */
bool mount_find_owner(const char *path, struct fuse_owner *owner);

/*
 * Opens a file or directory with O_PATH, for which the daemon gets no open request. Returns a
 * descriptor, which the caller closes, or a negative errno. On a mount, the descriptor of a file
 * belongs to one version: so do all xattrs and attributes that are read by it.
 */
int mount_open(const char *path);

/* user.fstfs.extents of a file that is one extent of a source file: a tensor or an unchanged
 * shard. */
struct mount_extent {
    char *path; /* of the source file; malloc'ed */
    uint64_t offset, length; /* bytes */
    uint64_t version; /* file_identity_hash() of the source file */
};

/* user.fstfs.source of a file or directory that is generated from a checkpoint. */
struct mount_origin {
    char *directory, *stem;
    uint64_t version; /* the daemon's checkpoint->version */
    char **shards; /* file names in the directory, sorted, each once; NULL: the mount does not name
                      them */
    uint64_t *shard_versions; /* file_identity_hash() of each; 0: not reported */
    uint32_t shard_count; /* 0: the mount reports neither names nor versions */
    uint64_t tensors; /* number of tensors of the checkpoint */
    char *unsound; /* why the checkpoint is incomplete or ambiguous; NULL: it is neither */
};

/* `fd` may be open in any way. -ENODATA: no such xattr; -EBADMSG: it cannot be parsed; -ENOMEM;
 * errors of getxattr(2). On success the caller frees extent->path or calls mount_origin_free(),
 * respectively. */
errint_t mount_read_extent(int fd, struct mount_extent *extent);
errint_t mount_read_origin(int fd, struct mount_origin *origin);
void mount_origin_free(struct mount_origin *origin);

/* Reads any xattr. *value is malloc'ed and NUL-terminated; *length excludes the NUL. Errors as
 * above. */
errint_t mount_read_xattr(int fd, const char *name, char **value, size_t *length);

/* The xattrs user.safetensors.* or user.gguf.* of a tensor file, as the mount reports them. */
struct mount_tensor {
    char *name, *dtype; /* NUL-terminated */
    size_t name_length, dtype_length;
    uint64_t *shape;
    unsigned rank;
};

/* Errors as above. On success the caller calls mount_tensor_free(). */
errint_t mount_read_tensor(int fd, struct mount_tensor *tensor);
void mount_tensor_free(struct mount_tensor *tensor); /* all zero is allowed */

/* Sets the identity of the source file. Errors, with a reason in `why`: the file cannot be opened;
 * -ESTALE: it is not the version of the extent. */
errint_t mount_check_source(const struct mount_extent *extent, struct file_identity *identity,
                            struct reason *why);

#endif
