/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes are compared with NumPy's own in tests/format/test_differential.py. */
#include "format/npy.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void
assert_header(enum dtype dtype, const uint64_t *dims, uint32_t rank, uint64_t bytes,
              const char *dictionary, size_t size)
{
    struct buffer out = BUFFER_INIT;

    buffer_add_text(&out, "before"); /* it appends */
    ck_assert_int_eq(npy_header(&out, dtype, dims, rank, bytes), 0);
    ck_assert_uint_eq(out.length, 6 + size);
    const char *header = out.data + 6;
    ck_assert_mem_eq(header, "\x93NUMPY\x01\x00", 8);
    ck_assert_uint_eq((unsigned char)header[8] + 256u * (unsigned char)header[9], size - 10);
    ck_assert_mem_eq(header + 10, dictionary, strlen(dictionary));
    for (size_t i = 10 + strlen(dictionary); i < size - 1; i++)
        ck_assert_int_eq(header[i], ' ');
    ck_assert_int_eq(header[size - 1], '\n');
    buffer_free(&out);
}

START_TEST(shapes)
{
    const uint64_t dims[] = {2, 30, 0};

    assert_header(DTYPE_F32, NULL, 0, 4, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
                  128);
    assert_header(DTYPE_BF16, dims, 1, 4,
                  "{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }", 128);
    assert_header(DTYPE_BOOL, dims, 3, 0,
                  "{'descr': '|b1', 'fortran_order': False, 'shape': (2, 30, 0), }", 128);
}
END_TEST

START_TEST(sub_byte_dtypes_are_bytes)
{
    const uint64_t dims[] = {2, 8};

    assert_header(DTYPE_F4, dims, 2, 8, "{'descr': '|u1', 'fortran_order': False, 'shape': (8,), }",
                  128);
    assert_header(DTYPE_F6_E3M2, dims, 2, 12,
                  "{'descr': '|u1', 'fortran_order': False, 'shape': (12,), }", 128);
}
END_TEST

/* Data begins at a multiple of 64 for every length of the header; version 2.0 is used from the
 * first length that version 1.0 cannot store. */
START_TEST(every_length)
{
    uint64_t *dims = calloc(22000, sizeof(dims[0]));
    unsigned wide = 0;

    for (uint32_t rank = 0; rank <= 22000; rank += rank < 200 || rank > 21700 ? 1 : 100) {
        struct buffer out = BUFFER_INIT;
        size_t length = 0;
        ck_assert_int_eq(npy_header(&out, DTYPE_U8, dims, rank, 0), 0);
        ck_assert_uint_eq(out.length % 64, 0);
        bool is_wide = out.data[6] == 2;
        size_t prefix = is_wide ? 12 : 10;
        for (size_t i = prefix; i-- > 8;)
            length = length << 8 | (unsigned char)out.data[i];
        ck_assert_uint_eq(length, out.length - prefix);
        ck_assert(is_wide == (length > 65535));
        wide += is_wide;
        buffer_free(&out);
    }
    ck_assert_uint_gt(wide, 0);
    free(dims);
}
END_TEST

START_TEST(unknown_dtypes_have_no_header)
{
    struct buffer out = BUFFER_INIT;

    ck_assert_int_eq(npy_header(&out, DTYPE_UNKNOWN, NULL, 0, 1), -EINVAL);
    ck_assert_uint_eq(out.length, 0);
}
END_TEST

/* A file in memory with these bytes. */
static int
file_of(const char *bytes, size_t length)
{
    int fd = memfd_create("npy", MFD_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, length), (ssize_t)length);
    return fd;
}

/* A written header is read back, except for float8, of which a header has only the size. A file
 * that ends anywhere within the header is refused. */
START_TEST(headers_are_read_back)
{
    const uint64_t dims[] = {7, 0, 1234567890123456789};

    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        const char *descr = dtype_npy_descr((enum dtype)dtype);
        struct buffer out = BUFFER_INIT;
        struct reason reason;
        struct npy npy;

        ck_assert_int_eq(npy_header(&out, (enum dtype)dtype, dims, 3, 5), 0);
        int fd = file_of(out.data, out.length);
        if (descr && strcmp(descr, "<V1") == 0) {
            ck_assert_int_eq(npy_read(fd, out.length, &npy, &reason), -EBADMSG);
        } else {
            ck_assert_int_eq(npy_read(fd, out.length, &npy, &reason), 0);
            ck_assert_uint_eq(npy.data_start, out.length);
            ck_assert_uint_eq(npy.dtype, descr ? (unsigned)dtype : DTYPE_U8);
            ck_assert_uint_eq(npy.rank, descr ? 3 : 1);
            for (uint32_t i = 0; descr && i < 3; i++)
                ck_assert_uint_eq(npy.dims[i], dims[i]);
        }
        for (size_t length = 0; length < out.length; length++) {
            ck_assert_int_eq(npy_read(fd, length, &npy, &reason), -EBADMSG);
            ck_assert_int_eq(ftruncate(fd, (off_t)(out.length - 1 - length)), 0);
            ck_assert_int_eq(npy_read(fd, out.length, &npy, &reason), -ESTALE);
            ck_assert_int_eq(pwrite(fd, out.data, out.length, 0), (ssize_t)out.length);
        }
        close(fd);
        buffer_free(&out);
    }
}
END_TEST

START_TEST(unsupported_dictionaries_are_refused)
{
    static const char *const texts[] = {
        "",
        "{}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)",
        "{'descr': '<f4', 'shape': 2}",
        "{'descr': '<f4', 'shape': (2, 3}",
        "{'descr': '<f4', 'shape': (2 3)}",
        "{'descr': '<f4', 'shape': (-2,)}",
        "{'descr': '<f4', 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
        "{'descr': 'a very long name of a type that is none', 'shape': ()}",
        "{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct buffer file = BUFFER_INIT;
        struct reason reason;
        struct npy npy;

        buffer_add(&file, "\x93NUMPY\x01\x00", 8);
        buffer_add_char(&file, (char)(strlen(texts[i]) + 2));
        buffer_add_char(&file, '\0');
        buffer_add_text(&file, texts[i]);
        buffer_add_text(&file, " \n");
        int fd = file_of(file.data, file.length);
        ck_assert_msg(npy_read(fd, file.length, &npy, &reason) == -EBADMSG, "%s", texts[i]);
        ck_assert_str_eq(reason.rule, "InvalidNpy");
        close(fd);
        buffer_free(&file);
    }
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("npy");
    TCase *c = tcase_create("npy");

    tcase_add_test(c, shapes);
    tcase_add_test(c, sub_byte_dtypes_are_bytes);
    tcase_add_test(c, every_length);
    tcase_add_test(c, unknown_dtypes_have_no_header);
    tcase_add_test(c, headers_are_read_back);
    tcase_add_test(c, unsupported_dictionaries_are_refused);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
