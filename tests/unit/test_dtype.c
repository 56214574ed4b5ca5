/* SPDX-License-Identifier: Apache-2.0 */
#include "format/dtype.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned bits;
    const char *descr;
} known[] = {
    {"BOOL", 8, "|b1"},        {"F4", 4, NULL},           {"F6_E2M3", 6, NULL},
    {"F6_E3M2", 6, NULL},      {"U8", 8, "|u1"},          {"I8", 8, "|i1"},
    {"F8_E5M2", 8, "<V1"},     {"F8_E4M3", 8, "<V1"},     {"F8_E8M0", 8, "<V1"},
    {"F8_E4M3FNUZ", 8, "<V1"}, {"F8_E5M2FNUZ", 8, "<V1"}, {"I16", 16, "<i2"},
    {"U16", 16, "<u2"},        {"F16", 16, "<f2"},        {"BF16", 16, "<V2"},
    {"I32", 32, "<i4"},        {"U32", 32, "<u4"},        {"F32", 32, "<f4"},
    {"C64", 64, "<c8"},        {"F64", 64, "<f8"},        {"I64", 64, "<i8"},
    {"U64", 64, "<u8"},
};

START_TEST(all_names_are_known)
{
    enum dtype dtype = dtype_from_name(known[_i].name, strlen(known[_i].name));

    ck_assert_int_eq(dtype, _i); /* the order is safetensors' own */
    ck_assert_str_eq(dtype_name(dtype), known[_i].name);
    ck_assert_uint_eq(dtype_bits(dtype), known[_i].bits);
    if (known[_i].descr)
        ck_assert_str_eq(dtype_npy_descr(dtype), known[_i].descr);
    else
        ck_assert_ptr_null(dtype_npy_descr(dtype));
}
END_TEST

START_TEST(other_names_are_unknown)
{
    ck_assert_int_eq(sizeof(known) / sizeof(known[0]), DTYPE_COUNT);
    ck_assert_int_eq(dtype_from_name("", 0), DTYPE_UNKNOWN);
    ck_assert_int_eq(dtype_from_name("u8", 2), DTYPE_UNKNOWN);
    ck_assert_int_eq(dtype_from_name("U8\0", 3), DTYPE_UNKNOWN);
    ck_assert_int_eq(dtype_from_name("U", 1), DTYPE_UNKNOWN);
    ck_assert_int_eq(dtype_from_name("U88", 3), DTYPE_UNKNOWN);
    ck_assert_ptr_null(dtype_npy_descr(DTYPE_UNKNOWN));
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("dtype");
    TCase *c = tcase_create("dtype");

    tcase_add_loop_test(c, all_names_are_known, 0, DTYPE_COUNT);
    tcase_add_test(c, other_names_are_unknown);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
