/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks single texts by RFC 8259 and serde_json's limits; then compares the reader with cJSON on
 * random texts.
 */
#include "base/buffer.h"
#include "format/json.h"
#include "random.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A copy of the exact size, so that AddressSanitizer detects reads past its end. */
static char *
exact_copy(const char *text, size_t length)
{
    char *copy = malloc(length ? length : 1);

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, text, length);
    return copy;
}

static bool
passes(const char *text, size_t length, struct json_fault *fault)
{
    char *copy = exact_copy(text, length);
    errint_t error = json_check(copy, length, fault);

    free(copy);
    ck_assert(error == 0 || error == -EBADMSG);
    return error == 0;
}

struct text {
    const char *text;
    size_t length;
};

#define TEXT(text)                                                                                 \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }

static const struct text good[] = {
    TEXT("null"),
    TEXT("true"),
    TEXT("false"),
    TEXT("0"),
    TEXT("-0"),
    TEXT("-1"),
    TEXT("10"),
    TEXT("0.5"),
    TEXT("-0.0"),
    TEXT("1e5"),
    TEXT("1E+5"),
    TEXT("1e-5"),
    TEXT("1.5e05"),
    TEXT("18446744073709551616"),
    TEXT("1.7976931348623157e308"),
    TEXT("0.001e310"),
    TEXT("1e-99999999999999999999"),
    TEXT("0e99999999999999999999"),
    TEXT("\"\""),
    TEXT("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\uffff\""),
    TEXT("\"\x7f\""),
    TEXT("\"é中\""),
    TEXT("\"\\ud800\\udc00\""),
    TEXT("\"\\uDBFF\\uDFFF\""),
    TEXT("[]"),
    TEXT("{}"),
    TEXT(" \t\r\n[ ] \t\r\n"),
    TEXT("[1,[2,{\"a\":3}],\"b\"]"),
    TEXT("{ \"a\" : 1 , \"a\" : 2 }"),
    TEXT("{\"\":{}}"),
    TEXT("[[],{},[{}]]"),
    TEXT("\"\\\\\""),
    TEXT("[-1]"),
    TEXT("{\"a\":null}"),
};

static const struct {
    struct text text;
    size_t at; /* of the fault */
} bad[] = {
    {TEXT(""), 0},
    {TEXT("  "), 2},
    {TEXT("\xEF\xBB\xBF{}"), 0},
    {TEXT("{}\0"), 2},
    {TEXT("{} x"), 3},
    {TEXT("1 2"), 2},
    {TEXT("\0"), 0},
    {TEXT("\v1"), 0},
    {TEXT("nul"), 0},
    {TEXT("nulll"), 4},
    {TEXT("True"), 0},
    {TEXT("01"), 1},
    {TEXT("-01"), 2},
    {TEXT("00"), 1},
    {TEXT("+1"), 0},
    {TEXT("-"), 1},
    {TEXT("- 1"), 1},
    {TEXT("1."), 2},
    {TEXT(".5"), 0},
    {TEXT("1.e5"), 2},
    {TEXT("1e"), 2},
    {TEXT("1e+"), 3},
    {TEXT("0x1"), 1},
    {TEXT("NaN"), 0},
    {TEXT("Infinity"), 0},
    {TEXT("-Infinity"), 1},
    {TEXT("1e309"), 0},
    {TEXT("-1e309"), 1},
    {TEXT("18e307"), 0},
    {TEXT("1e99999999999999999999"), 0},
    {TEXT("\""), 1},
    {TEXT("\"a"), 2},
    {TEXT("\"\\"), 1},
    {TEXT("\"\\\""), 3},
    {TEXT("\"\n\""), 1},
    {TEXT("\"\0\""), 1},
    {TEXT("\"\x1f\""), 1},
    {TEXT("\"\\a\""), 1},
    {TEXT("\"\\x41\""), 1},
    {TEXT("\"\\U0041\""), 1},
    {TEXT("\"\\'\""), 1},
    {TEXT("\"\\u\""), 1},
    {TEXT("\"\\u123\""), 1},
    {TEXT("\"\\u12g4\""), 1},
    {TEXT("\"\\u 123\""), 1},
    {TEXT("\"\\ud800\""), 1},
    {TEXT("\"\\udc00\""), 1},
    {TEXT("\"\\ud800\\u0041\""), 1},
    {TEXT("\"\\ud800\\ud800\""), 1},
    {TEXT("\"\\ud800\\udc0\""), 1},
    {TEXT("\"\\ud800x\""), 1},
    {TEXT("["), 1},
    {TEXT("[1"), 2},
    {TEXT("[1,"), 3},
    {TEXT("[1,]"), 3},
    {TEXT("[,1]"), 1},
    {TEXT("[1 2]"), 3},
    {TEXT("]"), 0},
    {TEXT("[}"), 1},
    {TEXT("[1}"), 2},
    {TEXT("{"), 1},
    {TEXT("{\"a\""), 4},
    {TEXT("{\"a\":"), 5},
    {TEXT("{\"a\":1"), 6},
    {TEXT("{\"a\":1,"), 7},
    {TEXT("{\"a\":1,}"), 7},
    {TEXT("{,}"), 1},
    {TEXT("{a:1}"), 1},
    {TEXT("{1:1}"), 1},
    {TEXT("{\"a\" 1}"), 5},
    {TEXT("{\"a\":}"), 5},
    {TEXT("{\"a\":1]"), 6},
    {TEXT("{\"a\":1 \"b\":2}"), 7},
    {TEXT("{'a':1}"), 1},
    {TEXT("//x\n1"), 0},
    {TEXT("[1]]"), 3},
};

START_TEST(good_texts)
{
    struct json_fault fault;

    ck_assert_msg(passes(good[_i].text, good[_i].length, &fault), "%s: %s", good[_i].text,
                  fault.what);
}
END_TEST

START_TEST(bad_texts)
{
    struct json_fault fault;

    ck_assert_msg(!passes(bad[_i].text.text, bad[_i].text.length, &fault), "%s", bad[_i].text.text);
    ck_assert_msg(fault.at == bad[_i].at, "%s: %s at %zu", bad[_i].text.text, fault.what, fault.at);
}
END_TEST

/* json_check_names() accepts lone surrogates that stand for bytes from 0x80; json_check() none. */
START_TEST(bytes_of_names)
{
    static const struct {
        const char *text;
        bool is_name;
    } cases[] = {
        {"\"\\udc80\"", true},   {"\"a\\udcffb\"", true},      {"{\"\\uDCFE\": \"\\udc99\"}", true},
        {"\"\\udc7f\"", false},  {"\"\\udd00\"", false},       {"\"\\ud800\"", false},
        {"\"\\ud800x\"", false}, {"\"\\ud83d\\ude00\"", true},
    };
    struct json_fault fault;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t length = strlen(cases[i].text);
        char *copy = exact_copy(cases[i].text, length);

        ck_assert_int_eq(json_check_names(copy, length, &fault), cases[i].is_name ? 0 : -EBADMSG);
        ck_assert(passes(copy, length, &fault) == (strstr(cases[i].text, "ude00") != NULL));
        free(copy);
    }
}
END_TEST

START_TEST(depth)
{
    struct json_fault fault;

    for (size_t levels = 1; levels < 300; levels++) {
        struct buffer text = BUFFER_INIT;
        for (size_t i = 0; i < levels; i++)
            buffer_add_text(&text, i % 2 ? "{\"a\":" : "[");
        buffer_add_char(&text, '1');
        for (size_t i = levels; i-- > 0;)
            buffer_add_char(&text, i % 2 ? '}' : ']');
        ck_assert(passes(text.data, text.length, &fault) == (levels <= 127));
        buffer_free(&text);
    }
}
END_TEST

/* Long numbers are valid if they are in the range of a double. */
START_TEST(long_numbers)
{
    struct json_fault fault;

    for (size_t digits = 1; digits < 700; digits++) {
        struct buffer text = BUFFER_INIT;
        buffer_add_repeat(&text, '1', digits);
        ck_assert(passes(text.data, text.length, &fault) == (digits <= 309));
        buffer_addf(&text, "e-%zu", digits);
        ck_assert(passes(text.data, text.length, &fault));
        buffer_free(&text);
        text = (struct buffer)BUFFER_INIT;
        buffer_add_text(&text, "0.");
        buffer_add_repeat(&text, '0', digits);
        buffer_addf(&text, "1e%zu", digits + 309);
        ck_assert(passes(text.data, text.length, &fault));
        buffer_add_char(&text, '0');
        ck_assert(!passes(text.data, text.length, &fault));
        buffer_free(&text);
    }
}
END_TEST

START_TEST(utf8)
{
    static const struct {
        struct text text;
        size_t at; /* SIZE_MAX: valid */
    } cases[] = {
        {TEXT(""), SIZE_MAX},
        {TEXT("abcdefghijklmnop"), SIZE_MAX},
        {TEXT("\x7f\xC2\x80\xDF\xBF\xE0\xA0\x80\xEF\xBF\xBF\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"),
         SIZE_MAX},
        {TEXT("\xED\x9F\xBF\xEE\x80\x80"), SIZE_MAX},
        {TEXT("\x80"), 0},
        {TEXT("a\xC1\x80"), 1},
        {TEXT("abcdefgh\xC2"), 8},
        {TEXT("abcdefg\xE4\xB8"), 7},
        {TEXT("\xE0\x9F\xBF"), 0},
        {TEXT("\xED\xA0\x80"), 0},
        {TEXT("\xF0\x8F\xBF\xBF"), 0},
        {TEXT("\xF4\x90\x80\x80"), 0},
        {TEXT("\xF5\x80\x80\x80"), 0},
        {TEXT("\xC2\x41"), 0},
        {TEXT("ab\xff"), 2},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *copy = exact_copy(cases[i].text.text, cases[i].text.length);
        size_t at = SIZE_MAX;
        ck_assert(json_check_utf8(copy, cases[i].text.length, &at) == (cases[i].at == SIZE_MAX));
        ck_assert_uint_eq(at, cases[i].at);
        free(copy);
    }
}
END_TEST

START_TEST(whole_numbers)
{
    static const struct {
        const char *text;
        bool whole;
        uint64_t number;
    } cases[] = {
        {"0", true, 0},
        {"7", true, 7},
        {"9007199254740993", true, 9007199254740993u}, /* not exact as a double */
        {"18446744073709551615", true, UINT64_MAX},
        {"18446744073709551616", false, 0},
        {"99999999999999999999", false, 0},
        {"-1", false, 0},
        {"-0", false, 0},
        {"1.0", false, 0},
        {"1e0", false, 0},
        {"1E0", false, 0},
        {"null", false, 0},
        {"\"1\"", false, 0},
        {"[1]", false, 0},
        {"{}", false, 0},
        {"true", false, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t number = 0;
        struct json_reader in = json_read(cases[i].text, strlen(cases[i].text));
        const char *before = in.at;
        ck_assert_msg(json_take_u64(&in, &number) == cases[i].whole, "%s", cases[i].text);
        ck_assert_uint_eq(number, cases[i].number);
        ck_assert_ptr_eq(in.at, cases[i].whole ? in.end : before);
    }
}
END_TEST

START_TEST(unescaping)
{
    static const struct {
        struct text raw, plain;
    } cases[] = {
        {TEXT(""), TEXT("")},
        {TEXT("plain"), TEXT("plain")},
        {TEXT("\\\"\\\\\\/\\b\\f\\n\\r\\t"), TEXT("\"\\/\b\f\n\r\t")},
        {TEXT("a\\u0000b"), TEXT("a\0b")},
        {TEXT("\\u0041\\u00e9\\u4E2D\\ud83d\\ude00"),
         TEXT("A\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80")},
        {TEXT("x\\\\"), TEXT("x\\")},
        {TEXT("\\uffff\\udbff\\udfff"), TEXT("\xEF\xBF\xBF\xF4\x8F\xBF\xBF")},
        {TEXT("\\udc80x\\udcff\\udcc3"), TEXT("\x80x\xFF\xC3")},
        {TEXT("\\x\\u12\\ud83d\\"), TEXT("\\x\\u12\\ud83d\\")},
        {TEXT("\\ud83d\\u0041\\u00"), TEXT("\\ud83dA\\u00")},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct json_span raw = {exact_copy(cases[i].raw.text, cases[i].raw.length),
                                cases[i].raw.length};
        char *out = malloc(raw.length + 1);
        ck_assert_uint_eq(json_unescape(raw, NULL), cases[i].plain.length);
        ck_assert_uint_eq(json_unescape(raw, out), cases[i].plain.length);
        ck_assert_mem_eq(out, cases[i].plain.text, cases[i].plain.length);
        free(out);
        free((char *)raw.text);
    }
}
END_TEST

START_TEST(comparing)
{
    struct json_span plain = {"dtype", 5}, escaped = {"\\u0064type", 10},
                     nul = {"dtype\\u0000", 11};
    struct json_span prefix = {"dtyp", 4}, capital = {"Dtype", 5};
    char most[6 * 32 + 7];

    ck_assert(json_raw_is(plain, "dtype"));
    ck_assert(json_raw_is(escaped, "dtype"));
    ck_assert(!json_raw_is(nul, "dtype"));
    ck_assert(!json_raw_is(prefix, "dtype"));
    ck_assert(!json_raw_is(capital, "dtype"));
    for (size_t i = 0; i <= 32; i++)
        memcpy(most + 6 * i, "\\u0061", 7);
    ck_assert(json_raw_is((struct json_span){most, 6 * 32}, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
    ck_assert(!json_raw_is((struct json_span){most, 6 * 33}, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}
END_TEST

START_TEST(reading)
{
    const char text[] =
        " { \"a\" : [ 1 , \"]\\\"}\" , { } ] , \"b\":null ,\"c\":\"x\\\\\", \"d\": 5 } ";
    struct json_reader in = json_read(text, sizeof(text) - 1);
    struct json_span key, value;
    uint64_t number;

    ck_assert_int_eq(json_type(&in), JSON_OBJECT);
    json_enter(&in);
    ck_assert(json_next_key(&in, &key) && json_raw_is(key, "a"));
    struct json_reader again = in;
    value = json_take(&in);
    ck_assert_mem_eq(value.text, "[ 1 , \"]\\\"}\" , { } ]", 20);
    ck_assert_uint_eq(value.length, 20);

    json_enter(&again);
    ck_assert(json_next_element(&again) && json_take_u64(&again, &number) && number == 1);
    ck_assert(json_next_element(&again) && json_take_string(&again).length == 4);
    ck_assert(json_next_element(&again) && json_type(&again) == JSON_OBJECT);
    json_enter(&again);
    ck_assert(!json_next_key(&again, &key));
    ck_assert(!json_next_element(&again));
    ck_assert_ptr_eq(again.at, in.at);

    ck_assert(json_next_key(&in, &key) && json_raw_is(key, "b") && json_type(&in) == JSON_NULL);
    ck_assert_uint_eq(json_take(&in).length, 4);
    ck_assert(json_next_key(&in, &key) && json_raw_is(key, "c") && json_type(&in) == JSON_STRING);
    ck_assert_uint_eq(json_take_string(&in).length, 3);
    ck_assert(json_next_key(&in, &key) && json_take_u64(&in, &number) && number == 5);
    ck_assert(!json_next_key(&in, &key));
}
END_TEST

/* --- Random texts --- */

static void
add_space(struct buffer *out)
{
    while (random_below(4) == 0)
        buffer_add_char(out, " \t\r\n"[random_below(4)]);
}

static void
add_string(struct buffer *out)
{
    static const char *const pieces[] = {
        "a",  "dtype", "\\n", "\\\\", "\\\"", "\\/", "\\u0041", "\\u00e9", "\\ud83d\\ude00", "é",
        "中", "]",     "}",   "{",    "[",    ",",   ":",       " ",       "\x7f",
    };

    buffer_add_char(out, '"');
    while (random_below(4))
        buffer_add_text(out, pieces[random_below(sizeof(pieces) / sizeof(pieces[0]))]);
    buffer_add_char(out, '"');
}

static void
add_value(struct buffer *out, unsigned deep)
{
    static const char *const scalars[] = {"null", "true", "false", "0", "-1.5", "2e3", "123456789"};
    uint32_t kind = random_below(deep > 5 ? 2 : 4);

    add_space(out);
    if (kind == 0) {
        buffer_add_text(out, scalars[random_below(sizeof(scalars) / sizeof(scalars[0]))]);
    } else if (kind == 1) {
        add_string(out);
    } else {
        buffer_add_char(out, kind == 2 ? '[' : '{');
        add_space(out);
        for (uint32_t i = 0, count = random_below(5); i < count; i++) {
            if (i)
                buffer_add_char(out, ',');
            if (kind == 3) {
                add_space(out);
                add_string(out);
                add_space(out);
                buffer_add_char(out, ':');
            }
            add_value(out, deep + 1);
        }
        buffer_add_char(out, kind == 2 ? ']' : '}');
    }
    add_space(out);
}

static bool
string_is(struct json_span raw, const char *expected)
{
    char *plain = malloc(raw.length + 1);
    size_t length = json_unescape(raw, plain);
    bool same = length == strlen(expected) && memcmp(plain, expected, length) == 0;

    free(plain);
    return same;
}

/* Whether the reader returns the same values as cJSON. */
static bool
reads_as(struct json_reader *in, const cJSON *tree)
{
    const cJSON *child = tree->child;
    struct json_span key;
    uint64_t number;

    switch (json_type(in)) {
    case JSON_NULL:
        json_take(in);
        return cJSON_IsNull(tree);
    case JSON_BOOL:
        json_take(in);
        return cJSON_IsBool(tree);
    case JSON_NUMBER:
        if (json_take_u64(in, &number))
            return cJSON_IsNumber(tree) && tree->valuedouble == (double)number;
        json_take(in);
        return cJSON_IsNumber(tree);
    case JSON_STRING:
        return cJSON_IsString(tree) && string_is(json_take_string(in), tree->valuestring);
    case JSON_ARRAY:
        json_enter(in);
        for (; json_next_element(in); child = child->next)
            if (!child || !reads_as(in, child))
                return false;
        return cJSON_IsArray(tree) && !child;
    case JSON_OBJECT:
        json_enter(in);
        for (; json_next_key(in, &key); child = child->next)
            if (!child || !string_is(key, child->string) || !reads_as(in, child))
                return false;
        return cJSON_IsObject(tree) && !child;
    }
    return false;
}

/* Whether json_check() passes the text; if so, that cJSON agrees about it. */
static bool
compare(const char *text, size_t length)
{
    struct json_fault fault;
    char *copy = exact_copy(text, length);
    bool good_text = json_check(copy, length, &fault) == 0;

    if (good_text) {
        cJSON *tree = cJSON_ParseWithLength(copy, length);
        ck_assert_msg(tree != NULL, "cJSON refuses %.*s", (int)length, text);
        struct json_reader in = json_read(copy, length), whole = in;
        ck_assert_msg(reads_as(&in, tree), "cJSON reads otherwise: %.*s", (int)length, text);
        json_take(&whole);
        ck_assert_ptr_eq(in.at, whole.at);
        cJSON_Delete(tree);
    }
    free(copy);
    return good_text;
}

START_TEST(random_texts)
{
    unsigned changed_and_good = 0, changed = 0;

    random_state = 0x1234567 + (uint64_t)_i;
    for (unsigned turn = 0; turn < 2000; turn++) {
        struct buffer text = BUFFER_INIT;
        add_value(&text, 0);
        ck_assert_msg(compare(text.data, text.length), "%s", text.data);

        size_t at = random_below((uint32_t)text.length + 1);
        struct json_fault fault;
        passes(text.data, at, &fault); /* truncated: no read past the end */
        for (unsigned i = 0; i < 8; i++) {
            char *byte = &text.data[random_below((uint32_t)text.length)], was = *byte;
            *byte = "{}[]\",:\\0123 eEu-.+tn"[random_below(21)];
            changed++;
            changed_and_good += compare(text.data, text.length);
            *byte = was;
        }
        buffer_free(&text);
    }
    ck_assert_uint_gt(changed_and_good, 100);
    ck_assert_uint_lt(changed_and_good, changed);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("json");
    TCase *c = tcase_create("json");

    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, good_texts, 0, sizeof(good) / sizeof(good[0]));
    tcase_add_loop_test(c, bad_texts, 0, sizeof(bad) / sizeof(bad[0]));
    tcase_add_test(c, depth);
    tcase_add_test(c, long_numbers);
    tcase_add_test(c, bytes_of_names);
    tcase_add_test(c, utf8);
    tcase_add_test(c, whole_numbers);
    tcase_add_test(c, unescaping);
    tcase_add_test(c, comparing);
    tcase_add_test(c, reading);
    tcase_add_loop_test(c, random_texts, 0, 5);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
