/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Index files (`model.safetensors.index.json`): which shard holds which tensor.
 */
#ifndef FSTFS_FORMAT_INDEX_H
#define FSTFS_FORMAT_INDEX_H

#include "base/buffer.h"
#include "base/error.h"
#include "format/container.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_MAX_INDEX 200000000u /* bytes of an index file; larger ones are refused */

/* Reading and parsing an index takes at most this many times its size in memory, plus a fixed size
 * for struct st_index, and about 40 times the size of `metadata` (at most 64 KiB) for cJSON. */
#define ST_INDEX_FACTOR UINT64_C(6)

struct st_index_entry {
    uint32_t name, name_length; /* the tensor's, in index->text */
    uint32_t shard; /* index into shards */
};

/* A checked index. Immutable, freed with st_index_free(). */
struct st_index {
    const struct container *container; /* of the files that it names */
    uint32_t count;
    uint32_t shard_count;
    const struct st_index_entry *entries; /* sorted by name (memcmp, then length) */
    const char *const *shards; /* file names, terminated, sorted (strcmp), each once */
    const char *text;
    bool has_byte_order_mark; /* json.load() of a file opened as text refuses it */
    bool has_total_size;
    uint64_t total_size; /* metadata.total_size, if it is a whole number */
    char bad_total_size[QUOTED_SIZE]; /* any other value of total_size, as JSON; or "" */
    const char *metadata; /* if it is an object of at most 64 KiB: its text, valid JSON */
    size_t metadata_length; /* 0: there is none */
    size_t bytes; /* all memory of the index */
};

/*
 * Parses and checks an index of files of `container`. -EBADMSG with a reason (rule "InvalidIndex"):
 * the text is not JSON by the strict rules of headers (except that a byte order mark and metadata
 * of any form are accepted); it has no object `weight_map` of strings; it names a tensor twice; or
 * a file name is not a plain base name with a suffix of the container (it is empty, contains '/',
 * '\\' or NUL, or starts with "."). -ENOMEM.
 */
errint_t st_index_parse(const char *json, size_t length, const struct container *container,
                        struct st_index **index, struct reason *reason);
void st_index_free(struct st_index *index); /* NULL is allowed */

#endif
