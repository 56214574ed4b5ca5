/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many reads that nobody waits for are given to storage at once.
 *
 * Storage that serves reads side by side - a network, an array - takes no longer for
 * each when it has more of them: then more bring more. Storage that is at its rate
 * takes longer for each and brings no more: then they only keep those waiting for whom a
 * reader waits. So the limit grows while reads take little longer than they do alone, and
 * shrinks when they take much longer, as TCP Vegas has it (Brakmo, O'Malley, Peterson,
 * 1994). How long they take alone shows only where few are under way: now and then there
 * are few, as BBR has it (Cardwell et al., 2016). Reads nothing itself; for one thread,
 * but for what is said.
 */
#ifndef FSTFS_IO_CONCURRENCY_H
#define FSTFS_IO_CONCURRENCY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct concurrency {
    atomic_uint limit; /* reads, from `least` to `most`; any thread may look */
    unsigned least, most;
    /* Of a round, which is as many reads as the limit: */
    unsigned ended;
    uint64_t total; /* nanoseconds that those took */
    bool held; /* a read had to wait for the limit */
    /* How long a read takes alone: */
    unsigned seen; /* reads ahead since that was looked for */
    uint64_t alone; /* nanoseconds that a short one took of late; 0: not known */
    unsigned probing; /* reads yet to end until it has been looked for */
    unsigned passed_over; /* reads yet to end that began under another limit */
};

void concurrency_init(struct concurrency *concurrency, unsigned least, unsigned most);

/* Whether one more may be given, when so many are under way. If not, it waits. */
bool concurrency_allows(struct concurrency *concurrency, unsigned under_way);

/* A read that has ended. */
struct concurrency_read {
    uint64_t duration; /* nanoseconds */
    unsigned beside_first, beside_last; /* others that the storage had when it began, and ended */
    bool ahead; /* nobody waited for it */
};

/* `under_way`: of those that are ahead, now. */
void concurrency_ended(struct concurrency *concurrency, const struct concurrency_read *read,
                       unsigned under_way);

#endif
