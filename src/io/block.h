/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block that storage is read by: offsets, lengths and buffers of direct reads are
 * whole ones. More than most devices ask for, and no more than any file system has.
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
