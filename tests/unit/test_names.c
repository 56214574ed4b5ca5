/* SPDX-License-Identifier: Apache-2.0 */
/* File names of tensors: escaping, truncation, and that they are unique. */
#include "view/names.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
assert_file_name(const char *name, size_t length, const char *suffix, const char *file)
{
    char out[FILE_NAME_SIZE];
    size_t got = tensor_file_name(name, length, suffix, out);

    ck_assert_str_eq(out, file);
    ck_assert_uint_eq(got, strlen(file));
    ck_assert(tensor_name_is_plain(name, length, strlen(suffix)) ==
              (strlen(file) == length + strlen(suffix) && memcmp(name, file, length) == 0));
}

START_TEST(escapes)
{
    assert_file_name("lm_head.weight", 14, "", "lm_head.weight");
    assert_file_name("a.b", 3, ".npy", "a.b.npy");
    assert_file_name("", 0, "", "%");
    assert_file_name("", 0, ".npy", "%.npy");
    assert_file_name("a/b%c", 5, "", "a%2Fb%25c");
    assert_file_name(".", 1, "", "%2E");
    assert_file_name("..", 2, "", "%2E.");
    assert_file_name(".hidden.x", 9, "", "%2Ehidden.x");
    assert_file_name("nul\0end", 7, "", "nul%00end");
    assert_file_name("line\nbreak\x7f", 11, "", "line%0Abreak%7F");
    assert_file_name("a\xff\xc3/\xe2\x82", 6, "", "a%FF%C3%2F%E2%82");
    assert_file_name("gr\xc3\xb6\xc3\x9f"
                     "e",
                     7, "",
                     "gr\xc3\xb6\xc3\x9f"
                     "e");
    assert_file_name("back\\slash ~ space", 18, "", "back\\slash ~ space");
}
END_TEST

static void
assert_truncated(const char *name, size_t length, const char *suffix)
{
    char out[FILE_NAME_SIZE];
    size_t got = tensor_file_name(name, length, suffix, out), end = got - strlen(suffix);

    ck_assert_uint_eq(got, strlen(out));
    ck_assert_uint_le(got, 255);
    ck_assert_uint_gt(got, 245); /* no more is removed than necessary */
    ck_assert_str_eq(out + end, suffix);
    ck_assert_int_eq(out[end - 17], '~');
    ck_assert_uint_eq(strspn(out + end - 16, "0123456789abcdef"), 16);
    ck_assert(!tensor_name_is_plain(name, length, strlen(suffix)));
}

START_TEST(long_names)
{
    char name[400];

    memset(name, 'x', sizeof(name));
    for (size_t length = 256; length < sizeof(name); length++)
        assert_truncated(name, length, "");
    assert_truncated(name, 252, ".npy");
    ck_assert(tensor_name_is_plain(name, 255, 0));
    ck_assert(tensor_name_is_plain(name, 251, 4));
    memset(name, '/', sizeof(name));
    assert_truncated(name, 86, ""); /* 258 bytes once escaped */
}
END_TEST

START_TEST(truncates_between_characters)
{
    char name[300], out[FILE_NAME_SIZE];

    /* Three-byte characters at every offset from the truncation. */
    for (size_t shift = 0; shift < 3; shift++) {
        size_t length = shift, end;

        memset(name, 'a', shift);
        for (; length + 3 <= sizeof(name); length += 3)
            memcpy(name + length, "\xe2\x82\xac", 3);
        end = tensor_file_name(name, length, "", out) - 17;
        ck_assert_int_eq(out[end], '~');
        ck_assert_uint_eq((end - shift) % 3, 0);
        assert_truncated(name, length, "");
    }
}
END_TEST

START_TEST(a_name_that_looks_truncated_is_hashed)
{
    char name[300], cut[FILE_NAME_SIZE], again[FILE_NAME_SIZE];

    memset(name, 'x', sizeof(name));
    tensor_file_name(name, sizeof(name), "", cut);
    /* The truncated name may be the name of another tensor. */
    tensor_file_name(cut, strlen(cut), "", again);
    ck_assert_str_ne(cut, again);
    tensor_file_name("short~0123456789abcdef", 22, "", again);
    ck_assert_str_ne("short~0123456789abcdef", again);
    tensor_file_name("short~0123456789abcdeg", 22, "", again);
    ck_assert_str_eq("short~0123456789abcdeg", again);
}
END_TEST

static int
compare_strings(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

START_TEST(short_names_are_unique)
{
    static const char letters[] = {'a', '/', '%', '.', '2', 'F', '\0', '~'};
    enum { LETTERS = sizeof(letters), DEPTH = 5 };
    size_t count = 0, all = 1;
    char **files;

    for (int i = 0; i < DEPTH; i++)
        all *= LETTERS;
    files = malloc(2 * all * sizeof(*files));
    ck_assert_ptr_nonnull(files);
    for (size_t length = 0, names = 1; length <= DEPTH; length++, names *= LETTERS) {
        for (size_t n = 0; n < names; n++) {
            char name[DEPTH], out[FILE_NAME_SIZE];
            size_t rest = n;

            for (size_t i = 0; i < length; i++, rest /= LETTERS)
                name[i] = letters[rest % LETTERS];
            tensor_file_name(name, length, "", out);
            ck_assert(!strchr(out, '/') && out[0] != '.' && out[0] != '\0');
            files[count++] = strdup(out);
        }
    }
    qsort(files, count, sizeof(*files), compare_strings);
    for (size_t i = 1; i < count; i++)
        ck_assert_str_ne(files[i - 1], files[i]);
    for (size_t i = 0; i < count; i++)
        free(files[i]);
    free(files);
}
END_TEST

static Suite *
suite(void)
{
    Suite *names = suite_create("names");
    TCase *all = tcase_create("names");

    tcase_add_test(all, escapes);
    tcase_add_test(all, long_names);
    tcase_add_test(all, truncates_between_characters);
    tcase_add_test(all, a_name_that_looks_truncated_is_hashed);
    tcase_add_test(all, short_names_are_unique);
    suite_add_tcase(names, all);
    return names;
}

#include "check_main.h"
