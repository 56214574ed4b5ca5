/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated network link, in virtual time. Every request has a latency of its own, and all
 * latencies elapse in parallel. The transmissions of the replies share the link one after another,
 * so that in any period the link carries at most its bandwidth. A reply that is submitted late
 * is transmitted from the time at which it was due: a busy processor costs no bandwidth.
 *
 * No I/O and no clock. Any thread.
 */
#ifndef SLOWFS_LINK_H
#define SLOWFS_LINK_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct link {
    uint64_t delay, jitter; /* nanoseconds */
    uint64_t bandwidth; /* bytes per second; 0: unlimited */
    pthread_mutex_t lock; /* guards all below */
    uint64_t requests; /* that have got a latency */
    uint64_t free_at; /* end of the last transmission, nanoseconds */
};

void link_init(struct link *link, uint64_t delay, uint64_t jitter, uint64_t bandwidth);

/* The latency of the next request in nanoseconds: the delay, and a random part of the jitter. The
 * sequence is the same for all links with these values. */
uint64_t link_latency(struct link *link);

/* The time at which a reply of `size` bytes has been transmitted that was due at `due`. */
uint64_t link_transmit(struct link *link, uint64_t due, size_t size);

#endif
