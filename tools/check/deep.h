/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads every byte of what a tree holds, and looks at it.
 */
#ifndef FSTFS_CHECK_DEEP_H
#define FSTFS_CHECK_DEEP_H

#include "tree.h"

struct deep_result {
    uint64_t bytes; /* read */
    uint64_t hub_files; /* whose SHA-256 the hub knows and was compared */
    double seconds;
};

/*
 * Reads all targets of the tree once, in the order they lie in, with as many threads
 * as there are processors to hash and look; shows progress. Fills in the digests of
 * tensors where they are asked for. What is wrong is in the tree's findings. Fails
 * where it cannot be begun; -EINTR when a signal came.
 */
errint_t deep_run(struct tree *tree, struct deep_result *result);

#endif
