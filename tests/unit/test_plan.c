/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the spans of a plan, directly or by copy, and compares with a plain copy: each requested
 * byte is written once, and no other byte. */
#include "client/plan.h"
#include "random.h"

#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 200
#define TENSORS 12
#define MOST_ITEMS 30
#define WINDOW (1024 * 1024)
#define MOST_ROWS 3000
#define COLUMNS 1000

struct wanted {
    struct fstfs_request request;
    char *memory; /* with a guard block at each end */
    uint64_t size;
    char *expected; /* the contents of all of `memory` */
};

static struct tensor_source source;
static uint64_t shapes[TENSORS][2];
static struct fstfs_tensor tensors[TENSORS];
static char *file;
static struct read_plan plan;
static struct wanted wanteds[MOST_ITEMS];
static size_t wanted_count;
static uint64_t copied, in_memory; /* bytes */

/* A file of tensors, with gaps between some of them, and its bytes. In a PyTorch file tensors may
 * overlap. */
static void
make_file(uint64_t most_rows, bool overlap)
{
    uint64_t end = 8 * random_below(10000), size = 0;

    for (int i = 0; i < TENSORS; i++) {
        shapes[i][0] = 1 + random_below(most_rows);
        shapes[i][1] = COLUMNS;
        if (random_below(4) == 0)
            end += random_below(3) * BLOCK_SIZE;
        if (overlap && i > 0 && random_below(2))
            end = tensors[i - 1].offset + random_below(tensors[i - 1].size);
        tensors[i] = (struct fstfs_tensor){.name = "t",
                                           .dtype = "U8",
                                           .bits = 8,
                                           .rank = 2,
                                           .shape = shapes[i],
                                           .size = shapes[i][0] * COLUMNS,
                                           .offset = end};
        end += tensors[i].size;
        if (size < end)
            size = end;
    }
    file = malloc(size);
    ck_assert_ptr_nonnull(file);
    for (uint64_t i = 0; i < size; i++)
        file[i] = (char)((i * 2654435761u) >> 13);
}

static bool
is_wanted(const struct fstfs_slice *slices, uint64_t row, uint64_t column)
{
    return !slices || (row >= slices[0].start && row < slices[0].stop &&
                       column >= slices[1].start && column < slices[1].stop);
}

/* Requests a whole tensor, rows, or rows and columns, into memory with or without the alignment of
 * the file. */
static void
add_wanted(const struct fstfs_tensor *tensor)
{
    struct wanted *w = &wanteds[wanted_count++];
    struct plan_item *item = &plan.items[plan.count++];
    struct fstfs_slice *slices = NULL;
    uint64_t rows = tensor->shape[0], room, shift;

    if (random_below(2)) {
        slices = calloc(2, sizeof(*slices));
        slices[0].start = random_below(rows);
        if (random_below(2))
            slices[0].start -= slices[0].start % 512; /* a whole number of blocks */
        slices[0].stop = slices[0].start + 1 + random_below(rows - slices[0].start);
        slices[1].stop = COLUMNS;
        if (random_below(3) == 0)
            slices[1].stop -= 100 + random_below(800);
    }
    w->request = (struct fstfs_request){.tensor = tensor, .slices = slices};
    *item = (struct plan_item){.source = &source, .offset = tensor->offset};
    ck_assert_int_eq(strided_slice_make(&w->request, &item->slice), 0);
    item->end = tensor->offset + strided_slice_range(&item->slice, item->slice.range_count - 1) +
                item->slice.range;
    w->size = item->slice.size;
    room = block_up(w->size) + 3 * BLOCK_SIZE;
    shift = random_below(4) ? (tensor->offset + item->slice.start) % BLOCK_SIZE
                            : random_below(BLOCK_SIZE);
    w->memory = aligned_alloc(BLOCK_SIZE, room);
    w->expected = malloc(room);
    memset(w->memory, 0x5a, room);
    memset(w->expected, 0x5a, room);
    item->to = w->memory + BLOCK_SIZE + shift;
    w->request.to = item->to;
    char *to = w->expected + BLOCK_SIZE + shift;
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t column = 0; column < COLUMNS; column++)
            if (is_wanted(slices, row, column))
                *to++ = file[tensor->offset + row * COLUMNS + column];
}

/* Reads a span as src/client/host_read.c does. */
static void
read_window(const struct span *span)
{
    uint64_t length = span->end - span->start;
    char *to = span_memory(&plan, span);

    if (!to) {
        copied += span_copy(&plan, span, span->start, file + span->start, length);
        return;
    }
    ck_assert_uint_eq(span->start % BLOCK_SIZE, 0);
    ck_assert_uint_eq(length % BLOCK_SIZE, 0);
    ck_assert_uint_eq((uintptr_t)to % BLOCK_SIZE, 0);
    memcpy(to, file + span->start, length);
    in_memory += length;
}

static void
read_all(void)
{
    struct span span;
    uint64_t total = 0;

    plan.span_bytes = WINDOW;
    copied = in_memory = 0;
    plan_sort(&plan);
    while (plan_next_span(&plan, &span))
        read_window(&span);
    for (size_t i = 0; i < wanted_count; i++) {
        struct wanted *w = &wanteds[i];

        ck_assert_int_eq(memcmp(w->memory, w->expected, block_up(w->size) + 3 * BLOCK_SIZE), 0);
        total += w->size;
    }
    ck_assert_uint_eq(copied + in_memory, total);
}

static void
clear(void)
{
    for (size_t i = 0; i < wanted_count; i++) {
        free((void *)wanteds[i].request.slices);
        free(wanteds[i].memory);
        free(wanteds[i].expected);
        strided_slice_free(&plan.items[i].slice);
    }
    free(plan.items);
    free(file);
    memset(&plan, 0, sizeof(plan));
    wanted_count = 0;
}

START_TEST(any_items)
{
    for (uint64_t round = 0; round < ROUNDS; round++) {
        random_state = round;
        make_file(random_below(2) ? 200 : MOST_ROWS, random_below(2));
        plan.items = calloc(MOST_ITEMS, sizeof(*plan.items));
        for (uint64_t count = 1 + random_below(MOST_ITEMS); wanted_count < count;)
            add_wanted(&tensors[random_below(TENSORS)]);
        read_all();
        clear();
    }
}
END_TEST

/* Of a whole tensor in aligned memory, only the first and the last span are copied. */
START_TEST(large_tensor)
{
    struct wanted *w = &wanteds[0];

    for (random_state = 1;; random_state++) {
        make_file(MOST_ROWS, false);
        plan.items = calloc(MOST_ITEMS, sizeof(*plan.items));
        add_wanted(&tensors[TENSORS / 2]);
        if (!w->request.slices && w->size > (uint64_t)5 * WINDOW / 2 &&
            ((uintptr_t)w->request.to - tensors[TENSORS / 2].offset) % BLOCK_SIZE == 0)
            break;
        clear();
    }
    read_all();
    ck_assert_uint_le(copied, 2 * (WINDOW + SPAN_SLACK));
    ck_assert_uint_gt(in_memory, 0);
    clear();
}
END_TEST

/* Two requests for one tensor that fills spans up to their limit: its bytes are read once. */
START_TEST(limit_of_a_span)
{
    for (uint64_t spans = 1; spans < 4; spans++) {
        uint64_t size = spans * WINDOW + SPAN_SLACK, done = 0;
        uint64_t shape[1] = {size};
        const struct fstfs_tensor tensor = {
            .name = "t", .dtype = "U8", .bits = 8, .rank = 1, .shape = shape, .size = size};
        struct fstfs_request request = {.tensor = &tensor};
        struct plan_item items[2] = {{.source = &source, .end = size},
                                     {.source = &source, .end = size}};
        struct read_plan twice = {.items = items, .count = 2, .span_bytes = WINDOW};
        struct span span;

        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(strided_slice_make(&request, &items[i].slice), 0);
        plan_sort(&twice);
        while (plan_next_span(&twice, &span)) {
            ck_assert_uint_eq(span.start, done);
            done = span.end;
        }
        ck_assert_uint_eq(done, size);
    }
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("plan");
    TCase *c = tcase_create("plan");

    tcase_set_timeout(c, 120);
    tcase_add_test(c, any_items);
    tcase_add_test(c, large_tensor);
    tcase_add_test(c, limit_of_a_span);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
