/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules requests that may wait on storage.
 *
 * A request runs on the thread that received it, unless its name, directory, user or file system
 * (struct view_place) has reached its limit of threads. Then it is queued, and the thread serves
 * other requests. A thread that has finished a request runs queued ones next. So storage that does
 * not answer blocks at most REQUESTS_RUNNING threads; the others serve requests that do not wait.
 *
 * Limits in threads. They are lower while many threads are blocked, so that some are always left
 * for other storage and for other users:
 *
 *   a name          4; 1 once its directory has 8
 *   a directory     32; 1 once its user has 32 in that file system
 *   a user          three quarters of the file system's threads that other users do not use; of
 *                   all threads that other users do not use, three quarters, and one in each
 *                   further file system up to seven eighths
 *
 *   a file system   as many as are free, of REQUESTS_RUNNING
 *
 * An interrupted request, queued or running, is answered with EINTR once no request for its name
 * has been answered for REQUESTS_GRACE_MS. Until then it continues, because a caller that handles
 * the signal does not expect EINTR from stat(2). The result of a running request that was answered
 * is discarded: request_claim() returns NULL.
 */
#ifndef FSTFS_FUSE_REQUESTS_H
#define FSTFS_FUSE_REQUESTS_H

#include "base/buffer.h"
#include "base/list.h"
#include "view/view.h"

#include <fuse_lowlevel.h>
#include <stdbool.h>

enum {
    REQUESTS_RUNNING = 256, /* threads that may wait on storage at the same time */
    REQUESTS_QUEUED = 16384, /* a file system may queue as many as stay free, a user as many as then
                              * stay free for its file system; beyond that, EBUSY */
    REQUESTS_GRACE_MS = 1000,
};

struct requests;
struct lane;

/* What a request accesses: request->name in the directory `id`, or `id` itself, for view_open() or
 * another call. */
enum request_kind { REQUEST_LOOKUP, REQUEST_OPEN, REQUEST_NODE };

enum request_state { REQUEST_NEW, REQUEST_QUEUED, REQUEST_RUNNING };

/* A request with copies of its arguments. `req` is freed by its reply, which only the thread that
 * has claimed the request may send. */
struct request {
    struct requests *requests;
    void (*run)(struct request *request); /* any thread; must claim and answer it */
    struct caller caller;
    node_id id; /* stays valid until run() returns */
    struct fuse_file_info fi;
    void *handle; /* see requests_new() */
    int mask; /* of access(2) */
    size_t size;
    off_t offset;
    bool plus;

    /* Private to requests.c; guarded by requests->lock. */
    fuse_req_t req;
    struct lane *lane; /* of its name, while it is queued or running */
    struct list node; /* in its lane's queue */
    struct list interrupted_node; /* in requests->interrupted */
    enum request_state state;
    unsigned references;
    bool may_wait; /* on storage, so interrupts are handled; constant once it is served */
    bool interrupted, claimed;
    bool holds_id; /* has a lookup count of its own on `id` */

    char name[]; /* of a lookup or an xattr */
};

/* `release` is called when a request that has a handle is freed. */
errint_t requests_new(void *userdata, void (*release)(void *userdata, void *handle),
                      struct requests **requests);
/* No request may be running. */
void requests_free(struct requests *requests);

/* Starts the thread that answers interrupted requests; `view` outlives the requests. */
errint_t requests_start(struct requests *requests, struct view *view);

/* Answers all queued requests, and all later ones that may wait on storage, with ENOTCONN. */
void requests_close(struct requests *requests);

/* Copies `name` (NULL: ""). Returns NULL if out of memory; `req` has then been answered. */
struct request *request_new(struct requests *requests, fuse_req_t req, node_id id,
                            const char *name);
/* Runs or queues the request, and frees it after it has run. */
void request_serve(struct request *request, void (*run)(struct request *request),
                   enum request_kind kind);
/* Runs a request that does not wait on storage, and frees it. */
void request_serve_at_once(struct request *request, void (*run)(struct request *request));

/* Returns the kernel's request, which the calling thread must then answer; NULL: it was answered
 * with EINTR. */
fuse_req_t request_claim(struct request *request);

void *request_userdata(const struct request *request);

/* Appends one JSON object: the numbers of running, queued and interrupted requests. Any thread. */
void requests_status(struct requests *requests, struct buffer *out);

#endif
