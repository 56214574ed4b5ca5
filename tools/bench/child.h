/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Child processes that are measured. Each reader of a model runs in a process of its own, so that
 * its peak memory is known and none of its state remains.
 */
#ifndef FSTFS_BENCH_CHILD_H
#define FSTFS_BENCH_CHILD_H

#include "base/buffer.h"
#include "base/error.h"
#include "common/progress.h"

/* Exit status of a child whose requirements this machine does not meet. */
enum { CHILD_UNAVAILABLE = 69 };

enum { CHILDREN_MOST = 64 };

/* The work of a child: it writes results to `out` and ends the process. `number` counts from 0. */
typedef void child_main(void *arg, unsigned number, int out);

/*
 * Forks `count` children, waits for them and appends what they write to `output`. Gives the
 * largest peak memory of one of them in bytes. `progress` may be NULL; it is redrawn while the
 * children run, and a signal that it reports kills them. Children die with this process.
 *
 * Returns 0 if all exited with status 0. Otherwise `reason` is the first line they wrote, if any:
 * -ENOTSUP for CHILD_UNAVAILABLE, -EINTR after a signal, -EIO or another errno for the rest.
 */
errint_t children_run(unsigned count, child_main *run, void *arg, struct progress *progress,
                      struct buffer *output, uint64_t *memory, struct reason *reason);

/* In a child: writes a message to `out` and exits. */
void __attribute__((noreturn, format(printf, 3, 4)))
child_fail(int out, int status, const char *format, ...);

#endif
