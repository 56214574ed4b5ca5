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

/* A key and value of `__metadata__`, or of a GGUF file, in table->text. Both may contain NUL. */
struct st_metadata {
    uint32_t key, key_length;
    uint32_t value, value_length : 31;
    uint32_t is_json : 1; /* the value is JSON, else a string; only in GGUF files */
};

struct gguf_info; /* format/gguf_info.h */

/* A validated header. Immutable; one allocation, freed by st_table_free(). */
struct st_table {
    uint64_t data_start; /* offset of the data in the file */
    uint64_t data_length; /* bytes of data: the file's length - data_start */
    uint32_t count;
    uint32_t metadata_count;
    bool has_metadata; /* there is a `__metadata__`, which may be empty */
    const struct st_tensor *tensors; /* in file order: by begin, end, then name; in a GGUF file, in
                                      * the order of the header */
    const struct st_metadata *metadata; /* sorted by key */
    const uint64_t *dims;
    const char *text; /* strings without terminators */
    const struct gguf_info *gguf; /* NULL: not a GGUF file */
    uint32_t refused_count; /* tensors, and storages without a tensor, that cannot be shown and are
                             * not in the table */
    const char *refused; /* the reasons for the first of them, a line each, with its newline; NULL:
                          * none */
    size_t bytes; /* size of the allocation */
};

void st_table_free(struct st_table *table); /* NULL is allowed */

/*
 * Readers call this before they allocate memory whose size depends on the file: `bytes` in
 * addition to earlier calls. If it fails, the read fails with its error and reason. Readers accept
 * NULL, which admits everything.
 */
typedef errint_t st_admit(void *arg, uint64_t bytes, struct reason *reason);
errint_t st_admit_bytes(st_admit *admit, void *arg, uint64_t bytes, struct reason *reason);

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
    size_t info; /* bytes for builder->info; a multiple of 8 */
    bool has_metadata;
};

struct st_builder {
    struct st_table *table; /* `count` and `metadata_count`: added so far */
    struct st_tensor *tensors;
    struct st_metadata *metadata;
    uint64_t *dims;
    void *info; /* all zero */
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
    const char *dtype_text; /* the name of a DTYPE_UNKNOWN; else NULL */
    const uint64_t *dims;
    uint64_t begin, end; /* see struct st_tensor */
    enum dtype dtype;
    uint32_t rank; /* of `dims` */
};

/* False: more than was counted, for example because the file has changed since. */
bool st_builder_add(struct st_builder *builder, const struct st_entry *entry);
/* Text with its length; may contain NUL. */
struct st_text {
    const char *text;
    size_t length;
};
/* Adds a pair of metadata. False: more than was counted. */
bool st_builder_add_pair(struct st_builder *builder, struct st_text key, struct st_text value,
                         bool is_json);

/* Sets the refused tensors of the table. The lines, with their NUL, must have been counted as text.
 */
void st_builder_set_refused(struct st_builder *builder, uint32_t count, const char *lines);

/* With a reason: -EBADMSG (two tensors have the same name), -ENOMEM. */
errint_t st_builder_check_names(const struct st_builder *builder, struct reason *reason);

/* Puts the tensors in file order, see struct st_table. */
void st_builder_sort(struct st_builder *builder);

#endif
