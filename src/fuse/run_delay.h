/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long threads of the daemon waited for a processor, from /proc/self/task/TID/schedstat
 * (proc(5)). The daemon cannot measure this otherwise: until a thread runs, its request is in the
 * kernel's queue.
 */
#ifndef FSTFS_FUSE_RUN_DELAY_H
#define FSTFS_FUSE_RUN_DELAY_H

#include <stdint.h>

/* Opens the directory that run_delay_increase() reads, for the life of the process. Returns the
 * descriptor; -1: it cannot be opened. Must be called in the daemon, after it has forked and before
 * it enters the sandbox. */
int run_delay_open(void);

/* Returns the nanoseconds that this thread has waited for a processor since its last measurement,
 * or since it was started; 0 if that is not known. Takes a few microseconds. */
uint64_t run_delay_increase(void);

/* Discards the delay of this thread up to now. Does nothing less than a millisecond after the last
 * measurement, so up to a millisecond of delay may remain. */
void run_delay_restart(void);

#endif
