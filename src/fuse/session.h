/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session: requests of the kernel in, replies out.
 *
 * Requests come on libfuse's threads. Those about names and attributes may wait on
 * storage, a bounded number of them at a time (requests.h); reads are handed to the
 * engine and answered from its threads when they are complete.
 */
#ifndef FSTFS_FUSE_SESSION_H
#define FSTFS_FUSE_SESSION_H

#include "catalog/catalog.h"
#include "fuse/options.h"
#include "io/io.h"
#include "view/view.h"

struct session;

struct session_options {
    const struct options *options;
    struct catalog *catalog;
    const char *mountpoint; /* absolute */
    /* Called once, on a request thread, when the kernel has said hello: from
     * then on the mount answers. */
    void (*ready)(void *arg);
    void *ready_arg;
};

/* Mounts; makes no thread. What went wrong was printed to standard error. */
errint_t session_new(const struct session_options *options, struct session **session);

/* Serves until the mount is unmounted or SIGTERM, SIGINT or SIGHUP comes. */
errint_t session_run(struct session *session, struct view *view, struct io *io);
/* Answers what is queued and what comes from now on with an error. Any thread. */
void session_close(struct session *session);

/* What was tried to make the mount fast, what is on, and why the rest is not: appends
 * one JSON object for status. Any thread. */
void session_status(struct session *session, struct buffer *out);

/* Unmounts, in a process that may: also in one that was forked after session_new(),
 * where nothing else of the session works any more. */
void session_unmount(struct session *session);
/* As session_unmount(), but aborts the connection, which stays mounted: see connection_abort(). */
void session_abort(struct session *session);

/* Ends the connection where another process is to unmount: nothing is served any
 * more, and session_free() will only free. False: it has been unmounted already. */
bool session_cut(struct session *session);

/* Unmounts and frees. The engine must have answered every read before. */
void session_free(struct session *session);

#endif
