/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of one file and their offsets: the result of the reader of each container format
 * (safetensors.h, torch.h, gguf.h). No threads, no state.
 */
#ifndef FSTFS_FORMAT_ST_TABLE_H
#define FSTFS_FORMAT_ST_TABLE_H

#include "base/error.h"
#include "format/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A tensor. Strings and shapes are indices into the arrays of its table. */
struct st_tensor {
    uint64_t begin; /* data_offsets: bytes from the start of the data */
    uint64_t end;
    uint32_t name; /* in table->text */
    uint32_t name_length; /* bytes; the name may be empty and may contain NUL */
    uint32_t shape; /* in table->dims */
    uint32_t rank; /* number of dimensions; 0: a scalar */
    uint32_t dtype_text; /* DTYPE_UNKNOWN only: the name of the dtype, in table->text */
    uint16_t dtype_text_length;
    uint8_t dtype; /* enum dtype */
};

/* A key and value of `__metadata__`, in table->text. Both may contain NUL. */
struct st_metadata {
    uint32_t key, key_length;
    uint32_t value, value_length;
};

/* A validated header. Immutable; one allocation, freed by st_table_free(). */
struct st_table {
    uint64_t data_start; /* offset of the data in the file */
    uint64_t data_length; /* bytes of data: the file's length - data_start */
    uint32_t count;
    uint32_t metadata_count;
    bool has_metadata; /* there is a `__metadata__`, which may be empty */
    const struct st_tensor *tensors; /* in file order: by begin, end, then name */
    const struct st_metadata *metadata; /* sorted by key */
    const uint64_t *dims;
    const char *text; /* strings without terminators */
    size_t bytes; /* size of the allocation */
};

void st_table_free(struct st_table *table); /* NULL is allowed */

/* The name of the dtype, known or unknown, without a terminator. */
const char *st_dtype_text(const struct st_table *table, const struct st_tensor *tensor,
                          size_t *length);

/* ---- building a table: one allocation, whose size is counted first ---- */

/* Sizes of a table's arrays. */
struct st_counts {
    size_t tensors;
    size_t metadata;
    size_t dims;
    size_t text;
    bool has_metadata;
};

struct st_builder {
    struct st_table *table; /* `count` and `metadata_count`: added so far */
    struct st_tensor *tensors;
    struct st_metadata *metadata;
    uint64_t *dims;
    char *text;
    uint32_t dim_count;
    uint32_t text_length;
    struct st_counts left; /* what may still be added */
};

/* Bytes of a table with these counts. */
size_t st_counts_bytes(const struct st_counts *counts);

/* Allocates the table, which st_table_free() frees. False: out of memory. */
bool st_builder_init(struct st_builder *builder, const struct st_counts *counts);

/* A tensor to add. */
struct st_entry {
    const char *name;
    size_t name_length;
    enum dtype dtype;
    const char *dtype_text; /* the name of a DTYPE_UNKNOWN; else NULL */
    const uint64_t *dims;
    uint32_t rank;
    uint64_t begin, end; /* see struct st_tensor */
};

/* False: more than was counted, for example because the file has changed since. */
bool st_builder_add(struct st_builder *builder, const struct st_entry *entry);
/* Must not exceed the counts. */
void st_builder_add_metadata(struct st_builder *builder, const char *key, const char *value);

/* With a reason: -EBADMSG (two tensors have the same name), -ENOMEM. */
errint_t st_builder_check_names(const struct st_builder *builder, struct reason *reason);

/* Puts the tensors in file order, see struct st_table. */
void st_builder_sort(struct st_builder *builder);

#endif
