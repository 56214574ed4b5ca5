/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of --hashes: for each checkpoint its tensors' SHA-256, dtype and shape.
 * It names no shards, so a checkpoint that is cut or merged anew has the same.
 *
 *   {"llama/model": {"lm_head.weight": "0a1b... BF16 [128256, 4096]", ...}, ...}
 */
#ifndef FSTFS_CHECK_HASHES_H
#define FSTFS_CHECK_HASHES_H

#include "tree.h"

/*
 * Compares what was hashed with the file `path`, or writes that where it is not
 * there (`*written`). What differs is in the tree's findings. Fails, with the
 * reason, where the file can be neither read nor written or is none of hashes.
 */
errint_t hashes_compare(struct tree *tree, const char *path, bool *written, struct reason *reason);

#endif
