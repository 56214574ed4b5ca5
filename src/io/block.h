/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unit of storage reads: offsets, lengths and buffer addresses of direct reads are multiples of
 * it. Most devices require less. Files that require more are not read with O_DIRECT.
 */
#ifndef FSTFS_IO_BLOCK_H
#define FSTFS_IO_BLOCK_H

#include <stdint.h>

#define BLOCK_SIZE 4096

static inline uint64_t
block_down(uint64_t offset)
{
    return offset / BLOCK_SIZE * BLOCK_SIZE;
}

static inline uint64_t
block_up(uint64_t offset)
{
    return block_down(offset + BLOCK_SIZE - 1);
}

#endif
