/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and checks the headers of GGUF files, versions 2 and 3, little-endian. No threads, no
 * state.
 *
 * A GGUF file is a fixed header of GGUF_HEAD_BYTES, key-value pairs, descriptions of tensors,
 * padding up to the alignment, and the data of the tensors, each padded to the alignment. Format
 * and checks: ggml/src/gguf.cpp of llama.cpp; sizes of types: ggml/src/ggml.c.
 */
#ifndef FSTFS_FORMAT_GGUF_H
#define FSTFS_FORMAT_GGUF_H

#include "format/st_table.h"

#include <stdbool.h>
#include <stdint.h>

#define GGUF_HEAD_BYTES 24u
#define GGUF_MAX_HEADER (UINT64_C(256) << 20) /* bytes in front of the data that are read */
#define GGUF_MAX_PAIRS 65536u
#define GGUF_MAX_KEYS (UINT64_C(1) << 20) /* bytes of all keys together */

/* Reading takes at most this many bytes for each tensor, and GGUF_LEAST more. */
#define GGUF_TENSOR_BYTES UINT64_C(192)
#define GGUF_LEAST (2 * GGUF_MAX_KEYS + UINT64_C(1048576))

/* A range of bytes of the file. */
struct gguf_range {
    uint64_t start, end;
};

struct gguf_file {
    /* `data_start` is that of the data; tensors are in file order, their shapes in the order of
     * NumPy, the reverse of GGUF's. A type without a dtype of safetensors has DTYPE_UNKNOWN and its
     * ggml name ("Q4_K") as text. */
    struct st_table *table;
    uint32_t version;
    uint32_t alignment;
    uint64_t pair_count; /* key-value pairs */
    struct gguf_range pairs; /* where they are */
    struct gguf_range
        split[3]; /* the pairs split.no, split.count and split.tensors.count; 0: none */
    uint32_t split_number; /* of this part, from 0 */
    uint32_t split_count; /* parts; 0: it is not split */
    uint64_t split_tensors; /* in all parts */
};

/* Whether the first 4 bytes of a file are GGUF's. */
bool gguf_has_magic(const void *first);

/*
 * Reads the open file `fd` of `file_size` bytes. `admit` is called before `bytes` more of memory
 * are used; an error of it, with its reason, ends the read. -EBADMSG with a reason: refused;
 * -ENOMEM, -ESTALE and errors of pread(2), with a reason.
 */
errint_t gguf_read(int fd, uint64_t file_size,
                   errint_t (*admit)(void *arg, uint64_t bytes, struct reason *reason), void *arg,
                   struct gguf_file *file, struct reason *reason);
void gguf_file_free(struct gguf_file *file); /* all zero is allowed */

/* Bytes in a row of a tensor whose type has no dtype: its last dimension, in blocks. */
uint64_t gguf_row_bytes(const struct st_table *table, const struct st_tensor *tensor);

#endif
