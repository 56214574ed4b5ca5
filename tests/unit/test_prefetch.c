/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefetch heuristics with simulated readers of a simulated file: how often a reader stalls,
 * and how many bytes are prefetched but never requested.
 */
#include "expect.h"
#include "io/prefetch.h"
#include "random.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096
#define KIB 1024ull
#define MIB (1024 * KIB)
#define PIECES 64
#define REQUEST (128 * KIB)

static const struct prefetch_limits limits = {.window_max = 16 * MIB, .readahead = 128 * KIB};

enum block { ABSENT, PREFETCHED, REQUESTED };

struct world {
    struct layout *layout;
    uint64_t size;
    uint8_t *blocks; /* enum block, for each block of the file */
    struct prefetch prefetch;
    uint64_t stalls, requests;
    uint64_t largest_window;
};

/* Contiguous pieces of 8 KiB to 8 MiB after a header, most not aligned to a block, in a random
 * order of names. */
static void
world_init(struct world *world, uint64_t seed)
{
    uint64_t offset = 12345;
    uint32_t order[PIECES];

    memset(world, 0, sizeof(*world));
    random_state = seed;
    world->layout = malloc(sizeof(struct layout) + PIECES * sizeof(struct piece));
    world->layout->count = PIECES;
    for (uint32_t i = 0; i < PIECES; i++) {
        uint64_t length = random_below(4) ? 2 * MIB + random_below(6 * MIB) : 8 * KIB;

        world->layout->pieces[i] = (struct piece){offset, offset + length, PIECES};
        offset += length;
        order[i] = i;
    }
    for (uint32_t i = PIECES - 1; i > 0; i--) {
        uint32_t other = (uint32_t)random_below(i + 1), swapped = order[i];

        order[i] = order[other];
        order[other] = swapped;
    }
    for (uint32_t i = 0; i + 1 < PIECES; i++)
        world->layout->pieces[order[i]].next = order[i + 1];
    world->size = offset;
    world->blocks = calloc(1, offset / BLOCK + 1);
    prefetch_init(&world->prefetch, NULL);
}

static void
world_free(struct world *world)
{
    free(world->layout);
    free(world->blocks);
}

static void
prefetch_range(struct world *world, uint64_t start, uint64_t end)
{
    if (end > world->size)
        end = world->size;
    for (uint64_t block = start / BLOCK; start < end && block <= (end - 1) / BLOCK; block++)
        if (world->blocks[block] == ABSENT)
            world->blocks[block] = PREFETCHED;
}

static uint64_t
piece_prefetch_start(const struct piece *piece, const struct prefetch_plan *plan)
{
    return piece->start > plan->lead_bytes ? piece->start - plan->lead_bytes : 0;
}

static void
prefetch_starts(struct world *world, const struct prefetch_plan *plan)
{
    const struct piece *pieces = world->layout->pieces;
    uint64_t left = plan->window;
    uint32_t piece = plan->piece;

    while (left >= plan->probe_bytes) {
        piece = plan->in_name_order ? pieces[piece].next : piece + 1;
        if (piece >= PIECES)
            return;
        prefetch_range(world, piece_prefetch_start(&pieces[piece], plan),
                       piece_prefetch_start(&pieces[piece], plan) + plan->probe_bytes);
        left -= plan->probe_bytes;
    }
}

static void
follow_plan(struct world *world, uint64_t end, const struct prefetch_plan *plan)
{
    const struct piece *pieces = world->layout->pieces;
    uint64_t left = plan->window;
    uint32_t piece = plan->piece;
    uint64_t stop = plan->is_sequential || plan->stop > end + left ? end + left : plan->stop;

    if (plan->probe_bytes) {
        prefetch_starts(world, plan);
        return;
    }
    expect(plan->window <= limits.window_max);
    if (plan->window > world->largest_window)
        world->largest_window = plan->window;
    if (stop > end) {
        prefetch_range(world, end, stop);
        left -= stop - end;
    }
    while (plan->in_name_order && left > 0 && (piece = pieces[piece].next) < PIECES) {
        uint64_t start = piece_prefetch_start(&pieces[piece], plan);
        uint64_t length = pieces[piece].end - start;

        length = length < left ? length : left;
        prefetch_range(world, start, start + length);
        left -= length;
    }
}

/* One request of the kernel. Returns whether the reader stalls. */
static bool
send_request(struct world *world, const void *file, uint64_t offset, uint64_t end)
{
    struct prefetch_plan plan;
    bool stalled = false;

    for (uint64_t block = offset / BLOCK; block <= (end - 1) / BLOCK; block++) {
        stalled |= world->blocks[block] == ABSENT;
        world->blocks[block] = REQUESTED;
    }
    world->requests++;
    world->stalls += stalled;
    prefetch_observe(&world->prefetch, &limits, world->layout, file, offset, end,
                     offset == 0 ? PREFETCH_ORIGIN_TOP : PREFETCH_ORIGIN_HERE, stalled, NULL,
                     &plan);
    follow_plan(world, end, &plan);
    return stalled;
}

/* Reads a range sequentially. Returns the number of stalls. */
static uint64_t
read_range(struct world *world, const void *file, uint64_t offset, uint64_t end)
{
    uint64_t stalls = 0;

    while (offset < end) {
        uint64_t next = end - offset < REQUEST ? end : offset + REQUEST;

        stalls += send_request(world, file, offset, next);
        offset = next;
    }
    return stalls;
}

/* Reads a piece by page faults. The kernel requests a readahead window around the first fault, and
 * the next window whenever the reader reaches a new one. Returns the number of stalls. */
static uint64_t
fault_piece(struct world *world, const struct piece *piece)
{
    uint64_t start = piece->start / BLOCK * BLOCK;
    uint64_t offset = start > REQUEST / 2 ? start - REQUEST / 2 : 0;
    uint64_t touched = offset; /* start of the window in which the reader is */
    uint64_t stalls = 0;

    while (touched < piece->end && offset < world->size) {
        uint64_t next = world->size - offset < REQUEST ? world->size : offset + REQUEST;

        bool stalled = send_request(world, world, offset, next);

        stalls += stalled && offset < piece->end;
        touched = offset;
        offset = next;
    }
    return stalls;
}

static uint64_t
bytes_in_state(const struct world *world, enum block state)
{
    uint64_t found = 0;

    for (uint64_t i = 0; i <= (world->size - 1) / BLOCK; i++)
        found += world->blocks[i] == state;
    return found * BLOCK;
}

START_TEST(sequential_file)
{
    struct world world;

    world_init(&world, (uint64_t)_i);
    read_range(&world, &world, 0, world.size);
    ck_assert_uint_le(world.stalls, 6);
    ck_assert_uint_eq(bytes_in_state(&world, PREFETCHED), 0);
    world_free(&world);
}
END_TEST

START_TEST(all_pieces_as_files)
{
    /* As `cat tensors/x/y/...` in the order of the shard. */
    struct world world;
    uint64_t late_stalls = 0;

    world_init(&world, (uint64_t)_i);
    for (uint32_t i = 0; i < PIECES; i++) {
        const struct piece *piece = &world.layout->pieces[i];
        uint64_t stalls = read_range(&world, piece, piece->start, piece->end);

        late_stalls += i >= 8 ? stalls : 0;
    }
    ck_assert_uint_le(late_stalls, 4);
    world_free(&world);
}
END_TEST

START_TEST(some_pieces_as_files)
{
    /* A random tenth of the pieces: nothing beyond their last blocks is prefetched. */
    struct world world;

    world_init(&world, (uint64_t)_i);
    for (uint32_t i = 0; i < PIECES / 10; i++) {
        const struct piece *piece = &world.layout->pieces[random_below(PIECES)];

        ck_assert_uint_le(read_range(&world, piece, piece->start, piece->end), 4);
    }
    ck_assert_uint_le(bytes_in_state(&world, PREFETCHED), PIECES / 10 * BLOCK);
    world_free(&world);
}
END_TEST

START_TEST(some_pieces_by_page_faults)
{
    /* The kernel's readahead requests bytes before and after each piece, which must not look like a
     * sequential reader. */
    struct world world;

    world_init(&world, (uint64_t)_i);
    for (uint32_t i = 0; i < PIECES; i += 5)
        fault_piece(&world, &world.layout->pieces[i]);
    ck_assert_uint_le(bytes_in_state(&world, PREFETCHED), bytes_in_state(&world, REQUESTED) / 50);
    world_free(&world);
}
END_TEST

START_TEST(random_tenth_by_page_faults)
{
    /* Some of the pieces are adjacent. */
    uint64_t requested = 0, wasted = 0;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct world world;

        world_init(&world, seed);
        for (uint32_t i = 0; i < PIECES; i++)
            if (random_below(10) == 0)
                fault_piece(&world, &world.layout->pieces[i]);
        requested += bytes_in_state(&world, REQUESTED);
        wasted += bytes_in_state(&world, PREFETCHED);
        world_free(&world);
    }
    ck_assert_uint_le(wasted, requested / 50);
}
END_TEST

/* Reads all pieces by page faults in the order of names. Returns the stalls after the first
 * `learning` pieces. */
static uint64_t
fault_by_name(struct world *world, uint32_t learning)
{
    uint32_t piece, turn = 0;
    uint64_t stalls = 0;
    bool follows[PIECES] = {false};

    for (uint32_t i = 0; i < PIECES; i++)
        if (world->layout->pieces[i].next < PIECES)
            follows[world->layout->pieces[i].next] = true;
    for (piece = 0; follows[piece]; piece++)
        continue;
    for (; piece < PIECES; piece = world->layout->pieces[piece].next, turn++) {
        uint64_t piece_stalls = fault_piece(world, &world->layout->pieces[piece]);

        if (turn >= learning)
            stalls += piece_stalls;
    }
    ck_assert_uint_eq(turn, PIECES);
    return stalls;
}

START_TEST(order_of_names)
{
    struct world world;

    world_init(&world, (uint64_t)_i);
    ck_assert_uint_le(fault_by_name(&world, 8), 10);
    ck_assert_uint_eq(bytes_in_state(&world, PREFETCHED), 0);
    world_free(&world);
}
END_TEST

START_TEST(order_of_names_in_the_next_shard)
{
    /* The order is known from the first shard: only the first piece may stall. */
    struct world first, second;
    struct access_history history = {0};

    world_init(&first, (uint64_t)_i);
    prefetch_init(&first.prefetch, &history);
    fault_by_name(&first, 8);
    world_init(&second, (uint64_t)_i + 1000);
    prefetch_init(&second.prefetch, &history);
    ck_assert_uint_le(fault_by_name(&second, 1), 12);
    world_free(&first);
    world_free(&second);
}
END_TEST

/* Touches the first byte of the piece. The kernel requests `length` bytes around it, unless the
 * page is in the page cache. */
static void
probe_piece(struct world *world, const struct piece *piece, uint64_t length)
{
    uint64_t page = piece->start / BLOCK * BLOCK;
    uint64_t offset = page > length / 2 ? page - length / 2 : 0;

    if (world->blocks[page / BLOCK] != REQUESTED)
        send_request(world, world, offset,
                     world->size - offset < length ? world->size : offset + length);
}

/* Reads sequentially what is not in the page cache. */
static void
read_uncached(struct world *world)
{
    uint64_t offset = 0, end;

    while (offset < world->size) {
        for (end = offset; end < world->size && world->blocks[end / BLOCK] != REQUESTED;
             end += BLOCK)
            continue;
        read_range(world, world, offset, end < world->size ? end : world->size);
        offset = end + BLOCK;
    }
}

START_TEST(probes_before_reads)
{
    /* safetensors' load_file() touches each tensor in file order, then reads all of them.
     * POSIX_FADV_SEQUENTIAL doubles the kernel's readahead. */
    uint64_t length = _i % 2 ? REQUEST : 2 * REQUEST;
    struct world world;

    world_init(&world, (uint64_t)_i);
    send_request(&world, &world, 0, REQUEST);
    for (uint32_t i = 0; i < PIECES; i++)
        probe_piece(&world, &world.layout->pieces[i], length);
    ck_assert_uint_le(world.stalls, 10);
    ck_assert_uint_le(bytes_in_state(&world, PREFETCHED), 12 * MIB);
    world.stalls = 0;
    read_uncached(&world);
    ck_assert_uint_le(world.stalls, 8);
    ck_assert_uint_eq(bytes_in_state(&world, PREFETCHED), 0);
    world_free(&world);
}
END_TEST

START_TEST(requests_out_of_order)
{
    struct world world;
    uint64_t offsets[8];

    world_init(&world, (uint64_t)_i);
    for (uint64_t base = 0; base + 8 * REQUEST <= world.size; base += 8 * REQUEST) {
        for (uint64_t i = 0; i < 8; i++)
            offsets[i] = base + i * REQUEST;
        for (uint64_t i = 7; i > 0; i--) {
            uint64_t other = random_below(i + 1), swapped = offsets[i];

            offsets[i] = offsets[other];
            offsets[other] = swapped;
        }
        for (uint64_t i = 0; i < 8; i++)
            send_request(&world, &world, offsets[i], offsets[i] + REQUEST);
    }
    ck_assert_uint_le(world.stalls, world.requests / 20 + 12);
    ck_assert_uint_le(bytes_in_state(&world, PREFETCHED), 16 * MIB + 8 * REQUEST);
    world_free(&world);
}
END_TEST

START_TEST(concurrent_sequential_readers)
{
    struct world world;
    uint64_t positions[8];
    bool more = true;

    world_init(&world, (uint64_t)_i);
    for (uint64_t i = 0; i < 8; i++)
        positions[i] = world.size / 8 * i;
    while (more) {
        more = false;
        for (uint64_t i = 0; i < 8; i++) {
            uint64_t end = i == 7 ? world.size : world.size / 8 * (i + 1);
            uint64_t next = end - positions[i] < REQUEST ? end : positions[i] + REQUEST;

            if (positions[i] == end)
                continue;
            send_request(&world, &world, positions[i], next);
            positions[i] = next;
            more = true;
        }
    }
    ck_assert_uint_le(world.stalls, 8 * 17);
    world_free(&world);
}
END_TEST

START_TEST(random_pages)
{
    /* Only small pieces are prefetched. */
    struct world world;

    world_init(&world, (uint64_t)_i);
    for (int i = 0; i < 100; i++) {
        uint64_t offset = random_below(world.size / BLOCK) * BLOCK;

        send_request(&world, &world, offset, offset + BLOCK);
    }
    ck_assert_uint_le(bytes_in_state(&world, PREFETCHED), 3 * MIB);
    world_free(&world);
}
END_TEST

START_TEST(waste_halves_the_window)
{
    struct world world;
    struct prefetch_plan plan;
    uint64_t window, position;

    world_init(&world, (uint64_t)_i);
    position = world.size / 2;
    read_range(&world, &world, 0, position);
    prefetch_observe(&world.prefetch, &limits, world.layout, &world, position, position + REQUEST,
                     PREFETCH_ORIGIN_HERE, true, NULL, &plan);
    window = plan.window;
    ck_assert(plan.is_sequential);
    ck_assert_uint_ge(window, MIB);
    prefetch_note_waste(&world.prefetch, &plan);
    prefetch_note_waste(&world.prefetch, &plan);
    position += REQUEST;
    prefetch_observe(&world.prefetch, &limits, world.layout, &world, position, position + REQUEST,
                     PREFETCH_ORIGIN_HERE, false, NULL, &plan);
    ck_assert(!plan.is_sequential);
    ck_assert_uint_le(plan.window, window / 2);
    prefetch_note_waste(&world.prefetch, &plan);
    position += REQUEST;
    prefetch_observe(&world.prefetch, &limits, world.layout, &world, position, position + REQUEST,
                     PREFETCH_ORIGIN_HERE, false, NULL, &plan);
    ck_assert_uint_le(plan.window, window / 4);
    world_free(&world);
}
END_TEST

START_TEST(prefetch_is_off)
{
    struct prefetch_limits none = {.window_max = 0, .readahead = 0};
    struct prefetch prefetch;
    struct prefetch_plan plan;

    prefetch_init(&prefetch, NULL);
    for (uint64_t i = 0; i < 100; i++) {
        prefetch_observe(&prefetch, &none, NULL, NULL, i * MIB, (i + 1) * MIB, PREFETCH_ORIGIN_HERE,
                         true, NULL, &plan);
        ck_assert_uint_eq(plan.window, 0);
    }
}
END_TEST

START_TEST(random_requests_keep_the_limits)
{
    struct world world;

    world_init(&world, (uint64_t)_i);
    for (int i = 0; i < 3000; i++) {
        uint64_t offset = random_below(world.size);
        uint64_t end = offset + 1 + random_below(2 * MIB);
        struct prefetch_plan cause = {.window = random_below(64 * MIB),
                                      .is_sequential = random_below(2)};
        struct prefetch_plan plan;

        if (end > world.size)
            end = world.size;
        prefetch_observe(&world.prefetch, &limits, random_below(8) ? world.layout : NULL,
                         &world.blocks[random_below(3)], offset, end, random_below(3),
                         random_below(2), random_below(2) ? &cause : NULL, &plan);
        expect(plan.window <= limits.window_max);
        expect(!plan.in_name_order || plan.piece < PIECES);
        if (random_below(4) == 0)
            prefetch_note_waste(&world.prefetch, &plan);
        if (random_below(4) == 0)
            prefetch_note_no_memory(&world.prefetch, random_below(world.size));
    }
    world_free(&world);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("prefetch");
    TCase *readers = tcase_create("readers");

    tcase_add_checked_fixture(readers, NULL, assert_expectations);
    tcase_add_loop_test(readers, sequential_file, 1, 20);
    tcase_add_loop_test(readers, all_pieces_as_files, 1, 20);
    tcase_add_loop_test(readers, some_pieces_as_files, 1, 50);
    tcase_add_loop_test(readers, some_pieces_by_page_faults, 1, 50);
    tcase_add_test(readers, random_tenth_by_page_faults);
    tcase_add_loop_test(readers, order_of_names, 1, 20);
    tcase_add_loop_test(readers, order_of_names_in_the_next_shard, 1, 20);
    tcase_add_loop_test(readers, probes_before_reads, 1, 40);
    tcase_add_loop_test(readers, requests_out_of_order, 1, 20);
    tcase_add_loop_test(readers, concurrent_sequential_readers, 1, 20);
    tcase_add_loop_test(readers, random_pages, 1, 20);
    tcase_add_loop_test(readers, waste_halves_the_window, 1, 5);
    tcase_add_test(readers, prefetch_is_off);
    tcase_add_loop_test(readers, random_requests_keep_the_limits, 1, 30);
    suite_add_tcase(made, readers);
    return made;
}

#include "check_main.h"
