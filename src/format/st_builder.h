/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills a struct st_table, one allocation of a size that was counted before. For the readers of
 * formats (safetensors.c, torch.c).
 */
#ifndef FSTFS_FORMAT_ST_BUILDER_H
#define FSTFS_FORMAT_ST_BUILDER_H

#include "format/safetensors.h"

/* Sizes of a table's arrays. */
struct st_counts {
    size_t tensors;
    size_t metadata;
    size_t dims;
    size_t text;
    bool has_metadata;
};

struct st_builder {
    struct st_table *table; /* its `count` and `metadata_count` are those added so far */
    struct st_tensor *tensors;
    struct st_metadata *metadata;
    uint64_t *dims;
    char *text;
    uint32_t dim_count;
    uint32_t text_length;
    struct st_counts left; /* room for st_builder_add() */
};

size_t st_counts_bytes(const struct st_counts *counts); /* of a table with these */

/* Allocates the table, which st_table_free() frees. False: out of memory. */
bool st_builder_init(struct st_builder *builder, const struct st_counts *counts);

/* A tensor to add. */
struct st_entry {
    const char *name;
    size_t name_length;
    enum dtype dtype;
    const char *dtype_text; /* of DTYPE_UNKNOWN; else NULL */
    const uint64_t *dims;
    uint32_t rank;
    uint64_t begin, end; /* see struct st_tensor */
};

/* False: there is more than was counted, as when the file has changed since. */
bool st_builder_add(struct st_builder *builder, const struct st_entry *entry);
/* Within what was counted. */
void st_builder_add_metadata(struct st_builder *builder, const char *key, const char *value);

/* -EBADMSG with a reason: two tensors have one name; -ENOMEM. */
errint_t st_builder_check_names(const struct st_builder *builder, struct reason *reason);

/* Puts the tensors in file order, see struct st_table. */
void st_builder_sort(struct st_builder *builder);

#endif
