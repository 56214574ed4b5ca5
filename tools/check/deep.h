/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks every byte of a tree's targets. */
#ifndef FSTFS_CHECK_DEEP_H
#define FSTFS_CHECK_DEEP_H

#include "tree.h"

struct deep_result {
    uint64_t bytes; /* read */
    uint64_t hub_files; /* compared with the hub's SHA-256 */
    uint64_t records; /* of PyTorch archives, compared with their CRC-32 */
    uint64_t records_without_crc;
    double seconds;
};

/*
 * Reads each target once, with one thread for each processor, at most 8, each of which reads in
 * order of offsets, and shows progress. Adds findings to the tree and, with --hashes, sets the
 * digests of tensors. -ENOMEM and other errors if reading cannot start; -EINTR after a signal.
 */
errint_t deep_run(struct tree *tree, struct deep_result *result);

#endif
