/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that samples the mount, so that the program itself never blocks on the daemon. */
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
    bool ended; /* the thread is to end */
    bool is_idle; /* the thread waits for the next interval and will notice `ended` */
    struct sample sample; /* the last one */
    struct users users; /* scanned with it; used by the thread only, unless it is idle */
    unsigned sample_count;
    errint_t error; /* the last sample failed; there will be no more */
    struct reason reason;
};

errint_t watch_begin(struct watch *watch, const char *point, double interval);

/* Waits up to 0.2 s for a sample after the first `seen`. If there is one, returns true with the
 * lock held: the caller reads the sample and the users, and calls watch_done(). */
bool watch_await(struct watch *watch, unsigned seen);
void watch_done(struct watch *watch);

/* Ends the thread. Returns false if it is blocked on the daemon; only the end of the process ends
 * it then. */
bool watch_end(struct watch *watch);

#endif
