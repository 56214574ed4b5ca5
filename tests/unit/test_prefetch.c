/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefetch heuristics with simulated readers of a simulated file: what was
 * prefetched when they read, and what was prefetched that no reader wanted.
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

enum block { NOTHING, FETCHED, ASKED };

struct world {
    struct layout *layout;
    uint64_t size;
    uint8_t *blocks; /* of the file */
    struct prefetch prefetch;
    uint64_t stalls, requests;
    uint64_t largest_window;
};

/* PIECES pieces of 8 KiB to 8 MiB after a header, one after the other, most
 * not at a block; next by name is a random cycle. */
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
        uint32_t other = (uint32_t)random_below(i + 1), kept = order[i];

        order[i] = order[other];
        order[other] = kept;
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
fetch(struct world *world, uint64_t start, uint64_t end)
{
    if (end > world->size)
        end = world->size;
    for (uint64_t block = start / BLOCK; start < end && block <= (end - 1) / BLOCK; block++)
        if (world->blocks[block] == NOTHING)
            world->blocks[block] = FETCHED;
}

static uint64_t
start_before(const struct piece *piece, const struct prefetch_plan *plan)
{
    return piece->start > plan->lead_bytes ? piece->start - plan->lead_bytes : 0;
}

static void
fetch_starts(struct world *world, const struct prefetch_plan *plan)
{
    const struct piece *pieces = world->layout->pieces;
    uint64_t left = plan->window;
    uint32_t piece = plan->piece;

    while (left >= plan->probe_bytes) {
        piece = plan->in_name_order ? pieces[piece].next : piece + 1;
        if (piece >= PIECES)
            return;
        fetch(world, start_before(&pieces[piece], plan),
              start_before(&pieces[piece], plan) + plan->probe_bytes);
        left -= plan->probe_bytes;
    }
}

static void
fetch_ahead(struct world *world, uint64_t end, const struct prefetch_plan *plan)
{
    const struct piece *pieces = world->layout->pieces;
    uint64_t left = plan->window;
    uint32_t piece = plan->piece;
    uint64_t stop = plan->is_sequential || plan->stop > end + left ? end + left : plan->stop;

    if (plan->probe_bytes) {
        fetch_starts(world, plan);
        return;
    }
    expect(plan->window <= limits.window_max);
    if (plan->window > world->largest_window)
        world->largest_window = plan->window;
    if (stop > end) {
        fetch(world, end, stop);
        left -= stop - end;
    }
    while (plan->in_name_order && left > 0 && (piece = pieces[piece].next) < PIECES) {
        uint64_t start = start_before(&pieces[piece], plan);
        uint64_t length = pieces[piece].end - start;

        length = length < left ? length : left;
        fetch(world, start, start + length);
        left -= length;
    }
}

/* One request of the kernel; whether the reader had to wait. */
static bool
ask(struct world *world, const void *file, uint64_t offset, uint64_t end)
{
    struct prefetch_plan plan;
    bool stalled = false;

    for (uint64_t block = offset / BLOCK; block <= (end - 1) / BLOCK; block++) {
        stalled |= world->blocks[block] == NOTHING;
        world->blocks[block] = ASKED;
    }
    world->requests++;
    world->stalls += stalled;
    prefetch_observe(&world->prefetch, &limits, world->layout, file, offset, end,
                     offset == 0 ? PREFETCH_ORIGIN_TOP : PREFETCH_ORIGIN_HERE, stalled, NULL,
                     &plan);
    fetch_ahead(world, end, &plan);
    return stalled;
}

/* Reads a range from start to end; the number of stalls. */
static uint64_t
read_range(struct world *world, const void *file, uint64_t offset, uint64_t end)
{
    uint64_t stalls = 0;

    while (offset < end) {
        uint64_t next = end - offset < REQUEST ? end : offset + REQUEST;

        stalls += ask(world, file, offset, next);
        offset = next;
    }
    return stalls;
}

/* A piece of a large file touched from start to end by page faults, as the kernel
 * then asks: for what lies around the first fault, and, whenever the program
 * comes to a run of the readahead, for the next. The number of stalls. */
static uint64_t
fault_piece(struct world *world, const struct piece *piece)
{
    uint64_t start = piece->start / BLOCK * BLOCK;
    uint64_t offset = start > REQUEST / 2 ? start - REQUEST / 2 : 0;
    uint64_t touched = offset; /* start of the run that made the kernel ask for this one */
    uint64_t stalls = 0;

    while (touched < piece->end && offset < world->size) {
        uint64_t next = world->size - offset < REQUEST ? world->size : offset + REQUEST;

        bool stalled = ask(world, world, offset, next);

        stalls += stalled && offset < piece->end;
        touched = offset;
        offset = next;
    }
    return stalls;
}

static uint64_t
count(const struct world *world, enum block state)
{
    uint64_t found = 0;

    for (uint64_t i = 0; i <= (world->size - 1) / BLOCK; i++)
        found += world->blocks[i] == state;
    return found * BLOCK;
}

START_TEST(whole_file_in_order)
{
    struct world world;

    world_init(&world, (uint64_t)_i);
    read_range(&world, &world, 0, world.size);
    ck_assert_uint_le(world.stalls, 6);
    ck_assert_uint_eq(count(&world, FETCHED), 0);
    world_free(&world);
}
END_TEST

START_TEST(piece_by_piece_in_order)
{
    /* Each a file of its own, as `cat tensors/x/y/...` in the order of the shard. */
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
    /* A tenth of the pieces, anywhere: not a block more than they have. */
    struct world world;

    world_init(&world, (uint64_t)_i);
    for (uint32_t i = 0; i < PIECES / 10; i++) {
        const struct piece *piece = &world.layout->pieces[random_below(PIECES)];

        ck_assert_uint_le(read_range(&world, piece, piece->start, piece->end), 4);
    }
    ck_assert_uint_le(count(&world, FETCHED), PIECES / 10 * BLOCK);
    world_free(&world);
}
END_TEST

START_TEST(some_pieces_by_page_faults)
{
    /* The kernel asks for more before and behind each, and the prefetcher must
     * not take that for a wish. */
    struct world world;

    world_init(&world, (uint64_t)_i);
    for (uint32_t i = 0; i < PIECES; i += 5)
        fault_piece(&world, &world.layout->pieces[i]);
    ck_assert_uint_le(count(&world, FETCHED), count(&world, ASKED) / 50);
    world_free(&world);
}
END_TEST

START_TEST(a_tenth_by_page_faults)
{
    /* Anywhere, so some are neighbours. */
    uint64_t asked = 0, wasted = 0;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct world world;

        world_init(&world, seed);
        for (uint32_t i = 0; i < PIECES; i++)
            if (random_below(10) == 0)
                fault_piece(&world, &world.layout->pieces[i]);
        asked += count(&world, ASKED);
        wasted += count(&world, FETCHED);
        world_free(&world);
    }
    ck_assert_uint_le(wasted, asked / 50);
}
END_TEST

/* All pieces by page faults, in the order of names; the stalls after the first `learning`. */
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
        uint64_t waited = fault_piece(world, &world->layout->pieces[piece]);

        if (turn >= learning)
            stalls += waited;
    }
    ck_assert_uint_eq(turn, PIECES);
    return stalls;
}

START_TEST(order_of_names)
{
    struct world world;

    world_init(&world, (uint64_t)_i);
    ck_assert_uint_le(fault_by_name(&world, 8), 10);
    ck_assert_uint_eq(count(&world, FETCHED), 0);
    world_free(&world);
}
END_TEST

START_TEST(order_of_names_in_the_next_shard)
{
    /* Known from the first piece on, which alone is waited for as in the first shard. */
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

/* Touches the first byte of the piece, for which the kernel asks for `length` around it,
 * unless that is in the page cache. */
static void
look_at(struct world *world, const struct piece *piece, uint64_t length)
{
    uint64_t page = piece->start / BLOCK * BLOCK;
    uint64_t offset = page > length / 2 ? page - length / 2 : 0;

    if (world->blocks[page / BLOCK] != ASKED)
        ask(world, world, offset, world->size - offset < length ? world->size : offset + length);
}

/* Reads all that is not in the page cache. */
static void
read_the_rest(struct world *world)
{
    uint64_t offset = 0, end;

    while (offset < world->size) {
        for (end = offset; end < world->size && world->blocks[end / BLOCK] != ASKED; end += BLOCK)
            continue;
        read_range(world, world, offset, end < world->size ? end : world->size);
        offset = end + BLOCK;
    }
}

START_TEST(looks_at_all_before_it_reads)
{
    /* safetensors' load_file(): a touch of each tensor in the order of the file, then all
     * of them. After POSIX_FADV_SEQUENTIAL the kernel's readahead is twice as large. */
    uint64_t length = _i % 2 ? REQUEST : 2 * REQUEST;
    struct world world;

    world_init(&world, (uint64_t)_i);
    ask(&world, &world, 0, REQUEST);
    for (uint32_t i = 0; i < PIECES; i++)
        look_at(&world, &world.layout->pieces[i], length);
    ck_assert_uint_le(world.stalls, 10);
    ck_assert_uint_le(count(&world, FETCHED), 12 * MIB);
    world.stalls = 0;
    read_the_rest(&world);
    ck_assert_uint_le(world.stalls, 8);
    ck_assert_uint_eq(count(&world, FETCHED), 0);
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
            uint64_t other = random_below(i + 1), kept = offsets[i];

            offsets[i] = offsets[other];
            offsets[other] = kept;
        }
        for (uint64_t i = 0; i < 8; i++)
            ask(&world, &world, offsets[i], offsets[i] + REQUEST);
    }
    ck_assert_uint_le(world.stalls, world.requests / 20 + 12);
    ck_assert_uint_le(count(&world, FETCHED), 16 * MIB + 8 * REQUEST);
    world_free(&world);
}
END_TEST

START_TEST(readers_side_by_side)
{
    struct world world;
    uint64_t positions[8];
    bool going = true;

    world_init(&world, (uint64_t)_i);
    for (uint64_t i = 0; i < 8; i++)
        positions[i] = world.size / 8 * i;
    while (going) {
        going = false;
        for (uint64_t i = 0; i < 8; i++) {
            uint64_t end = i == 7 ? world.size : world.size / 8 * (i + 1);
            uint64_t next = end - positions[i] < REQUEST ? end : positions[i] + REQUEST;

            if (positions[i] == end)
                continue;
            ask(&world, &world, positions[i], next);
            positions[i] = next;
            going = true;
        }
    }
    ck_assert_uint_le(world.stalls, 8 * 17);
    world_free(&world);
}
END_TEST

START_TEST(touches_here_and_there)
{
    /* Single pages anywhere: nothing is read ahead but small pieces. */
    struct world world;

    world_init(&world, (uint64_t)_i);
    for (int i = 0; i < 100; i++) {
        uint64_t offset = random_below(world.size / BLOCK) * BLOCK;

        ask(&world, &world, offset, offset + BLOCK);
    }
    ck_assert_uint_le(count(&world, FETCHED), 3 * MIB);
    world_free(&world);
}
END_TEST

START_TEST(shrinks_when_unused)
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

START_TEST(off)
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

START_TEST(anything_at_all)
{
    struct world world;

    world_init(&world, (uint64_t)_i);
    for (int i = 0; i < 3000; i++) {
        uint64_t offset = random_below(world.size);
        uint64_t end = offset + 1 + random_below(2 * MIB);
        struct prefetch_plan fetched = {.window = random_below(64 * MIB),
                                        .is_sequential = random_below(2)};
        struct prefetch_plan plan;

        if (end > world.size)
            end = world.size;
        prefetch_observe(&world.prefetch, &limits, random_below(8) ? world.layout : NULL,
                         &world.blocks[random_below(3)], offset, end, random_below(3),
                         random_below(2), random_below(2) ? &fetched : NULL, &plan);
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
    tcase_add_loop_test(readers, whole_file_in_order, 1, 20);
    tcase_add_loop_test(readers, piece_by_piece_in_order, 1, 20);
    tcase_add_loop_test(readers, some_pieces_as_files, 1, 50);
    tcase_add_loop_test(readers, some_pieces_by_page_faults, 1, 50);
    tcase_add_test(readers, a_tenth_by_page_faults);
    tcase_add_loop_test(readers, order_of_names, 1, 20);
    tcase_add_loop_test(readers, order_of_names_in_the_next_shard, 1, 20);
    tcase_add_loop_test(readers, looks_at_all_before_it_reads, 1, 40);
    tcase_add_loop_test(readers, requests_out_of_order, 1, 20);
    tcase_add_loop_test(readers, readers_side_by_side, 1, 20);
    tcase_add_loop_test(readers, touches_here_and_there, 1, 20);
    tcase_add_loop_test(readers, shrinks_when_unused, 1, 5);
    tcase_add_test(readers, off);
    tcase_add_loop_test(readers, anything_at_all, 1, 30);
    suite_add_tcase(made, readers);
    return made;
}

#include "check_main.h"
