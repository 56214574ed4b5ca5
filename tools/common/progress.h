/* SPDX-License-Identifier: Apache-2.0 */
/* A progress bar on standard error, if that is a terminal, and the signals that end a program. */
#ifndef FSTFS_COMMON_PROGRESS_H
#define FSTFS_COMMON_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool shown;
    bool has_rate; /* also shows bytes per second */
    double begin; /* when progress_begin() was called, monotonic_seconds() */
    _Atomic double drawn; /* when the bar was last drawn */
    atomic_flag is_drawing; /* a thread draws the bar */
    uint64_t all, finished; /* bytes: in total; of finished steps */
    _Atomic uint64_t *running; /* bytes done in the current step, in memory that children share;
                                  NULL if it could not be mapped */
    char what[120]; /* the current step */
};

/* Seconds in which a program must end after a signal. While a system call waits for storage, only a
 * signal that kills may end it. */
enum { PROGRESS_END_SECONDS = 10 };

/* Catches SIGINT, SIGTERM and SIGHUP: from then on they are recorded and interrupt the calling
 * thread, and SIGALRM, whose default action is restored, kills the program PROGRESS_END_SECONDS
 * after the first one. A signal that is ignored stays ignored, such as SIGHUP under nohup(1). If no
 * thread can be started, all keep their actions. Call it once, before other threads are started. */
void progress_catch_signals(void);

/* From now on signals are only recorded, because the program has work to complete or to undo. */
void progress_cancel_deadline(void);

/* In a child process: these signals have their default action again, except those that are ignored.
 */
void progress_release_signals(void);

/* Returns the last signal caught, or 0. */
int progress_signal(void);

void progress_begin(struct progress *progress, uint64_t all);
/* Begins a step. */
void progress_start(struct progress *progress, const char *what);
/* Ends a step of `bytes` bytes, even if it failed before the last one. */
void progress_finish(struct progress *progress, uint64_t bytes);
/* Erases the bar. */
void progress_end(struct progress *progress);

/* Redraws the bar, at most ten times a second, from any thread. Returns false once a signal was
 * caught. */
bool progress_tick(struct progress *progress);

#endif
