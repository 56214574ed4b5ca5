/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A 64-bit hash that is the same on every host and in every version, for inode numbers and
 * shortened file names: FNV-1a, then the finalizer of MurmurHash3. Not cryptographic.
 */
#ifndef FSTFS_BASE_HASH_H
#define FSTFS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t
hash64(const void *bytes, size_t length, uint64_t seed)
{
    const unsigned char *at = bytes;
    uint64_t hash = 0xcbf29ce484222325u ^ seed;

    for (size_t i = 0; i < length; i++)
        /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): any bytes */
        hash = (hash ^ at[i]) * 0x100000001b3u;
    hash ^= hash >> 33;
    hash *= 0xff51afd7ed558ccdu;
    hash ^= hash >> 33;
    hash *= 0xc4ceb9fe1a85ec53u;
    return hash ^ (hash >> 33);
}

#endif
