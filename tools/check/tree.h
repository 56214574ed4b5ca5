/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the checkpoints at the paths of the command line, checks their headers, and collects the
 * files that --deep reads.
 */
#ifndef FSTFS_CHECK_TREE_H
#define FSTFS_CHECK_TREE_H

#include "archive.h"
#include "base/extent.h"
#include "common/inode_map.h"
#include "findings.h"
#include "format/safetensors.h"
#include "options.h"
#include "sha256.h"

struct catalog;
struct checkpoint;

/* A file that is to be read, because its header is valid or its hash is known: once, even if
 * several paths lead to it. */
struct target {
    char *path; /* begins with the path on the command line */
    struct backing *backing; /* a reference */
    const struct st_table *table; /* of a model; NULL: there is none */
    struct archive archive; /* all zero: not an archive of torch.save() */
    char hub_sha256[SHA256_TEXT]; /* SHA-256 that the Hugging Face hub has for it, or "" */
    unsigned char (*digests)[SHA256_SIZE]; /* of its tensors, with --hashes; or NULL */
};

/* A checkpoint, or a single file that the command line names. */
struct model {
    char *key; /* its path below that of the command line, without suffix */
    size_t *targets; /* indexes into tree->targets */
    size_t target_count;
    struct checkpoint *checkpoint; /* a reference, which keeps the tables */
};

struct tree {
    const struct check_options *options;
    struct findings findings;
    struct target *targets; /* only with --deep */
    size_t target_count;
    struct model *models; /* only with --hashes or --nan, since they keep headers in memory */
    size_t model_count;
    struct catalog **catalogs; /* at most one for each path */
    size_t catalog_count;
    struct inode_map files, directories; /* those visited */
    uint64_t checkpoint_count, file_count, tensor_count, bytes; /* checked */
};

errint_t tree_init(struct tree *tree, const struct check_options *options);
void tree_free(struct tree *tree);

/* Checks the file, checkpoint or directory at a path. Adds problems to tree->findings. -ENOMEM. */
errint_t tree_check(struct tree *tree, const char *path);

#endif
