/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that may wait on storage.
 *
 * A request runs on the thread that brought it, unless storage at its place (struct view_place)
 * already holds as many threads as that place may have. Then it is queued as data, and the
 * thread goes back to serve others. A thread that has finished a request runs queued ones next.
 * So storage that does not answer holds a bounded number of threads, REQUESTS_RUNNING in all,
 * and the rest of the session's threads serve what does not wait.
 *
 * Limits, in threads. They shrink as storage holds more of them, so that what answers always
 * finds some:
 *
 *   a name          4; 1 once its directory holds 8
 *   a directory     32; 1 once its file system holds 32
 *   a file system   as many as are left over for all others
 *
 * A request whose caller got a signal is answered with EINTR, queued or running, once nothing
 * at its name has been answered for REQUESTS_GRACE_MS. Before that the signal may be one that
 * the caller handles, and stat(2) does not fail with EINTR as a rule. What a running request
 * then finds is thrown away: request_claim() returns NULL.
 */
#ifndef FSTFS_FUSE_REQUESTS_H
#define FSTFS_FUSE_REQUESTS_H

#include "base/buffer.h"
#include "view/view.h"

#include <fuse_lowlevel.h>
#include <stdbool.h>

enum {
    REQUESTS_RUNNING = 256, /* threads that may wait on storage at the same time */
    REQUESTS_QUEUED = 16384, /* of which a file system gets as many as are left; then EBUSY */
    REQUESTS_GRACE_MS = 1000,
};

struct requests;
struct lane;

enum request_state { REQUEST_NEW, REQUEST_QUEUED, REQUEST_RUNNING };

/* One request. Its arguments outlive the kernel's interest in it; `req` does not, and belongs
 * to whoever has claimed it. */
struct request {
    struct requests *requests;
    void (*run)(struct request *request); /* any thread; must claim the request and answer it */
    struct caller caller; /* who made it */
    node_id id; /* stays valid until run() returns */
    struct fuse_file_info fi;
    void *handle; /* the session's; see `release` of requests_new() */
    int mask; /* of access(2) */
    size_t size;
    off_t offset;
    bool plus;

    /* Of requests.c; guarded by the lock of `requests`. */
    fuse_req_t req;
    struct lane *lane; /* of its name, while it is queued or running */
    struct request *next; /* in its lane's queue */
    struct request *next_interrupted, *previous_interrupted;
    enum request_state state;
    unsigned references;
    bool may_wait; /* on storage: libfuse reports its interrupt. Constant once it is served */
    bool interrupted, claimed;
    bool holds_id; /* the kernel may have forgotten it by now */

    char name[]; /* of a lookup or an xattr */
};

/* `release` is called for each request that has a handle when it is freed. */
errint_t requests_new(void *userdata, void (*release)(void *userdata, void *handle),
                      struct requests **requests);
/* No request may be running. */
void requests_free(struct requests *requests);

/* Starts the thread that answers interrupted requests; `view` outlives the requests. */
errint_t requests_start(struct requests *requests, struct view *view);

/* Answers all queued requests and all later ones with ENOTCONN. */
void requests_close(struct requests *requests);

/* A request with a copy of `name` (NULL: ""). NULL: out of memory, and `req` was answered. */
struct request *request_new(struct requests *requests, fuse_req_t req, node_id id,
                            const char *name);
/* Runs it now, or queues it, and takes it over. `is_lookup`: of its name in `id`; else of `id`. */
void request_serve(struct request *request, void (*run)(struct request *request), bool is_lookup);
/* Runs it now, for a request that does not wait on storage. */
void request_serve_at_once(struct request *request, void (*run)(struct request *request));

/* What the caller of a request must answer now; NULL: it has been answered with EINTR. */
fuse_req_t request_claim(struct request *request);

void *request_userdata(const struct request *request);

/* One JSON object: how many are running and queued, and have been interrupted. Any thread. */
void requests_status(struct requests *requests, struct buffer *out);

#endif
