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

#include "format/gguf_pairs.h"

#include <stdbool.h>
#include <stdint.h>

#define GGUF_HEAD_BYTES 24u

/* Reading N tensors and M key-value pairs takes at most N * GGUF_TENSOR_BYTES + M * GGUF_PAIR_BYTES
 * + GGUF_LEAST bytes of memory. */
#define GGUF_TENSOR_BYTES UINT64_C(192)
#define GGUF_LEAST (GGUF_PAIRS_LEAST + UINT64_C(1048576))

enum { GGUF_MAX_DIMS = 4 };

/* Whether the first 4 bytes of a file are the magic number of GGUF. */
bool gguf_has_magic(const void *first);

/*
 * Reads the open file `fd` of `file_size` bytes. Tensors have their shapes in NumPy's order, the
 * reverse of GGUF's. A type that safetensors does not have is DTYPE_UNKNOWN, with the name in ggml
 * ("Q4_K") as text. The metadata are the key-values as gguf_pairs.h describes, sorted by key.
 *
 * See st_table.h for `admit`. Errors, with a reason: -EBADMSG (refused), -ENOMEM, -ESTALE (the file
 * changed), errors of pread(2).
 */
errint_t gguf_read(int fd, uint64_t file_size, st_admit *admit, void *arg, struct st_table **table,
                   struct reason *reason);

/* The number that ggml uses for the type of a tensor. */
uint32_t gguf_type_number(const struct st_table *table, const struct st_tensor *tensor);

/* Bytes of a row (the last dimension) of a tensor. */
uint64_t gguf_row_bytes(const struct st_table *table, const struct st_tensor *tensor);

/* `bytes`, rounded up to the alignment, a power of 2. */
static inline uint64_t
gguf_padded(uint64_t bytes, uint32_t alignment)
{
    return (bytes + alignment - 1) & ~(uint64_t)(alignment - 1);
}

#endif
