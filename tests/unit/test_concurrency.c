/* SPDX-License-Identifier: Apache-2.0 */
/* The limit of background reads in flight, with a model of storage. A read takes a latency, which
 * elapses for all reads in parallel, and then a service time. The storage serves one read at a time
 * or (`shared`) all reads at once, each at a fraction of the rate. */
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
    uint64_t submitted, left; /* service time left, nanoseconds */
    uint64_t ready_at; /* end of its latency */
    unsigned others;
};

struct storage {
    uint64_t latency, service; /* nanoseconds */
    uint64_t jitter; /* maximum of the random time that is added to each latency */
    bool shared;
    uint64_t now;
    struct read reads[MOST_RINGS * MOST]; /* in flight, oldest first */
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
                                                   .submitted = storage->now,
                                                   .left = storage->service,
                                                   .ready_at = storage->now + storage->latency +
                                                               random_below(storage->jitter + 1),
                                                   .others = storage->count};
    storage->count++;
    storage->of_ring[ring]++;
}

static void
end_read(struct storage *storage, unsigned place)
{
    const struct read read = storage->reads[place];
    struct concurrency_read ended = {.duration = storage->now - read.submitted,
                                     .others_at_start = read.others,
                                     .is_background = true};

    storage->count--;
    storage->of_ring[read.ring]--;
    for (unsigned i = place; i < storage->count; i++)
        storage->reads[i] = storage->reads[i + 1];
    ended.others_at_end = storage->count;
    concurrency_ended(&rings[read.ring], &ended, storage->of_ring[read.ring]);
}

/* Advances the time to the next end of a service or latency. */
static void
advance_time(struct storage *storage)
{
    struct read *served[MOST_RINGS * MOST];
    unsigned count = 0;
    uint64_t step = UINT64_MAX, part;

    for (unsigned i = 0; i < storage->count; i++) {
        struct read *read = &storage->reads[i];

        if (read->left == 0) {
            if (read->ready_at - storage->now < step)
                step = read->ready_at - storage->now;
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

/* Advances the time until a read ends. */
static void
serve(struct storage *storage)
{
    for (;;) {
        for (unsigned i = 0; i < storage->count; i++) {
            if (storage->reads[i].left > 0 || storage->reads[i].ready_at > storage->now)
                continue;
            end_read(storage, i);
            return;
        }
        advance_time(storage);
    }
}

/* Ends `reads` reads of the rings, each with as many in flight as its limit allows, and at most
 * `wanted`. Returns the mean time per read in nanoseconds. */
static uint64_t
run_reads(struct storage *storage, unsigned ring_count, unsigned reads, unsigned wanted)
{
    uint64_t start = storage->now;

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
    return (storage->now - start) / reads;
}

/* Without the trial that may be in progress. */
static unsigned
limit_of(const struct concurrency *concurrency)
{
    return concurrency->trial_from ? concurrency->trial_from : concurrency->limit;
}

START_TEST(limit_grows_with_latency)
{
    struct storage storage = {.latency = 30 * MS, .service = 20 * US};

    run_reads(&storage, 1, 200, MOST);
    ck_assert_uint_eq(rings[0].limit, MOST);
}
END_TEST

/* With serial and with shared service, and with several independent rings. */
START_TEST(limit_stays_low_at_maximum_throughput)
{
    for (unsigned ring_count = 1; ring_count <= MOST_RINGS; ring_count++) {
        for (unsigned shared = 0; shared < 2; shared++) {
            struct storage storage = {.latency = 50 * US, .service = 600 * US, .shared = shared};

            setup();
            run_reads(&storage, ring_count, 10000, MOST);
            for (unsigned i = 0; i < ring_count; i++)
                ck_assert_uint_eq(limit_of(&rings[i]), LEAST);
        }
    }
}
END_TEST

/* In bursts, reads are uncontended only for a short time. */
START_TEST(limit_stays_low_in_bursts)
{
    for (unsigned burst = 16; burst <= 64; burst *= 2) {
        struct storage storage = {.latency = 50 * US, .service = 600 * US, .shared = true};
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

/* A link that holds `reads` reads in flight is filled, without queueing as many again. */
START_TEST(link_is_filled)
{
    for (unsigned reads = 10; reads <= 24; reads++) {
        struct storage storage = {.latency = 10 * MS, .service = 10 * MS / reads};

        setup();
        run_reads(&storage, 1, 500, MOST);
        ck_assert_uint_le(run_reads(&storage, 1, 500, MOST), storage.service * 102 / 100);
        ck_assert_uint_le(limit_of(&rings[0]), 2 * reads + 1);
    }
}
END_TEST

/* The latency rises while reads are in flight, as it does when a server is asked for attributes
 * again. More reads then fit into the link. */
START_TEST(link_is_filled_if_latency_rises)
{
    for (unsigned factor = 2; factor <= 4; factor++) {
        struct storage storage = {.latency = 7 * MS, .service = 1 * MS};

        setup();
        run_reads(&storage, 1, 200, MOST);
        storage.latency *= factor;
        run_reads(&storage, 1, 600, MOST);
        ck_assert_uint_le(run_reads(&storage, 1, 500, MOST), storage.service * 105 / 100);
    }
}
END_TEST

START_TEST(link_is_filled_with_jitter)
{
    random_state = 3;
    for (unsigned reads = 10; reads <= 24; reads += 2) {
        struct storage storage = {
            .latency = 10 * MS, .jitter = 10 * MS, .service = 10 * MS / reads};

        setup();
        run_reads(&storage, 1, 1000, MOST);
        ck_assert_uint_le(run_reads(&storage, 1, 1000, MOST), storage.service * 110 / 100);
    }
}
END_TEST

/* Trials of a higher limit that gain nothing become rare. */
START_TEST(trials_are_rare_at_maximum_throughput)
{
    struct storage storage = {.latency = 50 * US, .service = 600 * US, .shared = true};
    unsigned in_trial = 0;

    for (unsigned i = 0; i < 20000; i++) {
        run_reads(&storage, 1, 1, MOST);
        in_trial += rings[0].limit > LEAST;
    }
    ck_assert_uint_gt(in_trial, 0);
    ck_assert_uint_lt(in_trial, 20000 / 40);
}
END_TEST

START_TEST(limit_does_not_grow_unused)
{
    struct storage storage = {.latency = 30 * MS};

    run_reads(&storage, 1, 1000, LEAST);
    ck_assert_uint_eq(rings[0].limit, LEAST);
}
END_TEST

START_TEST(limit_shrinks_if_storage_slows_down)
{
    struct storage storage = {.latency = 2 * MS};

    run_reads(&storage, 1, 500, MOST);
    ck_assert_uint_eq(rings[0].limit, MOST);
    storage.service = 2 * MS;
    run_reads(&storage, 1, 600, MOST);
    ck_assert_uint_eq(rings[0].limit, LEAST);
}
END_TEST

/* One short read, from a cache of the storage, has no lasting effect. */
START_TEST(short_read_is_forgotten)
{
    struct storage storage = {.latency = 20 * MS};
    struct concurrency_read cached = {.duration = 100 * US};

    run_reads(&storage, 1, 6, 1);
    concurrency_ended(&rings[0], &cached, 0);
    run_reads(&storage, 1, 500, MOST);
    ck_assert_uint_eq(limit_of(&rings[0]), MOST);
}
END_TEST

/* The probes cost little, whatever the limit. */
START_TEST(probes_are_cheap)
{
    const unsigned limits[] = {MOST, 300, 3000};

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        struct concurrency *concurrency = &rings[0];
        unsigned held_back = 0, reads = 200 * 3000;

        concurrency_init(concurrency, limits[i], limits[i]);
        for (unsigned j = 0; j < reads; j++) {
            struct concurrency_read read = {.duration = MS,
                                            .others_at_start = limits[i],
                                            .others_at_end = limits[i],
                                            .is_background = true};

            held_back += !concurrency_allows(concurrency, limits[i] - 1);
            concurrency_ended(concurrency, &read, limits[i] - 1);
        }
        /* Each probe holds back about as many reads as were in flight, and the reads that it
         * measures. */
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
        unsigned in_flight = (unsigned)random_below(MOST + 1);
        struct concurrency_read read = {.duration = random_below(1ull << random_below(31)),
                                        .others_at_start = (unsigned)random_below(MOST),
                                        .others_at_end = (unsigned)random_below(MOST),
                                        .is_background = random_below(4) > 0};

        expect(in_flight < MOST || !concurrency_allows(concurrency, in_flight));
        expect(in_flight > 0 || concurrency_allows(concurrency, in_flight));
        concurrency_ended(concurrency, &read, in_flight);
        expect(concurrency->limit >= LEAST && concurrency->limit <= MOST);
    }
    assert_expectations();
}
END_TEST

/* Small values of --queue-depth. */
START_TEST(small_depths)
{
    for (unsigned most = 0; most < LEAST; most++) {
        struct storage far = {.latency = 30 * MS}, serial = {.service = 5 * MS};

        concurrency_init(&rings[0], 1, most);
        for (unsigned i = 0; i < 300; i++) {
            while (concurrency_allows(&rings[0], far.count))
                start_read(&far, 0);
            serve(&far);
        }
        ck_assert_uint_eq(rings[0].limit, most > 1 ? most : 1);
        rings[0].uncontended = MS;
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
    tcase_add_test(tcase, limit_grows_with_latency);
    tcase_add_test(tcase, limit_stays_low_at_maximum_throughput);
    tcase_add_test(tcase, limit_stays_low_in_bursts);
    tcase_add_test(tcase, link_is_filled);
    tcase_add_test(tcase, link_is_filled_if_latency_rises);
    tcase_add_test(tcase, link_is_filled_with_jitter);
    tcase_add_test(tcase, trials_are_rare_at_maximum_throughput);
    tcase_add_test(tcase, limit_does_not_grow_unused);
    tcase_add_test(tcase, limit_shrinks_if_storage_slows_down);
    tcase_add_test(tcase, short_read_is_forgotten);
    tcase_add_test(tcase, probes_are_cheap);
    tcase_add_test(tcase, any_durations);
    tcase_add_test(tcase, small_depths);
    suite_add_tcase(suite, tcase);
    return suite;
}

#include "check_main.h"
