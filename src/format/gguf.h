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
#define GGUF_MAX_HEADER (UINT64_C(256) << 20) /* most bytes before the data */
#define GGUF_MAX_PAIRS 65536u
#define GGUF_MAX_KEYS (UINT64_C(1) << 20) /* bytes of all keys together */

/* Reading N tensors takes at most N * GGUF_TENSOR_BYTES + GGUF_LEAST bytes of memory. */
#define GGUF_TENSOR_BYTES UINT64_C(192)
#define GGUF_LEAST (2 * GGUF_MAX_KEYS + UINT64_C(1048576))

/* A range of bytes of the file. */
struct gguf_range {
    uint64_t start, end;
};

struct gguf_file {
    /* Tensors in file order. Shapes are in NumPy's order, the reverse of GGUF's. A type that
     * safetensors does not have is DTYPE_UNKNOWN, with the name in ggml ("Q4_K") as text. */
    struct st_table *table;
    uint32_t version;
    uint32_t alignment;
    uint64_t pair_count; /* key-value pairs */
    struct gguf_range pairs; /* all key-value pairs */
    struct gguf_range
        split[3]; /* the pairs split.no, split.count, split.tensors.count; {0, 0}: absent */
    uint32_t split_number; /* number of this part, from 0 */
    uint32_t split_count; /* number of parts; 0: not split */
    uint64_t split_tensors; /* number of tensors in all parts */
};

/* Whether the first 4 bytes of a file are the magic number of GGUF. */
bool gguf_has_magic(const void *first);

/*
 * Reads the open file `fd` of `file_size` bytes. `admit` is called before `bytes` more of memory
 * are allocated; if it fails, the read fails with its error and reason. Errors, with a reason:
 * -EBADMSG (refused), -ENOMEM, -ESTALE (the file changed), errors of pread(2).
 */
errint_t gguf_read(int fd, uint64_t file_size,
                   errint_t (*admit)(void *arg, uint64_t bytes, struct reason *reason), void *arg,
                   struct gguf_file *file, struct reason *reason);
void gguf_file_free(struct gguf_file *file); /* all zero is allowed */

/* Bytes of a row (the last dimension) of a tensor with DTYPE_UNKNOWN. */
uint64_t gguf_row_bytes(const struct st_table *table, const struct st_tensor *tensor);

#endif
