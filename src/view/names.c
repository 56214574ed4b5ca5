/* SPDX-License-Identifier: Apache-2.0 */
#include "view/names.h"

#include "base/hash.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

enum { MOST = FILE_NAME_SIZE - 1, HASH = 17 /* '~' and 16 digits */ };

/* Whether the first character is escaped. *used: its number of bytes; 1 if it is not UTF-8. */
static bool
must_escape(const char *text, size_t length, size_t *used)
{
    uint32_t code;

    *used = utf8_decode(text, length, &code);
    if (*used)
        return code < 0x20 || code == 0x7f || code == '/' || code == '%';
    *used = 1;
    return true;
}

static bool
ends_as_cut(const char *name, size_t length)
{
    if (length < HASH || name[length - HASH] != '~')
        return false;
    for (size_t i = length - HASH + 1; i < length; i++)
        if (!strchr("0123456789abcdef", name[i]) || !name[i])
            return false;
    return true;
}

bool
tensor_name_is_plain(const char *name, size_t length, size_t suffix_length)
{
    size_t used;

    if (length == 0 || length > MOST - suffix_length || name[0] == '.' || ends_as_cut(name, length))
        return false;
    for (size_t i = 0; i < length; i += used)
        if (must_escape(name + i, length - i, &used))
            return false;
    return true;
}

/*
 * Escapes as much of the name as fits into `room` bytes and returns its length. `cut`: the longest
 * length up to `cut_room` that ends between two characters. `whole`: whether all of the name fits.
 */
static size_t
escape_tensor_name(const char *name, size_t length, size_t room, size_t cut_room, char *out,
                   size_t *cut, bool *whole)
{
    size_t at = 0, used;

    *cut = 0;
    *whole = true;
    for (size_t i = 0; i < length; i += used) {
        bool escaped = must_escape(name + i, length - i, &used) || (i == 0 && name[i] == '.');

        if (at <= cut_room)
            *cut = at; /* a character boundary */
        if (at + (escaped ? 3 : used) > room) {
            *whole = false;
            return at;
        }
        if (escaped) {
            at += (size_t)snprintf(out + at, 4, "%%%02X", (unsigned char)name[i]);
        } else {
            memcpy(out + at, name + i, used);
            at += used;
        }
    }
    if (at <= cut_room)
        *cut = at;
    return at;
}

size_t
tensor_file_name(const char *name, size_t length, const char *suffix, char out[FILE_NAME_SIZE])
{
    size_t room = MOST - strlen(suffix), at, cut;
    bool whole;

    if (length == 0) {
        strcpy(out, "%");
        at = 1;
    } else {
        at = escape_tensor_name(name, length, room, room - HASH, out, &cut, &whole);
        if (!whole || ends_as_cut(out, at))
            at = cut + (size_t)snprintf(out + cut, HASH + 1, "~%016llx",
                                        (unsigned long long)hash64(name, length, 0));
    }
    strcpy(out + at, suffix);
    return at + strlen(suffix);
}
