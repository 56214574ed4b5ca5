/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An io_uring and the thread that owns it. Any thread queues reads; the ring's thread submits them,
 * reaps their completions and calls back.
 */
#ifndef FSTFS_IO_RING_H
#define FSTFS_IO_RING_H

#include "base/error.h"
#include "base/fifo.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ring;

/* State that the rings of one storage share, all zero at first. */
struct rings {
    atomic_uint in_flight; /* reads of all rings, and of threads that count theirs here */
    atomic_int
        error; /* 0, or the error of the first ring that failed: no ring accepts reads then */
};

struct ring_read {
    struct fifo_node node;
    int fd;
    int flags; /* RWF_... */
    void *buffer;
    uint32_t length;
    uint64_t offset;
    uint64_t lane_key; /* backing_lane() of the file */
    bool may_wait; /* submission may wait for a server: the kernel is to submit in its own thread */
    bool urgent; /* set by ring_submit() */
    /* Set by the ring: */
    struct ring_lane *lane;
    uint64_t started; /* monotonic_ns() of the submission */
    unsigned others_at_start; /* other reads in flight then */
    uint64_t duration; /* nanoseconds */
    /* Called by the ring's thread. `result`: bytes read, or a negative errno. -ECANCELED: the ring
     * has failed, and the read was not submitted. */
    void (*complete)(struct ring_read *read, int result);
};

/* Starts a ring with at most `depth` reads in flight for one file system. If others have reads in
 * flight, it is limited to a share of 2 * `depth`, but never to less than one (lane_share() in
 * io/lanes.h). Background reads are limited further (io/concurrency.h).
 * Fails if the kernel or a sandbox refuses io_uring; `reason` then has the cause. */
errint_t ring_new(unsigned depth, struct rings *rings, struct ring **ring, struct reason *reason);

/* No read may be queued or in flight. */
void ring_free(struct ring *ring); /* NULL is allowed */

/* Queues a read. Foreground (urgent) reads are submitted before queued background reads. Returns
 * false, and does not take the read, if memory is short or a ring has failed because the kernel
 * refuses submissions, which is logged once. */
bool ring_submit(struct ring *ring, struct ring_read *read, bool urgent);

/* The current limit of background reads in flight. Any thread. */
unsigned ring_background_limit(struct ring *ring);

#endif
