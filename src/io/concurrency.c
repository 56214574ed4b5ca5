/* SPDX-License-Identifier: Apache-2.0 */
#include "io/concurrency.h"

/* A probe of the uncontended latency starts after this many background reads, and at least this
 * many rounds. It lasts for PROBE_READS reads, with at most PROBE_IN_FLIGHT in flight. */
#define READS_BETWEEN_PROBES 2048
#define ROUNDS_BETWEEN_PROBES 64
#define PROBE_READS 6
#define FIRST_PROBE_READS 2 /* nothing else is in flight, and a load is waiting */
#define PROBE_IN_FLIGHT 2
/* A longer uncontended read moves the estimate by this fraction: reads have several sizes, and
 * storage has good and bad moments. A shorter one replaces it. */
#define UNCONTENDED_FRACTION 8
/* Rounds between two trials of a higher limit: at first, and at most. Doubled after each trial that
 * does not increase the throughput. */
#define TRIAL_ROUNDS_MIN 4
#define TRIAL_ROUNDS_MAX 256
/* A trial shows nothing unless the reads in flight grow by this fraction. */
#define TRIAL_FRACTION 4

void
concurrency_init(struct concurrency *concurrency, unsigned least, unsigned most)
{
    *concurrency = (struct concurrency){
        .limit = least,
        .least = least,
        .most = most > least ? most : least,
        .probing = FIRST_PROBE_READS,
        .trial_after = TRIAL_ROUNDS_MIN,
    };
}

bool
concurrency_allows(struct concurrency *concurrency, unsigned in_flight)
{
    if (concurrency->probing > 0 && in_flight >= PROBE_IN_FLIGHT)
        return false;
    if (in_flight < concurrency->limit)
        return true;
    concurrency->was_limited = true;
    return false;
}

static void
concurrency_note_uncontended(struct concurrency *concurrency, uint64_t duration)
{
    if (concurrency->uncontended == 0 || duration < concurrency->uncontended)
        concurrency->uncontended = duration;
    else
        concurrency->uncontended += (duration - concurrency->uncontended) / UNCONTENDED_FRACTION;
}

/* The limit after a round with this mean latency. At twice the uncontended latency, as many reads
 * are queued in the storage as are served. */
static unsigned
limit_by_latency(const struct concurrency *concurrency, uint64_t mean)
{
    unsigned limit = concurrency->limit;

    if (concurrency->was_limited && mean < concurrency->uncontended / 2 * 3)
        return limit + limit / 2 + 1;
    if (mean > concurrency->uncontended * 2)
        return limit - (limit + 3) / 4;
    return limit;
}

/* Whether the trial that ends now has increased the throughput, in flight over latency, by at least
 * half as much as the reads in flight. */
static bool
trial_has_succeeded(const struct concurrency *concurrency, uint64_t mean, uint64_t in_flight)
{
    uint64_t before = concurrency->in_flight_before;

    if (!concurrency->was_limited || mean == 0 || in_flight < before + before / TRIAL_FRACTION)
        return false;
    return in_flight * concurrency->mean_before >= (before + in_flight) / 2 * mean;
}

/* The limit after a trial. */
static unsigned
limit_after_trial(struct concurrency *concurrency, uint64_t mean, uint64_t in_flight)
{
    unsigned before = concurrency->trial_from;

    concurrency->trial_from = 0;
    concurrency->rounds = 0;
    if (trial_has_succeeded(concurrency, mean, in_flight)) {
        concurrency->trial_after = TRIAL_ROUNDS_MIN;
        if (concurrency->uncontended < mean)
            concurrency->uncontended = mean;
        return concurrency->limit;
    }
    if (concurrency->trial_after < TRIAL_ROUNDS_MAX)
        concurrency->trial_after *= 2;
    return before;
}

/* Begins a trial if one is due, after a round that did not change the limit. */
static unsigned
limit_for_trial(struct concurrency *concurrency, uint64_t mean, uint64_t in_flight)
{
    unsigned limit = concurrency->limit;

    concurrency->rounds += concurrency->was_limited;
    if (!concurrency->was_limited || concurrency->rounds < concurrency->trial_after)
        return limit;
    concurrency->trial_from = limit;
    concurrency->mean_before = mean;
    concurrency->in_flight_before = in_flight;
    return limit + limit / 2 + 1;
}

static void
concurrency_end_round(struct concurrency *concurrency, unsigned background)
{
    uint64_t mean = concurrency->total / concurrency->ended;
    /* Of all rings, in units that keep fractions of a read. */
    uint64_t in_flight = (concurrency->others + concurrency->ended) * 64 / concurrency->ended;
    unsigned limit;

    if (concurrency->trial_from > 0)
        limit = limit_after_trial(concurrency, mean, in_flight);
    else
        limit = limit_by_latency(concurrency, mean);
    if (limit < concurrency->least)
        limit = concurrency->least;
    if (limit == concurrency->limit)
        limit = limit_for_trial(concurrency, mean, in_flight);
    if (limit > concurrency->most)
        limit = concurrency->most;
    if (limit != concurrency->limit)
        concurrency->to_skip = background;
    concurrency->limit = limit;
    concurrency->was_limited = false;
    concurrency->ended = 0;
    concurrency->total = 0;
    concurrency->others = 0;
}

void
concurrency_ended(struct concurrency *concurrency, const struct concurrency_read *read,
                  unsigned in_flight)
{
    if (read->others_at_start < PROBE_IN_FLIGHT && read->others_at_end < PROBE_IN_FLIGHT)
        concurrency_note_uncontended(concurrency, read->duration);
    if (!read->is_background)
        return;
    if (concurrency->probing > 0) {
        concurrency->probing--;
        return;
    }
    if (++concurrency->since_probe >= READS_BETWEEN_PROBES &&
        concurrency->since_probe >= ROUNDS_BETWEEN_PROBES * concurrency->limit) {
        concurrency->since_probe = 0;
        concurrency->probing = in_flight + PROBE_READS;
    }
    if (concurrency->to_skip > 0) {
        concurrency->to_skip--;
        return;
    }
    concurrency->total += read->duration;
    concurrency->others += read->others_at_start;
    if (++concurrency->ended >= concurrency->limit)
        concurrency_end_round(concurrency, in_flight);
}
