/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Untrusted names: file names of tensors, quoted text, JSON strings. This file has its own code to
 * undo each escape.
 *
 * Input: two names; the first ends at a byte 0xff.
 */
#include "fuzz.h"

#include "base/hash.h"
#include "base/utf8.h"
#include "format/json.h"
#include "view/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return 0;
}

static unsigned
hex(char c)
{
    return (unsigned)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
}

/* ---- file names ---- */

static bool
is_cut(const char *file, size_t length)
{
    return length >= 17 && file[length - 17] == '~' &&
           strspn(file + length - 16, "0123456789abcdef") >= 16;
}

/* Undoes %XX; at most `length` bytes. */
static size_t
undo(const char *file, size_t length, char *out)
{
    size_t used = 0;

    for (size_t i = 0; i < length; i++) {
        if (file[i] == '%' && i + 2 < length) {
            out[used++] = (char)(hex(file[i + 1]) << 4 | hex(file[i + 2]));
            i += 2;
        } else {
            out[used++] = file[i];
        }
    }
    return used;
}

/* Whether no character of the name has bytes on both sides of the offset `at`. */
static bool
is_between_characters(const char *name, size_t length, size_t at)
{
    uint32_t code;
    size_t i = 0;

    while (i < at) {
        unsigned used = utf8_decode(name + i, length - i, &code);

        i += used ? used : 1;
    }
    return i == at;
}

static void
check_file_name(const char *name, size_t length, const char *suffix)
{
    char file[FILE_NAME_SIZE], back[FILE_NAME_SIZE];
    size_t all = tensor_file_name(name, length, suffix, file), stem = all - strlen(suffix), used;

    EXPECT(all < FILE_NAME_SIZE && strlen(file) == all && all > strlen(suffix));
    EXPECT(strcmp(file + stem, suffix) == 0);
    EXPECT(file[0] != '.' && !strchr(file, '/'));
    for (size_t i = 0; i < all; i++)
        EXPECT((unsigned char)file[i] >= 0x20 && file[i] != 0x7f);
    EXPECT(tensor_name_is_plain(name, length, strlen(suffix)) ==
           (stem == length && memcmp(file, name, length) == 0));
    file[stem] = '\0';
    if (strcmp(file, "%") == 0) {
        EXPECT(length == 0);
    } else if (is_cut(file, stem)) {
        EXPECT(strtoull(file + stem - 16, NULL, 16) == hash64(name, length, 0));
        used = undo(file, stem - 17, back);
        EXPECT(used <= length && memcmp(back, name, used) == 0);
        EXPECT(is_between_characters(name, length, used));
    } else {
        used = undo(file, stem, back);
        EXPECT(used == length && memcmp(back, name, length) == 0);
    }
}

/* Expects that different names have the same file name only if their hashes collide. */
static void
check_two(const char *a, size_t a_length, const char *b, size_t b_length, const char *suffix)
{
    char x[FILE_NAME_SIZE], y[FILE_NAME_SIZE];

    tensor_file_name(a, a_length, suffix, x);
    tensor_file_name(b, b_length, suffix, y);
    if (fuzz_compare(a, a_length, b, b_length) == 0)
        EXPECT(strcmp(x, y) == 0);
    else if (strcmp(x, y) == 0)
        EXPECT(hash64(a, a_length, 0) == hash64(b, b_length, 0));
}

/* ---- quoted text ---- */

static void
check_quoted(const char *name, size_t length, size_t most)
{
    struct buffer out = BUFFER_INIT;
    char shown[QUOTED_SIZE];
    size_t at = 0, i = 0;

    buffer_add_quoted(&out, name, length, most);
    EXPECT(!buffer_failed(&out));
    EXPECT(fuzz_is_shown(out.data, out.length));
    while (i < out.length && !(at <= most && i + 3 == out.length && length > most)) {
        char c = out.data[i++];

        if (c == '\\' && out.data[i] == 'x') {
            c = (char)(hex(out.data[i + 1]) << 4 | hex(out.data[i + 2]));
            i += 3;
        } else if (c == '\\') {
            EXPECT(out.data[i++] == '\\');
        }
        EXPECT(at < length && c == name[at++]);
    }
    EXPECT(at == length || (at <= most && memcmp(out.data + i, "...", 3) == 0));
    buffer_free(&out);
    quoted(shown, name, length);
    EXPECT(strnlen(shown, QUOTED_SIZE) < QUOTED_SIZE && fuzz_is_shown(shown, strlen(shown)));
}

/* ---- JSON ---- */

/* Bytes that are not UTF-8 are written as Python does: \udcXX is the byte XX. Other strings are
 * read back by src/format/json.c. */
static void
check_json(const char *name, size_t length)
{
    struct buffer out = BUFFER_INIT;
    struct json_fault fault;
    struct json_reader reader;
    struct json_span raw;
    char *back;
    size_t at;

    buffer_add_json_string(&out, name, length);
    back = malloc(out.length);
    EXPECT(!buffer_failed(&out) && json_check_utf8(out.data, out.length, &at));
    if (json_check_utf8(name, length, &at)) {
        EXPECT(json_check(out.data, out.length, &fault) == 0);
    } else {
        EXPECT(memmem(out.data, out.length, "\\udc", 4));
        EXPECT(json_check(out.data, out.length, &fault) == -EBADMSG);
    }
    EXPECT(back && json_check_names(out.data, out.length, &fault) == 0);
    reader = json_read(out.data, out.length);
    raw = json_take_string(&reader);
    EXPECT(json_unescape(raw, NULL) == length);
    EXPECT(json_unescape(raw, back) == length && memcmp(back, name, length) == 0);
    free(back);
    buffer_free(&out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {(const char *)data, size};
    size_t lengths[2];
    const char *names[2] = {input_text(&input, &lengths[0]), input.at};
    static const char *const suffixes[] = {"", ".npy"};

    lengths[1] = input.left;
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < 2; i++)
            check_file_name(names[i], lengths[i], suffixes[s]);
        check_two(names[0], lengths[0], names[1], lengths[1], suffixes[s]);
    }
    for (int i = 0; i < 2; i++) {
        check_quoted(names[i], lengths[i], lengths[i]);
        check_quoted(names[i], lengths[i], lengths[i] / 2);
        check_json(names[i], lengths[i]);
    }
    return 0;
}
