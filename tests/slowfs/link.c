/* SPDX-License-Identifier: Apache-2.0 */
#include "link.h"

#define SECOND_NS UINT64_C(1000000000)

void
link_init(struct link *link, uint64_t delay, uint64_t jitter, uint64_t bandwidth)
{
    *link = (struct link){.delay = delay, .jitter = jitter, .bandwidth = bandwidth};
    pthread_mutex_init(&link->lock, NULL);
}

/* SplitMix64 (Steele, Lea, Flood, 2014). */
static uint64_t
random_number(uint64_t index)
{
    uint64_t z = index * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t
link_latency(struct link *link)
{
    uint64_t number;

    if (link->jitter == 0)
        return link->delay;
    pthread_mutex_lock(&link->lock);
    number = ++link->requests;
    pthread_mutex_unlock(&link->lock);
    return link->delay + random_number(number) % (link->jitter + 1);
}

uint64_t
link_transmit(struct link *link, uint64_t due, size_t size)
{
    uint64_t end = due;

    if (link->bandwidth == 0 || size == 0)
        return due;
    pthread_mutex_lock(&link->lock);
    if (link->free_at > due)
        end = link->free_at;
    /* Rounded up: never faster than the bandwidth. */
    end += (size * SECOND_NS + link->bandwidth - 1) / link->bandwidth;
    link->free_at = end;
    pthread_mutex_unlock(&link->lock);
    return end;
}
