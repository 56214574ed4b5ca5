/* SPDX-License-Identifier: Apache-2.0 */
#include "io/concurrency.h"

/* A probe of the uncontended latency starts after this many background reads, and at least this
 * many rounds. It lasts for PROBE_READS reads, with at most PROBE_IN_FLIGHT in flight. */
#define READS_BETWEEN_PROBES 2048
#define ROUNDS_BETWEEN_PROBES 64
#define PROBE_READS 6
#define PROBE_IN_FLIGHT 2
/* A longer uncontended read moves the estimate by this fraction: reads have several sizes, and
 * storage has good and bad moments. A shorter one replaces it. */
#define UNCONTENDED_FRACTION 8

void
concurrency_init(struct concurrency *concurrency, unsigned least, unsigned most)
{
    *concurrency = (struct concurrency){
        .limit = least,
        .least = least,
        .most = most > least ? most : least,
        .probing = PROBE_READS,
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

static void
concurrency_end_round(struct concurrency *concurrency, unsigned in_flight)
{
    uint64_t mean = concurrency->total / concurrency->ended;
    unsigned limit = concurrency->limit;

    /* At twice the uncontended latency, as many reads are queued in the storage as are served. */
    if (concurrency->was_limited && mean < concurrency->uncontended / 2 * 3)
        limit += limit / 2 + 1;
    else if (mean > concurrency->uncontended * 2)
        limit -= (limit + 3) / 4;
    if (limit < concurrency->least)
        limit = concurrency->least;
    if (limit > concurrency->most)
        limit = concurrency->most;
    if (limit != concurrency->limit)
        concurrency->to_skip = in_flight;
    concurrency->limit = limit;
    concurrency->was_limited = false;
    concurrency->ended = 0;
    concurrency->total = 0;
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
    if (++concurrency->ended >= concurrency->limit)
        concurrency_end_round(concurrency, in_flight);
}
