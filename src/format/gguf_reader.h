/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the header of a GGUF file sequentially through a buffer. Used only by gguf.c and
 * gguf_pairs.c. */
#ifndef FSTFS_FORMAT_GGUF_READER_H
#define FSTFS_FORMAT_GGUF_READER_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#define GGUF_MAX_HEADER (UINT64_C(256) << 20) /* limit of the bytes before the data */

enum { GGUF_WINDOW = 65536 }; /* limit of the bytes that one call returns */

struct gguf_reader {
    int fd;
    uint64_t file_size;
    uint64_t at; /* offset of the next byte */
    uint64_t window_start;
    size_t window_length;
    struct reason *reason;
    unsigned char window[GGUF_WINDOW];
};

/* NULL: out of memory. The reason is set on every failure of the functions below: -EBADMSG,
 * -ESTALE (the file changed), errors of pread(2). */
struct gguf_reader *gguf_reader_new(int fd, uint64_t file_size, struct reason *reason);
void gguf_reader_free(struct gguf_reader *in);

/* Takes the next `length` bytes, at most GGUF_WINDOW. They are valid until the next call. */
errint_t gguf_take(struct gguf_reader *in, size_t length, const unsigned char **bytes);
errint_t gguf_take_u32(struct gguf_reader *in, uint32_t *value);
errint_t gguf_take_u64(struct gguf_reader *in, uint64_t *value);
/* Skips `length` bytes without reading them. */
errint_t gguf_skip(struct gguf_reader *in, uint64_t length);

#define gguf_refuse(reason, rule, ...) reason_set(reason, -EBADMSG, rule, __VA_ARGS__)

#endif
