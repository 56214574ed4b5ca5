/* SPDX-License-Identifier: Apache-2.0 */
/* How many reads storage is given at once, by a model of storage: each read takes a way there and
 * back, which any number make side by side, and a time of service, which one has after another,
 * or (`shared`) all together. */
#include "expect.h"
#include "io/concurrency.h"
#include "random.h"

#include <check.h>

#define US 1000ull
#define MS (1000 * US)
#define LEAST 8
#define MOST 48
#define MOST_RINGS 4

struct read {
    unsigned ring;
    uint64_t begun, left; /* of its service; nanoseconds */
    uint64_t at; /* when it is served, by its way */
    unsigned beside;
};

struct storage {
    uint64_t way, service; /* nanoseconds */
    bool shared;
    uint64_t now;
    struct read reads[MOST_RINGS * MOST]; /* under way, oldest first */
    unsigned count;
    unsigned of_ring[MOST_RINGS];
};

static struct concurrency rings[MOST_RINGS];

static void
setup(void)
{
    for (unsigned i = 0; i < MOST_RINGS; i++)
        concurrency_init(&rings[i], LEAST, MOST);
}

static void
start_read(struct storage *storage, unsigned ring)
{
    storage->reads[storage->count] = (struct read){.ring = ring,
                                                   .begun = storage->now,
                                                   .left = storage->service,
                                                   .at = storage->now + storage->way,
                                                   .beside = storage->count};
    storage->count++;
    storage->of_ring[ring]++;
}

static void
end_read(struct storage *storage, unsigned place)
{
    const struct read read = storage->reads[place];
    struct concurrency_read ended = {
        .duration = storage->now - read.begun, .beside_first = read.beside, .ahead = true};

    storage->count--;
    storage->of_ring[read.ring]--;
    for (unsigned i = place; i < storage->count; i++)
        storage->reads[i] = storage->reads[i + 1];
    ended.beside_last = storage->count;
    concurrency_ended(&rings[read.ring], &ended, storage->of_ring[read.ring]);
}

/* Lets time go on until the next read has been served, or has made its way. */
static void
let_time_pass(struct storage *storage)
{
    struct read *served[MOST_RINGS * MOST];
    unsigned count = 0;
    uint64_t step = UINT64_MAX, part;

    for (unsigned i = 0; i < storage->count; i++) {
        struct read *read = &storage->reads[i];

        if (read->left == 0) {
            if (read->at - storage->now < step)
                step = read->at - storage->now;
        } else if (count == 0 || storage->shared) {
            served[count++] = read;
        }
    }
    for (unsigned i = 0; i < count; i++)
        if (served[i]->left * count < step)
            step = served[i]->left * count;
    part = count ? (step + count - 1) / count : 0;
    for (unsigned i = 0; i < count; i++)
        served[i]->left -= served[i]->left < part ? served[i]->left : part;
    storage->now += step;
}

/* Until a read has ended. */
static void
serve(struct storage *storage)
{
    for (;;) {
        for (unsigned i = 0; i < storage->count; i++) {
            if (storage->reads[i].left > 0 || storage->reads[i].at > storage->now)
                continue;
            end_read(storage, i);
            return;
        }
        let_time_pass(storage);
    }
}

/* So many reads by the rings in turn, each with as many under way as may be, and at most
 * `wanted`. Returns nanoseconds that one took, on average. */
static uint64_t
read_ahead(struct storage *storage, unsigned ring_count, unsigned reads, unsigned wanted)
{
    uint64_t begun = storage->now;

    for (unsigned i = 0; i < reads; i++) {
        for (unsigned ring = 0; ring < ring_count; ring++) {
            while (storage->of_ring[ring] < wanted &&
                   concurrency_allows(&rings[ring], storage->of_ring[ring]))
                start_read(storage, ring);
            expect(rings[ring].limit >= LEAST && rings[ring].limit <= MOST);
        }
        serve(storage);
    }
    assert_expectations();
    return (storage->now - begun) / reads;
}

START_TEST(storage_far_away_gets_many)
{
    struct storage storage = {.way = 30 * MS, .service = 20 * US};

    read_ahead(&storage, 1, 200, MOST);
    ck_assert_uint_eq(rings[0].limit, MOST);
}
END_TEST

/* One after another or all together, and by several rings, of which each knows only its own. */
START_TEST(storage_at_its_rate_gets_few)
{
    for (unsigned ring_count = 1; ring_count <= MOST_RINGS; ring_count++) {
        for (unsigned shared = 0; shared < 2; shared++) {
            struct storage storage = {.way = 50 * US, .service = 600 * US, .shared = shared};

            setup();
            read_ahead(&storage, ring_count, 10000, MOST);
            for (unsigned i = 0; i < ring_count; i++)
                ck_assert_uint_eq(rings[i].limit, LEAST);
        }
    }
}
END_TEST

/* What is read in bursts never lets a read be alone for long. */
START_TEST(bursts)
{
    for (unsigned burst = 16; burst <= 64; burst *= 2) {
        struct storage storage = {.way = 50 * US, .service = 600 * US, .shared = true};
        uint64_t sum = 0;

        setup();
        for (unsigned i = 0; i < 400; i++) {
            for (unsigned given = 0; given < burst || storage.count > 0;) {
                while (given < burst && concurrency_allows(&rings[0], storage.count)) {
                    start_read(&storage, 0);
                    given++;
                }
                serve(&storage);
            }
            storage.now += 10 * MS;
            sum += rings[0].limit;
        }
        ck_assert_uint_le(sum / 400, 2 * LEAST);
    }
}
END_TEST

/* A line of so many reads at once: it is to be full, and not have as many again waiting. */
START_TEST(a_line_is_filled)
{
    for (unsigned reads = 10; reads <= 24; reads++) {
        struct storage storage = {.way = 10 * MS, .service = 10 * MS / reads};

        setup();
        read_ahead(&storage, 1, 500, MOST);
        ck_assert_uint_le(read_ahead(&storage, 1, 500, MOST), storage.service * 102 / 100);
        ck_assert_uint_le(rings[0].limit, 2 * reads + 1);
    }
}
END_TEST

START_TEST(who_wants_few_gets_no_more)
{
    struct storage storage = {.way = 30 * MS};

    read_ahead(&storage, 1, 1000, LEAST);
    ck_assert_uint_eq(rings[0].limit, LEAST);
}
END_TEST

START_TEST(storage_that_slows_down_gets_fewer)
{
    struct storage storage = {.way = 2 * MS};

    read_ahead(&storage, 1, 500, MOST);
    ck_assert_uint_eq(rings[0].limit, MOST);
    storage.service = 2 * MS;
    read_ahead(&storage, 1, 600, MOST);
    ck_assert_uint_eq(rings[0].limit, LEAST);
}
END_TEST

/* A few reads came from some cache; that is forgotten. */
START_TEST(a_short_read_is_forgotten)
{
    struct storage storage = {.way = 20 * MS};
    struct concurrency_read cached = {.duration = 100 * US};

    read_ahead(&storage, 1, 6, 1);
    concurrency_ended(&rings[0], &cached, 0);
    read_ahead(&storage, 1, 1000, MOST);
    ck_assert_uint_eq(rings[0].limit, LEAST);
    read_ahead(&storage, 1, 8000, MOST);
    ck_assert_uint_eq(rings[0].limit, MOST);
}
END_TEST

/* To look how long one takes alone costs little, however many there are. */
START_TEST(probes_are_cheap)
{
    const unsigned limits[] = {MOST, 300, 3000};

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        struct concurrency *concurrency = &rings[0];
        unsigned held_back = 0, reads = 200 * 3000;

        concurrency_init(concurrency, limits[i], limits[i]);
        for (unsigned j = 0; j < reads; j++) {
            struct concurrency_read read = {
                .duration = MS, .beside_first = limits[i], .beside_last = limits[i], .ahead = true};

            held_back += !concurrency_allows(concurrency, limits[i] - 1);
            concurrency_ended(concurrency, &read, limits[i] - 1);
        }
        /* Each holds back about as many as were under way, and the few that it takes. */
        ck_assert_uint_gt(held_back, 0);
        ck_assert_uint_lt(held_back, reads / 25);
    }
}
END_TEST

START_TEST(any_durations)
{
    struct concurrency *concurrency = &rings[0];

    random_state = 1;
    for (unsigned i = 0; i < 100000; i++) {
        unsigned under_way = (unsigned)random_below(MOST + 1);
        struct concurrency_read read = {.duration = random_below(1ull << random_below(31)),
                                        .beside_first = (unsigned)random_below(MOST),
                                        .beside_last = (unsigned)random_below(MOST),
                                        .ahead = random_below(4) > 0};

        expect(under_way < MOST || !concurrency_allows(concurrency, under_way));
        expect(under_way > 0 || concurrency_allows(concurrency, under_way));
        concurrency_ended(concurrency, &read, under_way);
        expect(concurrency->limit >= LEAST && concurrency->limit <= MOST);
    }
    assert_expectations();
}
END_TEST

/* What --queue-depth says: of few, each counts, and of one there is one for good. */
START_TEST(small_depths)
{
    for (unsigned most = 0; most < LEAST; most++) {
        struct storage far = {.way = 30 * MS}, serial = {.service = 5 * MS};

        concurrency_init(&rings[0], 1, most);
        for (unsigned i = 0; i < 300; i++) {
            while (concurrency_allows(&rings[0], far.count))
                start_read(&far, 0);
            serve(&far);
        }
        ck_assert_uint_eq(rings[0].limit, most > 1 ? most : 1);
        rings[0].alone = MS;
        for (unsigned i = 0; i < 300; i++) {
            while (concurrency_allows(&rings[0], serial.count))
                start_read(&serial, 0);
            serve(&serial);
        }
        ck_assert_uint_le(rings[0].limit, 3);
    }
}
END_TEST

static Suite *
suite(void)
{
    Suite *suite = suite_create("concurrency");
    TCase *tcase = tcase_create("storages");

    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, storage_far_away_gets_many);
    tcase_add_test(tcase, storage_at_its_rate_gets_few);
    tcase_add_test(tcase, bursts);
    tcase_add_test(tcase, a_line_is_filled);
    tcase_add_test(tcase, who_wants_few_gets_no_more);
    tcase_add_test(tcase, storage_that_slows_down_gets_fewer);
    tcase_add_test(tcase, a_short_read_is_forgotten);
    tcase_add_test(tcase, probes_are_cheap);
    tcase_add_test(tcase, any_durations);
    tcase_add_test(tcase, small_depths);
    suite_add_tcase(suite, tcase);
    return suite;
}

#include "check_main.h"
