/* SPDX-License-Identifier: Apache-2.0 */
/* The monotonic clock: the time since an arbitrary start, in three units. Any thread. */
#ifndef FSTFS_BASE_CLOCK_H
#define FSTFS_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t
monotonic_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Not inline, in an object of its own: unit tests replace it. */
uint64_t monotonic_ms(void);

static inline double
monotonic_seconds(void)
{
    return (double)monotonic_ns() / 1e9;
}

#endif
