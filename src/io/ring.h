/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An io_uring with the thread that owns it: reads come in from any thread, the
 * ring's own thread submits them, takes their completions and calls back.
 */
#ifndef FSTFS_IO_RING_H
#define FSTFS_IO_RING_H

#include "base/error.h"
#include "base/fifo.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring;

/* What the rings of one storage share, all zero at first. */
struct rings {
    atomic_uint
        in_flight; /* reads that the kernel has, of all rings, and of threads that count theirs */
    atomic_int error; /* with which the first of them failed: none takes reads any more; or 0 */
};

struct ring_read {
    struct fifo_node node;
    int fd;
    int flags; /* RWF_... */
    void *buffer;
    uint32_t length;
    uint64_t offset;
    uint64_t device; /* st_dev of the file system */
    bool urgent; /* set by ring_submit() */
    /* By the ring: its lane, when the kernel was given it, by monotonic_ns(), how many more it had,
     * and how many nanoseconds it took. */
    struct ring_lane *lane;
    uint64_t started;
    unsigned beside;
    uint64_t duration;
    /* From the ring's thread; `result` is what pread would give, errors negative. -ECANCELED: the
     * ring has failed, and the kernel was not given the read. */
    void (*complete)(struct ring_read *read, int result);
};

/* At most `depth` reads of one file system given to the kernel at once, and twice as many of all,
 * or one of each (io/lanes.h), of which only some that are not urgent: as many as the storage
 * serves side by side. Fails where the kernel or a sandbox refuses, and says in `reason` why. */
errint_t ring_new(unsigned depth, struct rings *rings, struct ring **ring, struct reason *reason);

/* Nothing may be under way. */
void ring_free(struct ring *ring); /* NULL is allowed */

/* Urgent reads go before others that the kernel has not been given yet, and have few of
 * them beside them. Returns false, and does not take the read, if there is no memory, or once
 * a ring has failed: the kernel does not take submissions any more, which is logged once. */
bool ring_submit(struct ring *ring, struct ring_read *read, bool urgent);

/* How many reads that are not urgent the kernel may be given, as of now. Any thread. */
unsigned ring_most_ahead(struct ring *ring);

#endif
