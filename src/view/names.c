/* SPDX-License-Identifier: Apache-2.0 */
#include "view/names.h"

#include "base/hash.h"

#include <stdio.h>
#include <string.h>

enum { MOST = FILE_NAME_SIZE - 1, HASH = 17 /* '~' and 16 digits */ };

static bool
must_escape(unsigned char c)
{
    return c < 0x20 || c == 0x7f || c == '/' || c == '%';
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
    if (length == 0 || length > MOST - suffix_length || name[0] == '.' || ends_as_cut(name, length))
        return false;
    for (size_t i = 0; i < length; i++)
        if (must_escape((unsigned char)name[i]))
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
    size_t at = 0;

    *cut = 0;
    *whole = true;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)name[i];
        bool escaped = must_escape(c) || (i == 0 && c == '.');

        if ((c & 0xc0) != 0x80 && at <= cut_room)
            *cut = at; /* a character boundary */
        if (at + (escaped ? 3 : 1) > room) {
            *whole = false;
            return at;
        }
        if (escaped)
            at += (size_t)snprintf(out + at, 4, "%%%02X", c);
        else
            out[at++] = (char)c;
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
