/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that look random and are the same in each run: Knuth's generator for MMIX. */
#ifndef FSTFS_TESTS_RANDOM_H
#define FSTFS_TESTS_RANDOM_H

#include <check.h>
#include <stdint.h>

/* One from 0 to limit - 1. */
static inline uint64_t
random_next(uint64_t *state, uint64_t limit)
{
    ck_assert_uint_gt(limit, 0);
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % limit;
}

/* For tests of one thread: set it to begin anew. */
static uint64_t random_state;

static inline uint64_t
random_below(uint64_t limit)
{
    return random_next(&random_state, limit);
}

#endif
