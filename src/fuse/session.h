/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE session: mounts, serves requests on libfuse's threads, and unmounts. The operations
 * themselves are in operations.c.
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
    /* Called once on a libfuse thread after INIT: from then on the mount answers. */
    void (*ready)(void *arg);
    void *ready_arg;
};

/* Mounts. Starts no thread. Errors have been printed to standard error. */
errint_t session_new(const struct session_options *options, struct session **session);

/* Serves until the mount is unmounted or SIGTERM, SIGINT or SIGHUP arrives. */
errint_t session_run(struct session *session, struct view *view, struct io *io);
/* Answers queued and later requests about names with ENOTCONN. Any thread. */
void session_close(struct session *session);

/* Appends one JSON object, `kernel` of .fstfs/status. Any thread. */
void session_status(struct session *session, struct buffer *out);

/* Unmounts. Also for a process that was forked after session_new(). */
void session_unmount(struct session *session);
/* Aborts the connection: see mount_abort(). Also for a process that was forked after
 * session_new(). */
void session_abort(struct session *session);

/* Closes the connection, for a daemon whose helper unmounts; session_free() then does not unmount.
 * Returns false if the mount has been unmounted already. */
bool session_cut(struct session *session);

/* Unmounts and frees. The engine must have answered all reads. */
void session_free(struct session *session);

#endif
