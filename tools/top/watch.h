/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that looks at the mount, again and again. A daemon that does not answer
 * holds it up, and not the program: that can say so, and be ended.
 */
#ifndef FSTFS_TOP_WATCH_H
#define FSTFS_TOP_WATCH_H

#include "sample.h"
#include "users.h"

#include <pthread.h>
#include <stdbool.h>

struct watch {
    const char *point;
    double interval;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool ended; /* it is to end */
    bool resting; /* it waits for its next turn, and will see `ended` */
    struct sample sample; /* the last one */
    struct users users; /* as of then; of the thread alone while it is not resting */
    unsigned turns; /* how many there were */
    errint_t error; /* the last one failed, and so there will be no more */
    struct reason reason;
};

errint_t watch_begin(struct watch *watch, const char *point, double interval);

/* Waits some tenths of a second at most for a turn after the first `turns`. Then, if
 * there is one, the caller holds the lock, and looks at the sample and users until
 * watch_done(). */
bool watch_await(struct watch *watch, unsigned turns);
void watch_done(struct watch *watch);

/* Ends the thread. False: it is held up, and only the end of the process ends it. */
bool watch_end(struct watch *watch);

#endif
