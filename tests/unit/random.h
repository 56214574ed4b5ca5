/* SPDX-License-Identifier: Apache-2.0 */
/* Pseudo-random numbers, the same in each run: Knuth's generator for MMIX. */
#ifndef FSTFS_TESTS_RANDOM_H
#define FSTFS_TESTS_RANDOM_H

#include <assert.h>
#include <stdint.h>

/*
 * Returns a number from 0 to limit - 1. Tests call it for each byte of large buffers and on any
 * thread, so it uses assert(): ck_assert() writes to a file each time.
 */
static inline uint64_t
random_next(uint64_t *state, uint64_t limit)
{
    assert(limit > 0);
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % limit;
}

/* For tests with one thread. Assign a seed to restart the sequence. */
static uint64_t random_state;

static inline uint64_t
random_below(uint64_t limit)
{
    return random_next(&random_state, limit);
}

#endif
