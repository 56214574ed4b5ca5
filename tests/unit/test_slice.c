/* SPDX-License-Identifier: Apache-2.0 */
/* Strided slices, copied from chunks of any size, compared with a copy of each element. */
#include "client/slice.h"
#include "random.h"

#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 1000
#define MOST_BYTES 200000 /* of one tensor */
#define RANKS 5

struct example {
    uint64_t shape[RANKS + 1];
    struct fstfs_slice slices[RANKS + 1];
    struct fstfs_tensor tensor;
    struct fstfs_request request;
    char *bytes; /* of the tensor */
    bool *wanted; /* for each byte: whether it is in the slice */
    char *expected; /* the bytes of the slice, packed */
    uint64_t size;
};

/* Adds the bytes of the slice from dimension `d` on. */
static void
add_expected(struct example *e, unsigned d, uint64_t index)
{
    uint64_t width = e->tensor.bits / 8;

    if (d == e->tensor.rank) {
        memcpy(e->expected + e->size, e->bytes + index * width, width);
        memset(e->wanted + index * width, true, width);
        e->size += width;
        return;
    }
    for (uint64_t i = e->slices[d].start; i < e->slices[d].stop;
         i += e->slices[d].step ? e->slices[d].step : 1)
        add_expected(e, d + 1, index * e->shape[d] + i);
}

/* `most`: the largest dimension. */
static void
example_make(struct example *e, uint64_t most)
{
    static const unsigned widths[] = {8, 16, 32, 64};

    memset(e, 0, sizeof(*e));
    e->tensor = (struct fstfs_tensor){.name = "t",
                                      .dtype = "X",
                                      .bits = widths[random_below(4)],
                                      .rank = (unsigned)random_below(RANKS + 1),
                                      .shape = e->shape};
    e->tensor.size = e->tensor.bits / 8;
    for (unsigned d = 0; d < e->tensor.rank; d++) {
        e->shape[d] = 1 + random_below(most);
        if (e->tensor.size * e->shape[d] > MOST_BYTES)
            e->shape[d] = 1;
        e->tensor.size *= e->shape[d];
        e->slices[d] = (struct fstfs_slice){0, e->shape[d], random_below(2)};
        if (random_below(3) > 0) {
            e->slices[d].start = random_below(e->shape[d] + 1);
            e->slices[d].stop =
                e->slices[d].start + random_below(e->shape[d] - e->slices[d].start + 1);
            e->slices[d].step = random_below(4);
        }
    }
    e->request = (struct fstfs_request){.tensor = &e->tensor, .slices = e->slices};
    e->bytes = malloc(e->tensor.size + 1);
    e->expected = malloc(e->tensor.size + 1);
    e->wanted = calloc(e->tensor.size + 1, sizeof(*e->wanted));
    for (uint64_t i = 0; i < e->tensor.size; i++)
        e->bytes[i] = (char)random_below(256);
    add_expected(e, 0, 0);
}

static void
example_free(struct example *e)
{
    free(e->bytes);
    free(e->expected);
    free(e->wanted);
}

/* Ranges contain all bytes of the slice, are in ascending order, do not touch, and have no gap of
 * more than a block. */
static void
check_ranges(const struct example *e, const struct strided_slice *slice)
{
    uint64_t end = 0, wanted = 0, missed = 0, hole = 0, largest = 0;

    for (uint64_t i = 0; i < slice->range_count; i++) {
        uint64_t start = strided_slice_range(slice, i);

        ck_assert_uint_ge(start, end);
        ck_assert(i == 0 || start - end > BLOCK_SIZE);
        for (uint64_t at = end; at < start; at++)
            missed += e->wanted[at];
        end = start + slice->range;
        ck_assert_uint_le(end, e->tensor.size);
        ck_assert(e->wanted[start] && e->wanted[end - 1]);
        for (uint64_t at = start; at < end; at++) {
            hole = e->wanted[at] ? 0 : hole + 1;
            largest = hole > largest ? hole : largest;
            wanted += e->wanted[at];
        }
    }
    ck_assert_uint_le(largest, BLOCK_SIZE);
    ck_assert_uint_eq(missed, 0);
    ck_assert_uint_eq(wanted, e->size);
}

static void
check_copies(const struct example *e, const struct strided_slice *slice)
{
    char *to = malloc(e->size + 2);
    uint64_t copied = 0;

    memset(to, 0x55, e->size + 2);
    for (uint64_t at = 0, length; at < e->tensor.size; at += length) {
        length = 1 + random_below(e->tensor.size - at);
        copied += strided_slice_copy(slice, at, e->bytes + at, length, to + 1);
    }
    ck_assert_uint_eq(copied, e->size);
    ck_assert_int_eq(memcmp(to + 1, e->expected, e->size), 0);
    ck_assert(to[0] == 0x55 && to[e->size + 1] == 0x55);
    free(to);
}

/* Copies each chunk to memory of its own, which begins at the packed offset of its first byte. */
static void
check_copies_of_chunks(const struct example *e, const struct strided_slice *slice)
{
    char *piece = malloc(e->size + 1);
    uint64_t packed = 0;
    uintptr_t to;

    for (uint64_t at = 0, length, size; at < e->tensor.size; at += length) {
        length = 1 + random_below(e->tensor.size - at);
        ck_assert_uint_eq(strided_slice_before(slice, at), packed);
        size = strided_slice_before(slice, at + length) - packed;
        piece[size] = 0x55;
        to = (uintptr_t)piece - packed;
        ck_assert_uint_eq(strided_slice_copy(slice, at, e->bytes + at, length, (char *)to), size);
        ck_assert_int_eq(memcmp(piece, e->expected + packed, size), 0);
        ck_assert_int_eq(piece[size], 0x55);
        packed += size;
    }
    ck_assert_uint_eq(packed, e->size);
    free(piece);
}

static void
check_examples(int rounds, uint64_t most)
{
    for (int round = 0; round < rounds; round++) {
        struct example e;
        struct strided_slice slice;

        example_make(&e, most);
        ck_assert_int_eq(strided_slice_make(&e.request, &slice), 0);
        ck_assert_uint_eq(slice.size, e.size);
        if (e.size > 0) {
            check_ranges(&e, &slice);
            check_copies(&e, &slice);
            check_copies_of_chunks(&e, &slice);
        }
        strided_slice_free(&slice);
        example_free(&e);
    }
}

START_TEST(small_slices)
{
    random_state = 1;
    check_examples(ROUNDS, 7);
}
END_TEST

/* Rows are so long that each is a range. */
START_TEST(large_slices)
{
    random_state = 2;
    check_examples(100, 35);
}
END_TEST

START_TEST(columns_are_read_separately)
{
    uint64_t shape[] = {1000, 10000};
    struct fstfs_slice slices[] = {{0, 1000, 0}, {5000, 6000, 0}};
    struct fstfs_slice most[] = {{0, 1000, 0}, {1500, 10000, 0}};
    struct fstfs_tensor tensor = {
        .name = "t", .dtype = "BF16", .bits = 16, .rank = 2, .shape = shape, .size = 20000000};
    struct fstfs_request request = {.tensor = &tensor, .slices = slices};
    struct strided_slice slice;

    ck_assert_int_eq(strided_slice_make(&request, &slice), 0);
    ck_assert_uint_eq(slice.range_count, 1000);
    ck_assert_uint_eq(slice.range, 2000);
    ck_assert_uint_eq(strided_slice_range(&slice, 999), 999 * 20000 + 10000);
    strided_slice_free(&slice);
    /* Gaps of less than a block are joined to one range. */
    request.slices = most;
    ck_assert_int_eq(strided_slice_make(&request, &slice), 0);
    ck_assert_uint_eq(slice.range_count, 1);
    ck_assert_uint_eq(slice.range, 999 * 20000 + 17000);
    strided_slice_free(&slice);
}
END_TEST

START_TEST(whole_tensors)
{
    struct fstfs_tensor tensor = {.name = "t", .dtype = "NEW", .size = 12345};
    struct fstfs_request request = {.tensor = &tensor};
    struct strided_slice slice;

    ck_assert_int_eq(strided_slice_make(&request, &slice), 0);
    ck_assert_uint_eq(slice.size, 12345);
    ck_assert_uint_eq(slice.range_count, 1);
    ck_assert_uint_eq(slice.range, 12345);
    tensor.size = 0;
    ck_assert_int_eq(strided_slice_make(&request, &slice), 0);
    ck_assert_uint_eq(slice.size, 0);
}
END_TEST

/* The size of a slice of these columns and two rows, of a tensor of 4 x 6 elements. */
static int
ask_columns(uint32_t bits, struct fstfs_slice columns, uint64_t *size)
{
    uint64_t shape[] = {4, 6};
    struct fstfs_slice slices[] = {{1, 3, 0}, columns};
    struct fstfs_tensor tensor = {
        .name = "t", .dtype = "F4", .bits = bits, .rank = 2, .shape = shape, .size = 12};
    struct fstfs_request request = {.tensor = &tensor, .slices = slices};

    return fstfs_request_size(&request, size);
}

START_TEST(refused)
{
    uint64_t size;

    ck_assert_int_eq(ask_columns(4, (struct fstfs_slice){0, 6, 0}, &size), 0);
    ck_assert_uint_eq(size, 6); /* rows of three bytes */
    ck_assert_int_eq(ask_columns(4, (struct fstfs_slice){1, 6, 0}, &size), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "within a byte"));
    ck_assert_int_eq(ask_columns(4, (struct fstfs_slice){2, 7, 1}, &size), -EINVAL);
    ck_assert_ptr_nonnull(strstr(fstfs_error(), "2:7"));
    ck_assert_int_eq(ask_columns(4, (struct fstfs_slice){3, 2, 1}, &size), -EINVAL);
    ck_assert_int_eq(ask_columns(4, (struct fstfs_slice){2, 2, 1}, &size), 0);
    ck_assert_uint_eq(size, 0);
    ck_assert_int_eq(ask_columns(0, (struct fstfs_slice){2, 2, 1}, &size), -ENOTSUP);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("slice");
    TCase *c = tcase_create("slice");

    tcase_set_timeout(c, 60);
    tcase_add_test(c, small_slices);
    tcase_add_test(c, large_slices);
    tcase_add_test(c, columns_are_read_separately);
    tcase_add_test(c, whole_tensors);
    tcase_add_test(c, refused);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
