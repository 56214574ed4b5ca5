/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An opened checkpoint: its files, tensors and metadata.
 *
 * One thread fills it: checkpoint_new(), checkpoint_add_*(), checkpoint_finish(). After that any
 * thread may use it; it is immutable, except for members whose comment names a lock or that are
 * atomic.
 *
 * Tensors may be described by the xattrs of a mount that another user controls. Only
 * checkpoint_add_tensor() validates them: every tensor of a checkpoint is within its file and, if
 * its dtype is known, has the size of its shape and dtype.
 */
#ifndef FSTFS_CLIENT_CHECKPOINT_H
#define FSTFS_CLIENT_CHECKPOINT_H

#include "base/error.h"
#include "base/extent.h"
#include "fstfs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cufile_file;
struct memory_block;

/* A file that tensors are stored in. */
struct tensor_source {
    struct extent_list *list; /* the whole file: one extent, with a backing */
    const char *path;
    _Atomic(struct cufile_file *) cufile; /* NULL: not registered with cuFile */
    void *mapping; /* of the whole file; NULL: none. Guarded by the checkpoint's lock */
};

static inline struct backing *
source_backing(const struct tensor_source *source)
{
    return source->list->extents[0].backing;
}

/* The st_dev of the source's file system. */
static inline uint64_t
source_storage(const struct tensor_source *source)
{
    return source_backing(source)->identity.device;
}

struct client_tensor {
    struct fstfs_tensor public; /* first: the caller has its address */
    uint32_t source; /* index into `sources` */
};

struct fstfs_checkpoint {
    struct fstfs *fstfs;
    pthread_mutex_t lock;
    struct tensor_source *sources;
    size_t source_count;
    struct client_tensor *tensors; /* sorted by name */
    size_t count;
    struct fstfs_metadata *metadata; /* sorted by key */
    size_t metadata_count;
    char *through_mount; /* the reason for reading through the mount; NULL: the source is read */
    struct memory_block *blocks; /* of strings and shapes */
};

/* A tensor to add. checkpoint_add_tensor() copies all of it. */
struct tensor_description {
    const char *name, *dtype; /* not NUL-terminated */
    size_t name_length, dtype_length;
    const uint64_t *shape;
    unsigned rank;
    uint64_t size, offset; /* bytes; `offset` in the file */
    uint32_t source; /* from checkpoint_add_source() */
};

struct fstfs_checkpoint *checkpoint_new(struct fstfs *fstfs); /* NULL: out of memory */

/* Adds the file at the absolute `path` in the version `identity`; sets its index. -ENOMEM. */
errint_t checkpoint_add_source(struct fstfs_checkpoint *checkpoint, const char *path,
                               const struct file_identity *identity, uint32_t *source);

/* -ENOMEM. -EBADMSG, with fail(): the tensor is not within its file, or its size does not match
 * its shape and dtype. The size is not checked if the dtype is unknown. */
errint_t checkpoint_add_tensor(struct fstfs_checkpoint *checkpoint,
                               const struct tensor_description *description);

/* -ENOMEM. */
errint_t checkpoint_add_metadata(struct fstfs_checkpoint *checkpoint, const char *key,
                                 size_t key_length, const char *value, size_t value_length);

/* Sorts tensors and metadata; drops metadata whose values differ between files. */
void checkpoint_finish(struct fstfs_checkpoint *checkpoint);

void checkpoint_destroy(struct fstfs_checkpoint *checkpoint); /* NULL is allowed */

/* Whether the tensor, which may be NULL, is one of the checkpoint's. */
bool checkpoint_has(const struct fstfs_checkpoint *checkpoint, const struct fstfs_tensor *tensor);

#endif
