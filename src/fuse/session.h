/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE session: mounts, serves requests on libfuse's threads, and unmounts. The operations
 * themselves are in operations.c.
 */
#ifndef FSTFS_FUSE_SESSION_H
#define FSTFS_FUSE_SESSION_H

#include "catalog/catalog.h"
#include "fuse/loads.h"
#include "fuse/options.h"
#include "io/io.h"
#include "view/view.h"

struct session;

struct session_options {
    const struct options *options;
    struct catalog *catalog;
    const char *mountpoint; /* absolute */
    /* Called by session_run() once INIT has been answered: from then on the mount answers. */
    void (*ready)(void *arg);
    void *ready_arg;
};

/* Mounts. Starts no thread. Errors have been printed to standard error. */
errint_t session_new(const struct session_options *options, struct session **session);

/* Answers INIT, and serves until the mount is unmounted or SIGTERM, SIGINT or SIGHUP arrives. */
errint_t session_run(struct session *session, struct view *view, struct io *io,
                     struct loads *loads);
/* Answers queued requests, and later ones that may wait on storage, with ENOTCONN. Any thread. */
void session_close(struct session *session);

/* Appends one JSON object, `kernel` of .fstfs/status. Any thread. */
void session_status(struct session *session, struct buffer *out);

/* Callbacks for unmounter_start(): unmount (mount_detach()), and abort the connection
 * (mount_abort()). The argument is a struct session. A process that was forked after session_new()
 * may call them. */
errint_t session_unmount(void *session);
void session_abort(void *session);

/* The descriptor of the connection to the kernel. It polls as POLLERR when that has ended. */
int session_connection(const struct session *session);

/* Closes the connection, so that all callers get an error; call session_unmount() next. Returns
 * false if the mount has been unmounted already. */
bool session_cut(struct session *session);

/* Frees, after session_cut(). The engine must have answered all reads. */
void session_free(struct session *session);

#endif
