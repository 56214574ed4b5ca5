/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end by a signal, or by the death of a helper process (helpers.h): within SHUTDOWN_MS of
 * SIGTERM, SIGINT or SIGHUP the daemon has ended in good order, or is ended although threads of
 * it still wait on storage.
 *
 * A thread waits for the signal, which libfuse's handler still gets too. One session at a time.
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

/* What the thread calls, and whom it watches. */
struct shutdown_calls {
    /* A signal has come, or a helper's end ends the daemon. */
    void (*begin)(void *arg);
    /* shutdown_stop() has not been called SHUTDOWN_MS later. Must not return. */
    void (*force)(void *arg);
    /* A helper has ended; called once for each. Returns whether that ends the daemon: the session
     * is then ended as by SIGTERM. */
    bool (*helper_ended)(void *arg, unsigned helper);
    void *arg;
    /* Those that are watched, which outlive the thread; without a socket: there is none. */
    const struct helper *helpers[SHUTDOWN_HELPERS];
};

/* After fuse_set_signal_handlers(), and before fuse_remove_signal_handlers(). */
errint_t shutdown_catch_signals(void);
void shutdown_release_signals(void);

/* Starts the thread; called on the thread that will serve. */
errint_t shutdown_start(const struct shutdown_calls *calls);

/* Ends the thread; nothing that may wait on storage is left. Returns only where force() was not
 * called. Does nothing where the thread was not started. Helpers must end after this. */
void shutdown_stop(void);

#endif
