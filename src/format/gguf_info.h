/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of a GGUF file other than its tensors and key-values: table->gguf of st_table.h. */
#ifndef FSTFS_FORMAT_GGUF_INFO_H
#define FSTFS_FORMAT_GGUF_INFO_H

#include <stdbool.h>
#include <stdint.h>

/* A range of bytes of the file; {0, 0}: absent. */
struct gguf_range {
    uint64_t start, end;
};

enum gguf_split_key { GGUF_SPLIT_NO, GGUF_SPLIT_COUNT, GGUF_SPLIT_TENSORS, GGUF_SPLIT_KEYS };

struct gguf_info {
    uint64_t pair_count; /* key-value pairs, including those of split[] */
    struct gguf_range pairs; /* all key-value pairs */
    /* The pairs split.no, split.count and split.tensors.count, and their values. */
    struct gguf_range split[GGUF_SPLIT_KEYS];
    uint64_t split_value[GGUF_SPLIT_KEYS]; /* of a part: its number, from 0; the number of parts;
                                            * the number of tensors in all parts */
    uint32_t version;
    uint32_t alignment;
};

/* Whether the file is one of several parts. */
static inline bool
gguf_is_part(const struct gguf_info *info)
{
    return info->split_value[GGUF_SPLIT_COUNT] > 1;
}

#endif
