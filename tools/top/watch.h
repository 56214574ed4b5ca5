/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that samples the mount, so that the main thread never blocks on the daemon. */
#ifndef FSTFS_TOP_WATCH_H
#define FSTFS_TOP_WATCH_H

#include "sample.h"
#include "users.h"

#include <pthread.h>
#include <stdbool.h>

struct watch {
    const char *point;
    double interval; /* seconds */
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool ended; /* the thread must end */
    bool is_idle; /* the thread waits for the next interval, or has ended */
    struct sample sample; /* the last one */
    struct users users; /* scanned at the same time; used by the thread only, unless it is idle */
    unsigned sample_count;
    errint_t error; /* of the last sample; no more are taken then */
    struct reason reason;
};

errint_t watch_begin(struct watch *watch, const char *point, double interval);

/* Waits up to 0.2 s until more than `seen` samples were taken and the thread is idle. Then returns
 * true with the lock held: the caller reads the sample and the users, and calls watch_done(). */
bool watch_await(struct watch *watch, unsigned seen);
void watch_done(struct watch *watch);

/* Ends the thread. Returns false if it is blocked on the daemon: only _exit() ends it then. */
bool watch_end(struct watch *watch);

#endif
