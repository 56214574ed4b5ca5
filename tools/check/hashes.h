/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of --hashes: SHA-256, dtype and shape of each tensor of each checkpoint. It does not
 * name shards, so it remains valid if a checkpoint is re-cut or merged.
 *
 *   {"llama/model": {"lm_head.weight": "0a1b... BF16 [128256, 4096]", ...}, ...}
 */
#ifndef FSTFS_CHECK_HASHES_H
#define FSTFS_CHECK_HASHES_H

#include "tree.h"

/*
 * Compares the digests of the tree with the file `path`, or writes them to it if it does not exist
 * (`*written`). Adds differences to the tree's findings. Fails if the file cannot be read or
 * written, or does not contain hashes.
 */
errint_t hashes_compare(struct tree *tree, const char *path, bool *written, struct reason *reason);

#endif
