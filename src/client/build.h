/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the tables of an opened checkpoint, one file, tensor and pair of metadata
 * after another. One thread at a time. All functions: -ENOMEM.
 *
 * What is given may come from a mount of somebody else's, so build_tensor() checks it, for all
 * that opens: nothing after it does.
 */
#ifndef FSTFS_CLIENT_BUILD_H
#define FSTFS_CLIENT_BUILD_H

#include "client/private.h"

#include <stddef.h>
#include <stdint.h>

/* A tensor as it is given: nothing is kept of what it points to. */
struct tensor_given {
    const char *name, *dtype; /* not terminated */
    size_t name_length, dtype_length;
    const uint64_t *shape;
    unsigned rank;
    uint64_t size, offset;
    uint32_t source; /* the file it lies in, by its place */
};

struct fstfs_checkpoint *build_begin(struct fstfs *fstfs); /* NULL: out of memory */

/* A file that tensors lie in: the version `identity` of `path`, which is absolute. */
errint_t build_source(struct fstfs_checkpoint *checkpoint, const char *path,
                      const struct file_identity *identity, uint32_t *source);

/* Adds a tensor. -EBADMSG, said by fail(): it is not within its file, or its size is not that of
 * its shape and dtype (where the dtype is known). */
errint_t build_tensor(struct fstfs_checkpoint *checkpoint, const struct tensor_given *given);

errint_t build_metadata(struct fstfs_checkpoint *checkpoint, const char *key, size_t key_length,
                        const char *value, size_t value_length);

/* All are there, in any order: sorts them, and leaves out metadata that differs. */
void build_end(struct fstfs_checkpoint *checkpoint);

void checkpoint_destroy(struct fstfs_checkpoint *checkpoint); /* NULL is allowed */

#endif
