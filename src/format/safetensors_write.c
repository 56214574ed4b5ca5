/* SPDX-License-Identifier: Apache-2.0 */
/* Writes headers. See safetensors.h. */
#include "format/safetensors.h"

#include "base/text.h"
#include "format/json.h"

#include <errno.h>

#define EMPTY_HEADER 9 /* bytes after st_header_begin(): N and the opening brace */

const char *
st_name_refusal(const char *name, size_t length)
{
    size_t at;

    if (text_is(name, length, ST_METADATA_KEY))
        return "is the key of the metadata in a safetensors header";
    return json_check_utf8(name, length, &at) ? NULL : "is not UTF-8";
}

void
st_header_begin(struct buffer *out)
{
    buffer_add_u64le(out, 0);
    buffer_add_char(out, '{');
}

void
st_header_metadata(struct buffer *out, const char *key, size_t key_length, const char *value,
                   size_t value_length)
{
    if (buffer_failed(out))
        return;
    if (out->length == EMPTY_HEADER) {
        buffer_add_json_string(out, ST_METADATA_KEY, sizeof(ST_METADATA_KEY) - 1);
        buffer_add_text(out, ":{");
    } else if (!out->counting) {
        out->data[out->length - 1] = ','; /* replaces the closing brace */
    }
    buffer_add_json_string(out, key, key_length);
    buffer_add_char(out, ':');
    buffer_add_json_string(out, value, value_length);
    buffer_add_char(out, '}');
}

void
st_header_tensor(struct buffer *out, const char *name, size_t name_length, const char *dtype,
                 size_t dtype_length, const uint64_t *dims, uint32_t rank, uint64_t begin,
                 uint64_t end)
{
    if (out->length > EMPTY_HEADER)
        buffer_add_char(out, ',');
    buffer_add_json_string(out, name, name_length);
    buffer_add_text(out, ":{\"dtype\":");
    buffer_add_json_string(out, dtype, dtype_length);
    buffer_add_text(out, ",\"shape\":[");
    for (uint32_t i = 0; i < rank; i++) {
        if (i)
            buffer_add_char(out, ',');
        buffer_add_u64(out, dims[i]);
    }
    buffer_add_text(out, "],\"data_offsets\":[");
    buffer_add_u64(out, begin);
    buffer_add_char(out, ',');
    buffer_add_u64(out, end);
    buffer_add_text(out, "]}");
}

errint_t
st_header_finish(struct buffer *out, uint32_t align)
{
    buffer_add_char(out, '}');
    buffer_add_repeat(out, ' ', (align - out->length % align) % align);
    if (buffer_failed(out))
        return -ENOMEM;

    uint64_t n = out->length - 8;
    if (n > ST_MAX_HEADER)
        return -EFBIG;
    for (unsigned i = 0; i < 8 && !out->counting; i++)
        out->data[i] = (char)(n >> 8 * i);
    return 0;
}
