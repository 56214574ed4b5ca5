/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limit of background reads in flight.
 *
 * Storage that serves reads in parallel (a network, an array) takes no longer for each read if more
 * are in flight: more of them increase the throughput. Storage at its maximum throughput takes
 * longer for each: more background reads then only delay foreground reads. So the limit grows
 * while reads take little longer than the uncontended latency, and shrinks if they take much
 * longer, like TCP Vegas (Brakmo, O'Malley, Peterson, 1994). The uncontended latency shows only
 * when few reads are in flight, so this is arranged from time to time, like in BBR (Cardwell et
 * al., 2016).
 *
 * The estimate is too low if latency varies (jitter, attributes that are revalidated), or if reads
 * are larger than the measured ones. So from time to time, for one round, the limit is raised by
 * half. If the throughput grows with it, nothing was contended: the limit stays raised, and the
 * latency of that round is the new estimate. The throughput is that of all rings, since a higher
 * limit may just take throughput from the other rings.
 *
 * Bookkeeping without I/O, for one thread except where noted.
 */
#ifndef FSTFS_IO_CONCURRENCY_H
#define FSTFS_IO_CONCURRENCY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct concurrency {
    atomic_uint limit; /* reads, from `least` to `most`; any thread may read it */
    unsigned least, most;
    unsigned to_skip; /* completions to ignore: of reads submitted under another limit */
    /* The uncontended latency: */
    uint64_t uncontended; /* nanoseconds; 0: not known */
    unsigned since_probe; /* background reads that ended */
    unsigned probing; /* reads that must complete before the current probe ends; 0: no probe */
    /* The current round, which ends after as many background reads as the limit: */
    uint64_t total; /* nanoseconds that they took */
    uint64_t others; /* other reads in flight when they started, summed */
    unsigned ended; /* reads */
    bool was_limited; /* a read had to wait for the limit */
    /* Trials of a higher limit: */
    unsigned trial_from; /* the limit before the current trial; 0: none */
    uint64_t mean_before, in_flight_before; /* of the round before it */
    unsigned rounds, trial_after; /* limited rounds since the last trial, until the next one */
};

void concurrency_init(struct concurrency *concurrency, unsigned least, unsigned most);

/* Whether another background read may be submitted while `in_flight` of them are in flight. If not,
 * the caller keeps the read queued. */
bool concurrency_allows(struct concurrency *concurrency, unsigned in_flight);

/* A completed read. */
struct concurrency_read {
    uint64_t duration; /* nanoseconds */
    unsigned others_at_start, others_at_end; /* other reads of this storage in flight */
    bool is_background;
};

/* Adapts the limit after a read, with `in_flight` background reads still in flight. */
void concurrency_ended(struct concurrency *concurrency, const struct concurrency_read *read,
                       unsigned in_flight);

#endif
