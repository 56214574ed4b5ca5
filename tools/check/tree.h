/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the paths of the command line lead to: finds the checkpoints, reads and
 * checks their headers, and keeps what is to be read whole.
 */
#ifndef FSTFS_CHECK_TREE_H
#define FSTFS_CHECK_TREE_H

#include "base/extent.h"
#include "common/inode_map.h"
#include "findings.h"
#include "format/safetensors.h"
#include "options.h"
#include "sha256.h"

struct catalog;
struct checkpoint;

/* A file with a sound header, to be read whole. Each file once, however many paths
 * lead to it. */
struct target {
    char *path; /* as the command line began it */
    struct backing *backing; /* a reference */
    const struct st_table *table;
    char hub_sha256[SHA256_TEXT]; /* what the hub says of it; or "" */
    unsigned char (*digests)[SHA256_SIZE]; /* of its tensors, once they are hashed; or NULL */
};

/* A checkpoint, or a file that was named by itself. */
struct model {
    char *key; /* path from the command line's on, without suffix */
    size_t *targets; /* indexes into tree->targets */
    size_t target_count;
    struct checkpoint *checkpoint; /* a reference that keeps the tables */
};

struct tree {
    const struct options *options;
    struct findings findings;
    struct target *targets; /* only where they are to be read whole, as all below */
    size_t target_count;
    struct model *models;
    size_t model_count;
    struct catalog **catalogs; /* one for each path at most */
    size_t catalog_count;
    struct inode_map files, directories; /* already met, by inode */
    uint64_t checkpoint_count, file_count, tensor_count, bytes; /* looked at */
};

errint_t tree_init(struct tree *tree, const struct options *options);
void tree_free(struct tree *tree);

/* Checks what a path means. What is wrong with it is in tree->findings; -ENOMEM. */
errint_t tree_check(struct tree *tree, const char *path);

#endif
