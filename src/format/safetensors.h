/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses, checks and writes safetensors headers. No global state; any thread.
 *
 * A safetensors file is a length N (8 bytes, little-endian), N bytes of JSON, and the data of the
 * tensors. The checks, their order and their names are those of the reference implementation
 * (huggingface/safetensors, safetensors/src/tensor.rs, `read_metadata` and `validate`). One check
 * is added: a tensor name that appears twice is refused.
 */
#ifndef FSTFS_FORMAT_SAFETENSORS_H
#define FSTFS_FORMAT_SAFETENSORS_H

#include "base/buffer.h"
#include "base/error.h"
#include "format/st_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_METADATA_KEY "__metadata__"
#define ST_MAX_HEADER 100000000u /* the largest N that is accepted */

/* Reading and parsing a header of N bytes, and making the layout of its table, takes at most this
 * many times N bytes of memory: for the text, for the table (at worst, one-digit dimensions: 8
 * bytes for 2 of text) and for sorting (at worst, pairs of metadata). A unit test asserts it. The
 * first read, of ST_FIRST_READ bytes, and sizeof(struct st_table) are not included. */
#define ST_PARSE_FACTOR UINT64_C(7)

/* Bytes of the first read of a file, which contain the whole header of most files. */
#define ST_FIRST_READ 65536u
/* Headers and indexes above this size are read once before memory for them is admitted, so that
 * little memory is charged while storage does not respond. */
#define ST_LARGE_HEADER (UINT64_C(4) << 20)

/* Why a header cannot contain a tensor of this name: a predicate, such as "is not UTF-8". NULL: it
 * can. */
const char *st_name_refusal(const char *name, size_t length);

/*
 * Checks the first 8 bytes of a file of `file_size` bytes (rules 1 to 3: HeaderTooSmall,
 * HeaderTooLarge, InvalidHeaderLength) and returns N in *n. `first` has min(8, file_size) bytes.
 * -EBADMSG with a reason: refused.
 */
errint_t st_header_length(const void *first, uint64_t file_size, uint64_t *n,
                          struct reason *reason);

/*
 * Parses and checks the N bytes of JSON of a file of `file_size` bytes (rules 4 to 7, and
 * duplicates). -EBADMSG with a reason: refused; -ENOMEM. An unknown dtype is not an error: the
 * tensor gets DTYPE_UNKNOWN, and its size is not compared with its shape.
 */
errint_t st_table_parse(const char *json, uint64_t n, uint64_t file_size, struct st_table **table,
                        struct reason *reason);

/*
 * Reads, parses and checks the header of the open file `fd`. Errors as above, and those of
 * pread(2), with a reason. `admit` (see st_table.h) is called once, for ST_PARSE_FACTOR times the
 * bytes of the header; a header above ST_LARGE_HEADER is read into the page cache before that.
 */
errint_t st_table_read(int fd, uint64_t file_size, st_admit *admit, void *arg,
                       struct st_table **table, struct reason *reason);

/*
 * Writes a header. Call begin, then metadata for each pair, then tensor for each tensor in the
 * order of offsets, then finish. `out` is empty at first.
 */
void st_header_begin(struct buffer *out);
void st_header_metadata(struct buffer *out, const char *key, size_t key_length, const char *value,
                        size_t value_length);
void st_header_tensor(struct buffer *out, const char *name, size_t name_length, const char *dtype,
                      size_t dtype_length, const uint64_t *dims, uint32_t rank, uint64_t begin,
                      uint64_t end);
/* Pads with spaces until 8 + N is a multiple of `align`, and fills in N. -EFBIG: N is above
 * ST_MAX_HEADER; -ENOMEM: the buffer failed. */
errint_t st_header_finish(struct buffer *out, uint32_t align);

#define ST_SUFFIX ".safetensors" /* the usual one, see format/container.h */

#endif
