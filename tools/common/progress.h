/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress bar, on standard error where that is a terminal, and signals that
 * end a program in an orderly way.
 */
#ifndef FSTFS_COMMON_PROGRESS_H
#define FSTFS_COMMON_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool shown;
    bool has_rate; /* bytes in a second are shown too */
    double begin; /* when work began, in seconds */
    double drawn; /* when it was drawn last */
    uint64_t all, finished; /* bytes to be read in all; of work that has ended */
    _Atomic uint64_t *running; /* bytes of what runs; shared with children; or NULL */
    char what[120]; /* what runs */
};

/* Catches SIGINT, SIGTERM and SIGHUP: from then on they only leave a mark. */
void progress_catch_signals(void);
/* The signal that came; 0: none. */
int progress_signal(void);

void progress_begin(struct progress *progress, uint64_t all);
/* Work of so many bytes begins; and has ended, or was left out. */
void progress_start(struct progress *progress, const char *what);
void progress_finish(struct progress *progress, uint64_t bytes);
/* Takes the bar away. */
void progress_end(struct progress *progress);

/* Some ten times a second while work runs: draws. False once a signal came. `progress`
 * is a struct progress. */
bool progress_tick(void *progress);

#endif
