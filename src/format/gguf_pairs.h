/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and checks the key-value pairs of a GGUF file, and stores them as text.
 *
 * A string is stored as it is, any other value as JSON. Arrays of more than GGUF_ARRAY_MOST
 * elements (vocabularies), strings and arrays of more than GGUF_VALUE_MOST bytes of text, and those
 * beyond GGUF_VALUES_MOST bytes in total are skipped. They are represented by a JSON object with
 * their type and size: {"type": "array", "of": "string", "count": 128256} or {"type": "string",
 * "bytes": 100000}. No threads, no state.
 */
#ifndef FSTFS_FORMAT_GGUF_PAIRS_H
#define FSTFS_FORMAT_GGUF_PAIRS_H

#include "base/buffer.h"
#include "format/gguf_info.h"
#include "format/gguf_reader.h"
#include "format/st_table.h"

#define GGUF_MAX_PAIRS 65536u
#define GGUF_MAX_KEYS (UINT64_C(1) << 20) /* bytes of all keys together */
#define GGUF_VALUES_MOST (UINT64_C(1) << 20)

enum { GGUF_ARRAY_MOST = 64, GGUF_VALUE_MOST = 32768 };

/* Reading N pairs takes at most N * GGUF_PAIR_BYTES + GGUF_PAIRS_LEAST bytes of memory, including
 * the copy in the table. */
#define GGUF_PAIR_BYTES UINT64_C(384)
#define GGUF_PAIRS_LEAST (5 * (GGUF_MAX_KEYS + GGUF_VALUES_MOST))

struct gguf_pair {
    uint32_t key, key_length, value, value_length; /* in gguf_pairs.text */
    bool is_json;
};

struct gguf_pairs {
    struct buffer text;
    struct gguf_pair *pairs; /* sorted by key, without the split keys; malloc'ed */
    uint32_t count;
};

/* Reads `count` pairs, at most GGUF_MAX_PAIRS, and sets all of `info` but its version. Errors: see
 * gguf_reader.h; -ENOMEM. */
errint_t gguf_pairs_read(struct gguf_reader *in, uint64_t count, struct gguf_info *info,
                         struct gguf_pairs *pairs);
void gguf_pairs_free(struct gguf_pairs *pairs);

/* Adds the pairs to the counts, and to a table of these counts. */
void gguf_pairs_count(const struct gguf_pairs *pairs, struct st_counts *counts);
void gguf_pairs_add(const struct gguf_pairs *pairs, struct st_builder *builder);

#endif
