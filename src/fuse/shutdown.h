/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shutdown by SIGTERM, SIGINT or SIGHUP, by the end of the connection to the kernel, by the death
 * of a helper process (helpers.h), or by the end of the process of --pid. The daemon gets
 * SHUTDOWN_MS for a clean shutdown; then it is ended even if its threads still wait on storage, or
 * for each other.
 *
 * A separate thread waits for the signal; libfuse's own handler runs too. One session at a time.
 */
#ifndef FSTFS_FUSE_SHUTDOWN_H
#define FSTFS_FUSE_SHUTDOWN_H

#include "base/error.h"
#include "fuse/helpers.h"

#include <stdbool.h>

enum {
    SHUTDOWN_MS = 3000,
    SHUTDOWN_HELPERS = 2,
};

/* All are called on the thread that shutdown_start() starts. */
struct shutdown_calls {
    /* A signal has arrived, the connection or the process has ended, or a helper has died that the
     * daemon cannot run without. */
    void (*begin)(void *arg);
    /* shutdown_stop() was not called within SHUTDOWN_MS. Must not return. */
    void (*force)(void *arg);
    /* A helper has died; called once for each. Returns whether that ends the daemon: the session
     * then ends as by SIGTERM. */
    bool (*helper_died)(void *arg, unsigned helper);
    void *arg;
    /* The helpers to watch; they outlive the thread. Those without a socket do not exist. */
    const struct helper *helpers[SHUTDOWN_HELPERS];
    int connection; /* polls as POLLERR when it has ended: after an unmount or an abort */
    int process; /* pidfd of the process of --pid; -1: none */
};

/* Call both between fuse_set_signal_handlers() and fuse_remove_signal_handlers(). */
errint_t shutdown_catch_signals(void);
void shutdown_release_signals(void);
/* Until this call, the signals interrupt no system call: libfuse would fail if one interrupted its
 * wait for a program that it has started to mount. */
void shutdown_interrupt_calls(void);

/* Starts the thread. Call it on the thread that will serve. */
errint_t shutdown_start(const struct shutdown_calls *calls);

/* Ends the thread. Call it when nothing that may wait on storage is left, and before the helpers
 * end. Returns only if force() was not called. Does nothing if the thread was not started. */
void shutdown_stop(void);

#endif
