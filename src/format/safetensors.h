/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Safetensors headers: parsed, checked and written.
 *
 * A safetensors file is an 8-byte little-endian N, N bytes of JSON, and the
 * tensors' data. The checks are those of the reference (huggingface/safetensors,
 * safetensors/src/tensor.rs, `read_metadata` and `validate`) in its order and in
 * its terms, and one more: a name that stands twice is refused. Everything here
 * is a function of its arguments: no threads, no state.
 */
#ifndef FSTFS_FORMAT_SAFETENSORS_H
#define FSTFS_FORMAT_SAFETENSORS_H

#include "base/buffer.h"
#include "base/error.h"
#include "format/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_MAX_HEADER 100000000u /* N above it is HeaderTooLarge; N equal to it is read */

/* One tensor of a table. Its strings and shape lie in the table, see below. */
struct st_tensor {
    uint64_t begin; /* data_offsets: bytes from the start of the data */
    uint64_t end;
    uint32_t name; /* where in table->text */
    uint32_t name_length; /* bytes; the name may be empty and may hold NUL */
    uint32_t shape; /* where in table->dims */
    uint32_t rank; /* number of dimensions; 0: a scalar */
    uint32_t dtype_text; /* DTYPE_UNKNOWN only: the name in table->text */
    uint16_t dtype_text_length;
    uint8_t dtype; /* enum dtype */
};

/* `__metadata__`: one key and its value, both in table->text. */
struct st_metadata {
    uint32_t key, key_length;
    uint32_t value, value_length;
};

/* A checked header. Immutable, one allocation, freed with st_table_free(). */
struct st_table {
    uint64_t data_start; /* 8 + N: where in the file the data begins */
    uint64_t data_length; /* bytes of data: the file's length - data_start */
    uint32_t count;
    uint32_t metadata_count;
    bool has_metadata; /* `__metadata__` was there (it may be empty) */
    const struct st_tensor *tensors; /* in file order: by begin, end, then name */
    const struct st_metadata *metadata; /* sorted by key */
    const uint64_t *dims;
    const char *text; /* not terminated strings */
    size_t bytes; /* memory the table takes, all of it */
};

/*
 * Checks the first 8 bytes of a file of `file_size` bytes (rules 1 to 3:
 * HeaderTooSmall, HeaderTooLarge, InvalidHeaderLength) and gives N. `first`
 * needs min(8, file_size) bytes. -EBADMSG and the reason when refused.
 */
errint_t st_header_length(const void *first, uint64_t file_size, uint64_t *n,
                          struct reason *reason);

/*
 * Parses and checks the N bytes of JSON of a file of `file_size` bytes (rules 4
 * to 7 and duplicates). -EBADMSG with the reason when refused, -ENOMEM. A dtype
 * nobody knows is no error: the tensor is kept with DTYPE_UNKNOWN and its size
 * is not checked against its shape.
 */
errint_t st_table_parse(const char *json, uint64_t n, uint64_t file_size, struct st_table **table,
                        struct reason *reason);

/* Reads and checks the header of the open file `fd` (pread; EINTR and short
 * reads handled). Also -errno of the read, with the reason. */
errint_t st_table_read(int fd, uint64_t file_size, struct st_table **table, struct reason *reason);

void st_table_free(struct st_table *table); /* NULL is allowed */

/* The dtype's name, known or not; not terminated. */
const char *st_dtype_text(const struct st_table *table, const struct st_tensor *tensor,
                          size_t *length);

/*
 * Writes a header piece by piece into `out` (which must be empty at begin):
 * the 8 bytes of N, then the JSON. After the last tensor, st_header_finish()
 * pads with spaces until 8 + N is a multiple of `align` and fills N in.
 * Tensors are given in the order of their offsets.
 */
void st_header_begin(struct buffer *out);
/* One pair of `__metadata__`; all of them before the first tensor. */
void st_header_metadata(struct buffer *out, const char *key, size_t key_length, const char *value,
                        size_t value_length);
void st_header_tensor(struct buffer *out, const char *name, size_t name_length, const char *dtype,
                      size_t dtype_length, const uint64_t *dims, uint32_t rank, uint64_t begin,
                      uint64_t end);
/* -EFBIG when N would be over ST_MAX_HEADER (safetensors could not read it),
 * -ENOMEM when the buffer failed. */
errint_t st_header_finish(struct buffer *out, uint32_t align);

#endif
