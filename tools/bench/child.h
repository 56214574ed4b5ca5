/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that are measured: waited for, watched, and ended when they are no
 * longer wanted.
 */
#ifndef FSTFS_BENCH_CHILD_H
#define FSTFS_BENCH_CHILD_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Asked some ten times a second while children run; false: they are to be
 * killed. `tick` may be NULL. */
struct watch {
    bool (*tick)(void *arg);
    void *arg;
};

/* The exit status of a child that could not have what it needs of the machine. */
enum { CHILD_UNAVAILABLE = 69 };

/* In a child just forked: ends with its parent, takes signals as programs do. */
void child_begin(pid_t parent);

/*
 * Waits for children, and collects what they write into the other ends of `out`,
 * a pipe's reading end that is closed here. Gives the most memory one of them
 * had, in bytes. 0 when all ended well. Else the reason, in the words of the child
 * where it said any: -ENOTSUP for CHILD_UNAVAILABLE, -EINTR when the watch had
 * them killed, -EIO for all else.
 */
errint_t child_wait(const pid_t *pids, unsigned count, int out, const struct watch *watch,
                    struct buffer *said, uint64_t *memory, struct reason *reason);

#endif
