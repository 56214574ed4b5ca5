/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes little-endian numbers of binary formats; reads exact ranges of a file. */
#ifndef FSTFS_FORMAT_BYTES_H
#define FSTFS_FORMAT_BYTES_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

static inline uint16_t
bytes_u16(const unsigned char *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t
bytes_u32(const unsigned char *at)
{
    return bytes_u16(at) | (uint32_t)bytes_u16(at + 2) << 16;
}

static inline uint64_t
bytes_u64(const unsigned char *at)
{
    return bytes_u32(at) | (uint64_t)bytes_u32(at + 4) << 32;
}

/* Sets the reason for `error`, the result of file_read() or file_read_through(), and returns
 * `error`, or -ESTALE instead of -ENODATA. */
errint_t bytes_read_failed(errint_t error, struct reason *reason);

/* Reads all bytes of [offset, offset + length). With a reason: -ESTALE (the file ends within the
 * range), errors of pread(2). */
errint_t bytes_read_at(int fd, void *to, size_t length, uint64_t offset, struct reason *reason);

#endif
