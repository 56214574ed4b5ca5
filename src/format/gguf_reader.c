/* SPDX-License-Identifier: Apache-2.0 */
/* See gguf_reader.h. */
#include "format/gguf_reader.h"

#include "format/bytes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct gguf_reader *
gguf_reader_new(int fd, uint64_t file_size, struct reason *reason)
{
    struct gguf_reader *in = calloc(1, sizeof(*in));

    if (!in)
        return NULL;
    in->fd = fd;
    in->file_size = file_size;
    in->reason = reason;
    return in;
}

void
gguf_reader_free(struct gguf_reader *in)
{
    explicit_bzero(in->window, sizeof(in->window)); /* may contain weights */
    free(in);
}

static errint_t
refuse_cut_off(const struct gguf_reader *in)
{
    return gguf_refuse(in->reason, "GgufCutOff",
                       "the file ends within its header, at byte %" PRIu64, in->file_size);
}

errint_t
gguf_take(struct gguf_reader *in, size_t length, const unsigned char **bytes)
{
    uint64_t left = in->file_size - in->at;
    errint_t error;

    if (length > left)
        return refuse_cut_off(in);
    if (in->at + length > GGUF_MAX_HEADER)
        return gguf_refuse(in->reason, "GgufTooLarge", "the header has more than %" PRIu64 " bytes",
                           GGUF_MAX_HEADER);
    if (in->at < in->window_start || in->at + length > in->window_start + in->window_length) {
        in->window_start = in->at;
        in->window_length = left < GGUF_WINDOW ? (size_t)left : GGUF_WINDOW;
        error = bytes_read_at(in->fd, in->window, in->window_length, in->at, in->reason);
        if (error) {
            in->window_length = 0;
            return error;
        }
    }
    *bytes = in->window + (in->at - in->window_start);
    in->at += length;
    return 0;
}

errint_t
gguf_skip(struct gguf_reader *in, uint64_t length)
{
    if (length > in->file_size - in->at)
        return refuse_cut_off(in);
    in->at += length;
    return 0;
}

errint_t
gguf_take_u32(struct gguf_reader *in, uint32_t *value)
{
    const unsigned char *bytes = NULL;
    errint_t error = gguf_take(in, 4, &bytes);

    *value = error ? 0 : bytes_u32(bytes);
    return error;
}

errint_t
gguf_take_u64(struct gguf_reader *in, uint64_t *value)
{
    const unsigned char *bytes = NULL;
    errint_t error = gguf_take(in, 8, &bytes);

    *value = error ? 0 : bytes_u64(bytes);
    return error;
}
