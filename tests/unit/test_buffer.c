/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"
#include "base/error.h"
#include "expect.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct buffer buffer;

static void
setup(void)
{
    buffer = (struct buffer)BUFFER_INIT;
}

static void
teardown(void)
{
    buffer_free(&buffer);
}

#define assert_holds(expected)                                                                     \
    do {                                                                                           \
        ck_assert(!buffer_failed(&buffer));                                                        \
        ck_assert_uint_eq(buffer.length, sizeof(expected) - 1);                                    \
        ck_assert_mem_eq(buffer.data, expected, sizeof(expected));                                 \
    } while (0)

START_TEST(appends)
{
    buffer_add_text(&buffer, "ab");
    buffer_add(&buffer, "c\0d", 3);
    buffer_add_char(&buffer, 'e');
    buffer_add_repeat(&buffer, ' ', 2);
    buffer_add_u64(&buffer, 0);
    buffer_add_u64(&buffer, UINT64_MAX);
    buffer_addf(&buffer, "<%d %s>", -5, "x");
    assert_holds("abc\0de  018446744073709551615<-5 x>");
}
END_TEST

START_TEST(little_endian)
{
    buffer_add_u64le(&buffer, 0x0102030405060708u);
    assert_holds("\x08\x07\x06\x05\x04\x03\x02\x01");
}
END_TEST

START_TEST(empty_text_is_terminated)
{
    buffer_add_text(&buffer, "");
    assert_holds("");
}
END_TEST

START_TEST(grows)
{
    for (unsigned i = 0; i < 100000; i++)
        buffer_add_char(&buffer, (char)i);
    ck_assert_uint_eq(buffer.length, 100000);
    for (unsigned i = 0; i < 100000; i++)
        expect(buffer.data[i] == (char)i);
    assert_expectations();
    ck_assert_int_eq(buffer.data[100000], '\0');
}
END_TEST

START_TEST(failure_is_sticky)
{
    buffer_add_text(&buffer, "ab");
    buffer_reserve(&buffer, SIZE_MAX);
    ck_assert(buffer_failed(&buffer));
    buffer_add_text(&buffer, "c");
    buffer_addf(&buffer, "%d", 1);
    ck_assert_uint_eq(buffer.length, 2);
    buffer_free(&buffer);
    ck_assert(!buffer_failed(&buffer));
}
END_TEST

START_TEST(json_strings)
{
    const char text[] = "a\"b\\c/\b\t\n\f\r\x01\x1f\x7f\0é";

    buffer_add_json_string(&buffer, text, sizeof(text) - 1);
    assert_holds("\"a\\\"b\\\\c/\\b\\t\\n\\f\\r\\u0001\\u001f\x7f\\u0000é\"");
}
END_TEST

START_TEST(json_not_utf8)
{
    buffer_add_json_string(&buffer, "a\xff\xfe", 3);
    buffer_add_json_shown(&buffer, "a\xff\xfe", 3);
    assert_holds("\"a\\udcff\\udcfe\"\"a\\ufffd\\ufffd\"");
}
END_TEST

/* A control character of 2 bytes, a mark that changes the direction of text, and a byte that is not
 * UTF-8. */
START_TEST(json_names)
{
    buffer_add_json_name(&buffer, "a\xc2\x9b\xe2\x80\xae\x7f\xff", 8);
    assert_holds("\"a\\u009b\\u202e\\u007f\\udcff\"");
}
END_TEST

/* Names that would control a terminal or forge lines of a file. */
struct quote {
    const char *text;
    size_t length;
    const char *shown;
};

#define QUOTE(text, shown)                                                                         \
    {                                                                                              \
        text, sizeof(text) - 1, shown                                                              \
    }

static const struct quote quotes[] = {
    QUOTE("", ""),
    QUOTE("plain é 中 \xF0\x9F\x98\x80 \" '", "plain é 中 \xF0\x9F\x98\x80 \" '"),
    QUOTE("a\nb\rc\td\0e", "a\\x0ab\\x0dc\\x09d\\x00e"),
    QUOTE("\x1b[2J\x7f", "\\x1b[2J\\x7f"),
    QUOTE("a\\x0a", "a\\\\x0a"),
    QUOTE("\xC2\x9B", "\\xc2\\x9b"), /* C1: CSI */
    QUOTE("\xC2\xA0", "\xC2\xA0"),
    QUOTE("\xE2\x80\xAE", "\\xe2\\x80\\xae"), /* right-to-left override */
    QUOTE("\xE2\x80\xA8\xE2\x80\xA9", "\\xe2\\x80\\xa8\\xe2\\x80\\xa9"), /* line separators */
    QUOTE("\xE2\x81\xA6\xE2\x80\x8F\xD8\x9C", "\\xe2\\x81\\xa6\\xe2\\x80\\x8f\\xd8\\x9c"),
    QUOTE("\xE2\x80\x90", "\xE2\x80\x90"), /* a hyphen, near them */
    QUOTE("\xff\xc3", "\\xff\\xc3"),
    QUOTE("\xed\xa0\x80", "\\xed\\xa0\\x80"), /* a surrogate */
    QUOTE("\xc0\xaf", "\\xc0\\xaf"), /* overlong */
};

START_TEST(quoting)
{
    char shown[QUOTED_SIZE];

    buffer_add_quoted(&buffer, quotes[_i].text, quotes[_i].length, 1000);
    ck_assert_uint_eq(buffer.length, strlen(quotes[_i].shown));
    ck_assert(!buffer.length || strcmp(buffer.data, quotes[_i].shown) == 0);
    ck_assert_str_eq(quoted(shown, quotes[_i].text, quotes[_i].length), quotes[_i].shown);
}
END_TEST

START_TEST(buffer_add_quoted_truncates)
{
    buffer_add_quoted(&buffer, "abcdef", 6, 6);
    buffer_add_char(&buffer, ' ');
    buffer_add_quoted(&buffer, "abcdef", 6, 5);
    buffer_add_char(&buffer, ' ');
    buffer_add_quoted(&buffer, "abé", 4, 3); /* not within a character */
    assert_holds("abcdef abcde... ab...");
}
END_TEST

/* quoted() uses its space to the last byte and never writes beyond. */
START_TEST(quoted_truncates)
{
    char text[QUOTED_SIZE * 2], shown[QUOTED_SIZE];

    for (size_t length = 0; length < sizeof(text); length++) {
        memset(text, 'a', sizeof(text));
        if (_i == 1)
            memset(text, '\n', sizeof(text));
        quoted(shown, text, length);
        size_t whole = length * (_i == 1 ? 4 : 1);
        size_t got = strlen(shown);
        if (whole < QUOTED_SIZE) {
            ck_assert_uint_eq(got, whole);
        } else {
            ck_assert_uint_ge(got, QUOTED_SIZE - 4);
            ck_assert_uint_lt(got, QUOTED_SIZE);
            ck_assert_str_eq(shown + got - 3, "...");
        }
    }
}
END_TEST

START_TEST(reasons)
{
    struct reason reason;

    ck_assert_int_eq(reason_set(NULL, -EIO, "X", "%d", 1), -EIO);
    ck_assert_int_eq(reason_set(&reason, -EBADMSG, "Rule", "%s is %d", "it", 7), -EBADMSG);
    ck_assert_str_eq(reason.rule, "Rule");
    ck_assert_str_eq(reason.text, "it is 7");

    /* A long text is truncated between characters. */
    char text[2000];
    for (size_t i = 0; i < sizeof(text) - 2; i += 2)
        memcpy(text + i, "é", 3);
    reason_fill(&reason, "X", "%s", text);
    ck_assert_uint_eq(strlen(reason.text), 510);
    reason_fill(&reason, "X", ".%s", text);
    ck_assert_uint_eq(strlen(reason.text), 511);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("buffer");
    TCase *c = tcase_create("buffer");

    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, appends);
    tcase_add_test(c, little_endian);
    tcase_add_test(c, empty_text_is_terminated);
    tcase_add_test(c, grows);
    tcase_add_test(c, failure_is_sticky);
    tcase_add_test(c, json_strings);
    tcase_add_test(c, json_names);
    tcase_add_test(c, json_not_utf8);
    tcase_add_loop_test(c, quoting, 0, sizeof(quotes) / sizeof(quotes[0]));
    tcase_add_test(c, buffer_add_quoted_truncates);
    tcase_add_loop_test(c, quoted_truncates, 0, 2);
    tcase_add_test(c, reasons);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
