/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/session.h"

#include "base/log.h"
#include "base/open.h"
#include "base/version.h"
#include "fuse/abort.h"
#include "fuse/device.h"
#include "fuse/mounting.h"
#include "fuse/passthrough.h"
#include "fuse/readahead.h"
#include "fuse/requests.h"
#include "fuse/shutdown.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <inttypes.h>
#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Together with CATALOG_CHECK_MS it keeps the promise that a change shows within a second. */
static const double cache_seconds = VIEW_CACHE_MS / 1000.0;

/* Background requests of the kernel (reads) in flight. */
enum { MOST_BACKGROUND = 128, CONGESTED = 96 };

/* libfuse's threads. Those beyond REQUESTS_RUNNING never wait on storage. */
enum { MOST_THREADS = REQUESTS_RUNNING + 32, IDLE_THREADS = 8 };

/* An open file or directory. The kernel may go without closing it. */
struct handle {
    struct handle *next, *previous;
    unsigned references; /* guarded by session->lock: the kernel's, one of each request */
    struct extent_list *list; /* of a file */
    bool live; /* it is a page of .fstfs */
    struct view_directory *directory;
    pthread_mutex_t reading; /* the directory: a request that was interrupted may be late */
    struct passthrough_file *passthrough; /* or NULL: see passthrough_open() */
};

struct session {
    struct session_options options;
    struct view *view;
    struct io *io;
    struct fuse_session *fuse;
    dev_t device; /* of the mount; 0: not known */
    uint64_t readahead; /* the mount's, in bytes */
    errint_t readahead_error; /* why it could not be raised */
    struct passthrough *passthrough;
    struct requests *requests;
    pthread_mutex_t lock; /* guards handles */
    struct handle *handles;
    uint64_t handle_count;
};

static struct session *
session_of(fuse_req_t req)
{
    return fuse_req_userdata(req);
}

static struct view *
view_of(fuse_req_t req)
{
    return session_of(req)->view;
}

/*
 * Whether the daemon itself asks: a link in the source leads into the mount. To
 * wait for an answer here would be to wait for oneself.
 */
static bool
refuse_self(fuse_req_t req)
{
    pid_t pid = fuse_req_ctx(req)->pid;

    if (syscall(SYS_tgkill, getpid(), pid, 0) != 0)
        return false;
    fuse_reply_err(req, ELOOP);
    return true;
}

/* How long the kernel may cache a name: to look up one that is cached is not checked. */
static double
entry_timeout(struct view *view, node_id parent)
{
    return view_checks_names(view, parent) ? 0 : cache_seconds;
}

static struct fuse_entry_param
entry_of(node_id id, const struct stat *st, double timeout)
{
    return (struct fuse_entry_param){
        .ino = id, .attr = *st, .attr_timeout = cache_seconds, .entry_timeout = timeout};
}

static struct handle *
handle_new(struct session *session)
{
    struct handle *handle = calloc(1, sizeof(*handle));

    if (!handle)
        return NULL;
    handle->references = 1;
    pthread_mutex_init(&handle->reading, NULL);
    pthread_mutex_lock(&session->lock);
    handle->next = session->handles;
    if (handle->next)
        handle->next->previous = handle;
    session->handles = handle;
    session->handle_count++;
    pthread_mutex_unlock(&session->lock);
    return handle;
}

static struct handle *
handle_ref(struct session *session, struct handle *handle)
{
    pthread_mutex_lock(&session->lock);
    handle->references++;
    pthread_mutex_unlock(&session->lock);
    return handle;
}

static void
handle_unref(struct session *session, struct handle *handle)
{
    pthread_mutex_lock(&session->lock);
    if (--handle->references > 0) {
        pthread_mutex_unlock(&session->lock);
        return;
    }
    if (handle->next)
        handle->next->previous = handle->previous;
    if (handle->previous)
        handle->previous->next = handle->next;
    else
        session->handles = handle->next;
    session->handle_count--;
    pthread_mutex_unlock(&session->lock);
    if (handle->passthrough)
        passthrough_close(session->passthrough, handle->passthrough);
    if (handle->list)
        view_close(session->view, handle->list);
    if (handle->directory)
        view_closedir(session->view, handle->directory);
    pthread_mutex_destroy(&handle->reading);
    free(handle);
}

/* Of a request that has used it: see requests_new(). */
static void
release_handle(void *userdata, void *handle)
{
    handle_unref(userdata, handle);
}

static struct handle *
handle_of(const struct fuse_file_info *fi)
{
    return (struct handle *)(uintptr_t)fi->fh;
}

/* ENOTCONN of a storage below, whose server has died, would say that this mount's
 * own has: whoever looks after mounts would take away one that is well. */
static void
reply_error(fuse_req_t req, errint_t error)
{
    fuse_reply_err(req, error == -ENOTCONN ? EIO : -error);
}

/* As reply_error(), unless the request was interrupted. */
static void
answer_error(struct request *request, errint_t error)
{
    fuse_req_t req = request_claim(request);

    if (req)
        reply_error(req, error);
}

/* Answers an open. Where no caller waits for it any more, the handle is closed again. */
static void
answer_open(struct request *request, struct handle *handle, errint_t error)
{
    fuse_req_t req = request_claim(request);

    request->fi.fh = (uint64_t)(uintptr_t)handle;
    if (req && error)
        reply_error(req, error);
    if (!req || error || fuse_reply_open(req, &request->fi) == -ENOENT)
        handle_unref(request_userdata(request), handle);
}

/* Between mount and INIT it may have been raised; INIT can lower it, whoever asks. */
static void
set_readahead(struct session *session, struct fuse_conn_info *conn)
{
    uint64_t wanted = session->options.options->readahead;

    if (wanted && (!session->readahead_error || wanted < conn->max_readahead))
        conn->max_readahead = (unsigned)wanted;
    session->readahead = conn->max_readahead;
    io_set_readahead(session->io, session->readahead);
}

/* What options asked for and is not so. On the terminal: the mount does not answer yet. */
static void
warn_of_refusals(struct session *session)
{
    uint64_t wanted = session->options.options->readahead;
    const char *refusal = passthrough_refusal(session->passthrough);

    if (session->readahead < wanted)
        log_warning("--readahead=%" PRIu64 "K: refused by the kernel (%s): over 128K only root may "
                    "ask for; the kernel reads ahead %" PRIu64 "K on this mount",
                    wanted / 1024,
                    session->readahead_error ? strerror(-session->readahead_error) : "a limit",
                    session->readahead / 1024);
    if (refusal)
        log_warning("--passthrough=on: refused: %s; fstfs reads all files for the kernel", refusal);
}

static void
op_init(void *userdata, struct fuse_conn_info *conn)
{
    struct session *session = userdata;

    /* A file's id is one version of its content, so a new time stamp or size
     * never means that cached pages are wrong. */
    conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
    conn->want |= conn->capable & (FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_ASYNC_READ |
                                   FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS);
    /* To fill the cache of names has a use only where the kernel may use it. */
    if (session->options.options->shared)
        conn->want &= ~(unsigned)(FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
    else
        conn->want |= conn->capable & (FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
    /* Replies come from memory; moving pages measured slower than copying. */
    conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
    set_readahead(session, conn);
    passthrough_init(session->passthrough, session->fuse, conn);
    conn->max_background = MOST_BACKGROUND;
    conn->congestion_threshold = CONGESTED;
    warn_of_refusals(session);
    session->options.ready(session->options.ready_arg);
}

/* A request that may wait on storage: what `run` does answers it, now or later. NULL: it has
 * been answered. */
static struct request *
new_request(fuse_req_t req, fuse_ino_t id, const char *name)
{
    if (refuse_self(req))
        return NULL;
    return request_new(session_of(req)->requests, req, id, name);
}

static void
run_lookup(struct request *request)
{
    struct view *view = ((struct session *)request_userdata(request))->view;
    double timeout = entry_timeout(view, request->id);
    struct fuse_entry_param entry;
    struct stat st;
    node_id id;
    errint_t error = view_lookup(view, &request->caller, request->id, request->name, &id, &st);
    fuse_req_t req = request_claim(request);

    if (error) {
        if (req)
            reply_error(req, error); /* ENOENT too: the kernel must not cache that */
        return;
    }
    entry = entry_of(id, &st, timeout);
    if (!req || fuse_reply_entry(req, &entry) == -ENOENT)
        view_forget(view, id, 1); /* no caller waits for the answer any more */
}

static void
op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct request *request = new_request(req, parent, name);

    if (request)
        request_serve(request, run_lookup, true);
}

static void
op_forget(fuse_req_t req, fuse_ino_t id, uint64_t count)
{
    view_forget(view_of(req), id, count);
    fuse_reply_none(req);
}

static void
op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        view_forget(view_of(req), forgets[i].ino, forgets[i].nlookup);
    fuse_reply_none(req);
}

static void
run_getattr(struct request *request)
{
    struct session *session = request_userdata(request);
    struct stat st;
    errint_t error = view_getattr(session->view, request->id, &st);
    fuse_req_t req = request_claim(request);

    if (req && error)
        reply_error(req, error);
    else if (req)
        fuse_reply_attr(req, &st, cache_seconds);
}

static void
op_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct request *request = new_request(req, id, NULL);

    if (request)
        request_serve(request, run_getattr, false);
}

static void
run_access(struct request *request)
{
    struct session *session = request_userdata(request);

    answer_error(request, view_access(session->view, &request->caller, request->id, request->mask));
}

static void
op_access(fuse_req_t req, fuse_ino_t id, int mask)
{
    struct request *request = new_request(req, id, NULL);

    if (!request)
        return;
    request->mask = mask;
    request_serve(request, run_access, false);
}

static void
run_statfs(struct request *request)
{
    struct session *session = request_userdata(request);
    struct statvfs st;
    errint_t error = catalog_statvfs(session->options.catalog, &st);
    fuse_req_t req = request_claim(request);

    st.f_namemax = 255;
    if (req && error)
        reply_error(req, error);
    else if (req)
        fuse_reply_statfs(req, &st);
}

static void
op_statfs(fuse_req_t req, fuse_ino_t id)
{
    struct request *request = request_new(session_of(req)->requests, req, VIEW_ROOT_ID, ".");

    if (request)
        request_serve(request, run_statfs, true);
}

/* ---- directories ---- */

static void
run_opendir(struct request *request)
{
    struct session *session = request_userdata(request);
    struct handle *handle = handle_new(session);

    if (handle)
        answer_open(request, handle,
                    view_opendir(session->view, &request->caller, request->id, &handle->directory));
    else
        answer_error(request, -ENOMEM);
}

static void
/* cppcheck-suppress constParameter ; libfuse gives the type */
op_opendir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct request *request = new_request(req, id, NULL);

    if (!request)
        return;
    request->fi = *fi;
    request_serve(request, run_opendir, false);
}

static void
op_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    handle_unref(session_of(req), handle_of(fi));
    fuse_reply_err(req, 0);
}

/* Adds one entry with its attributes; 0 when the buffer is full. */
static size_t
add_plus(struct view *view, struct view_directory *directory, uint64_t position, const char *name,
         const struct stat *st, char *at, size_t room)
{
    struct fuse_entry_param entry = entry_of(0, st, cache_seconds);
    struct stat full;
    node_id id;
    size_t size;

    /* "." and "..", and what is gone by now, come without an id: the kernel asks
     * when somebody does. */
    if (position >= 2 && view_readdir_lookup(view, directory, position, &id, &full) == 0)
        entry = entry_of(id, &full, cache_seconds);
    size = fuse_add_direntry_plus(NULL, at, room, name, &entry, (off_t)position + 1);
    if (size <= room)
        return size;
    if (entry.ino)
        view_forget(view, id, 1);
    return 0;
}

/* Takes back the IDs of a reply that no caller waits for: each has been looked up once. */
static void
take_back(struct view *view, char *buffer, size_t used)
{
    struct fuse_direntplus *entry;

    for (size_t at = 0; at < used; at += FUSE_DIRENTPLUS_SIZE(entry)) {
        entry = (struct fuse_direntplus *)(void *)(buffer + at);
        if (entry->entry_out.nodeid)
            view_forget(view, entry->entry_out.nodeid, 1);
        entry->entry_out.nodeid = 0;
    }
}

/* Fills the buffer from `offset` on; how much of it was used. */
static size_t
fill_directory(struct view *view, struct view_directory *directory, const struct request *request,
               char *buffer)
{
    size_t size = request->size, used = 0, added;
    const char *name;
    struct stat st;

    for (uint64_t position = (uint64_t)request->offset;; position++) {
        if (view_readdir(view, directory, position, &name, &st) != 0)
            break;
        if (request->plus) {
            added = add_plus(view, directory, position, name, &st, buffer + used, size - used);
        } else {
            added =
                fuse_add_direntry(NULL, buffer + used, size - used, name, &st, (off_t)position + 1);
            if (added > size - used)
                added = 0;
        }
        if (!added)
            break;
        used += added;
    }
    return used;
}

static void
run_readdir(struct request *request)
{
    struct view *view = ((struct session *)request_userdata(request))->view;
    struct handle *handle = request->handle;
    char *buffer = malloc(request->size);
    size_t used;
    fuse_req_t req;

    if (!buffer) {
        answer_error(request, -ENOMEM);
        return;
    }
    pthread_mutex_lock(&handle->reading);
    used = fill_directory(view, handle->directory, request, buffer);
    pthread_mutex_unlock(&handle->reading);
    req = request_claim(request);
    if ((!req || fuse_reply_buf(req, buffer, used) == -ENOENT) && request->plus)
        take_back(view, buffer, used); /* no caller waits for the ids any more */
    free(buffer);
}

static void
serve_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset,
              const struct fuse_file_info *fi, bool plus)
{
    struct session *session = session_of(req);
    struct request *request = request_new(session->requests, req, id, NULL);

    if (!request)
        return;
    request->handle = handle_ref(session, handle_of(fi));
    request->size = size;
    request->offset = offset;
    request->plus = plus;
    request_serve(request, run_readdir, false);
}

static void
op_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *fi)
{
    serve_readdir(req, id, size, offset, fi, false);
}

static void
op_readdirplus(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *fi)
{
    serve_readdir(req, id, size, offset, fi, true);
}

/* ---- files ---- */

static void
run_open(struct request *request)
{
    struct session *session = request_userdata(request);
    struct handle *handle = handle_new(session);
    struct fuse_file_info *fi = &request->fi;
    errint_t error;

    if (!handle) {
        answer_error(request, -ENOMEM);
        return;
    }
    error = view_open(session->view, &request->caller, request->id, &handle->list, &handle->live);
    fi->keep_cache = !error && !handle->live && version_list_is_kept(handle->list);
    fi->direct_io = handle->live;
    fi->noflush = 1;
    if (!error)
        error = passthrough_open(session->passthrough, request->id, handle->list, fi,
                                 &handle->passthrough);
    answer_open(request, handle, error);
}

static void
op_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct request *request;

    if ((fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC) {
        fuse_reply_err(req, EROFS);
        return;
    }
    request = new_request(req, id, NULL);
    if (!request)
        return;
    request->fi = *fi;
    request_serve(request, run_open, false);
}

static void
reply_read(void *arg, errint_t result, const struct iovec *vectors, int count)
{
    fuse_req_t req = arg;

    if (result)
        reply_error(req, result);
    else
        fuse_reply_iov(req, vectors, count);
}

static void
op_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *fi)
{
    const struct handle *handle = handle_of(fi);
    struct extent_list *list = handle->list;
    uint64_t at = (uint64_t)offset;

    if (at >= list->size || size == 0) {
        fuse_reply_buf(req, NULL, 0);
        return;
    }
    if (size > list->size - at)
        size = (size_t)(list->size - at);
    if (!handle->live) {
        io_read(session_of(req)->io, list, at, size, reply_read, req);
        return;
    }
    /* A text; past the engine: who looks at its counters is no reader to them. When this
     * returns the reader has had the answer, and may have closed the file. */
    extent_list_ref(list);
    fuse_reply_buf(req, list->extents->blob->data + at, size);
    extent_list_unref(list);
}

/* ---- xattrs ---- */

static void
answer_xattr(struct request *request, errint_t error, struct buffer *value)
{
    fuse_req_t req = request_claim(request);
    size_t size = request->size;

    if (!req)
        ; /* interrupted */
    else if (error)
        reply_error(req, error);
    else if (size == 0)
        fuse_reply_xattr(req, value->length);
    else if (size < value->length)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, value->data, value->length);
    buffer_free(value);
}

static void
run_getxattr(struct request *request)
{
    struct session *session = request_userdata(request);
    struct buffer value = BUFFER_INIT;
    errint_t error =
        view_getxattr(session->view, &request->caller, request->id, request->name, &value);

    answer_xattr(request, error, &value);
}

static void
op_getxattr(fuse_req_t req, fuse_ino_t id, const char *name, size_t size)
{
    struct request *request = request_new(session_of(req)->requests, req, id, name);

    if (!request)
        return;
    request->size = size;
    request_serve(request, run_getxattr, false);
}

static void
run_listxattr(struct request *request)
{
    struct session *session = request_userdata(request);
    struct buffer names = BUFFER_INIT;
    errint_t error = view_listxattr(session->view, request->id, &names);

    answer_xattr(request, error, &names);
}

static void
op_listxattr(fuse_req_t req, fuse_ino_t id, size_t size)
{
    struct request *request = request_new(session_of(req)->requests, req, id, NULL);

    if (!request)
        return;
    request->size = size;
    request_serve_at_once(request, run_listxattr);
}

/* ---- everything that writes ---- */

static void
op_setattr(fuse_req_t req, fuse_ino_t id, struct stat *st, int which, struct fuse_file_info *fi)
{
    fuse_reply_err(req, EROFS);
}

static void
op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t device)
{
    fuse_reply_err(req, EROFS);
}

static void
op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    fuse_reply_err(req, EROFS);
}

static void
op_remove(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    fuse_reply_err(req, EROFS);
}

static void
op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
    fuse_reply_err(req, EROFS);
}

static void
op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
          const char *new_name, unsigned flags)
{
    fuse_reply_err(req, EROFS);
}

static void
op_link(fuse_req_t req, fuse_ino_t id, fuse_ino_t new_parent, const char *new_name)
{
    fuse_reply_err(req, EROFS);
}

static void
op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
          struct fuse_file_info *fi)
{
    fuse_reply_err(req, EROFS);
}

static void
op_write(fuse_req_t req, fuse_ino_t id, const char *bytes, size_t size, off_t offset,
         struct fuse_file_info *fi)
{
    fuse_reply_err(req, EROFS);
}

static void
op_setxattr(fuse_req_t req, fuse_ino_t id, const char *name, const char *value, size_t size,
            int flags)
{
    fuse_reply_err(req, EROFS);
}

static void
op_fallocate(fuse_req_t req, fuse_ino_t id, int mode, off_t offset, off_t length,
             struct fuse_file_info *fi)
{
    fuse_reply_err(req, EROFS);
}

static const struct fuse_lowlevel_ops operations = {
    .init = op_init,
    .lookup = op_lookup,
    .forget = op_forget,
    .forget_multi = op_forget_multi,
    .getattr = op_getattr,
    .access = op_access,
    .statfs = op_statfs,
    .opendir = op_opendir,
    .readdir = op_readdir,
    .readdirplus = op_readdirplus,
    .releasedir = op_release,
    .open = op_open,
    .read = op_read,
    .release = op_release,
    .getxattr = op_getxattr,
    .listxattr = op_listxattr,
    .setattr = op_setattr,
    .mknod = op_mknod,
    .mkdir = op_mkdir,
    .unlink = op_remove,
    .rmdir = op_remove,
    .symlink = op_symlink,
    .rename = op_rename,
    .link = op_link,
    .create = op_create,
    .write = op_write,
    .setxattr = op_setxattr,
    .removexattr = op_remove,
    .fallocate = op_fallocate,
};

/* ---- the session ---- */

/* What is to be done between the mount and the kernel's INIT. */
static void
prepare_mount(struct session *session)
{
    const struct options *options = session->options.options;
    errint_t error = mount_device(session->options.mountpoint, &session->device);

    if (!error)
        open_leave_out(session->device);
    if (!error && options->readahead)
        error = readahead_set(session->device, options->readahead);
    session->readahead_error = error;
}

errint_t
session_new(const struct session_options *options, struct session **out)
{
    struct session *session = calloc(1, sizeof(*session));
    errint_t error = -ENOMEM;

    if (!session)
        return -ENOMEM;
    session->options = *options;
    pthread_mutex_init(&session->lock, NULL);
    session->passthrough = passthrough_new(options->options->passthrough);
    if (session->passthrough && requests_new(session, release_handle, &session->requests) == 0)
        error = mounting_mount(options, &operations, sizeof(operations), session, &session->fuse);
    else
        log_error("no memory for the session");
    if (error) {
        requests_free(session->requests);
        passthrough_free(session->passthrough);
        pthread_mutex_destroy(&session->lock);
        free(session);
        return error;
    }
    prepare_mount(session);
    *out = session;
    return 0;
}

errint_t
session_run(struct session *session, struct view *view, struct io *io)
{
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    errint_t error;
    int result;

    if (!config)
        return -ENOMEM;
    session->view = view;
    session->io = io;
    error = requests_start(session->requests, view);
    if (error) {
        fuse_loop_cfg_destroy(config);
        return error;
    }
    fuse_loop_cfg_set_clone_fd(config, 0);
    fuse_loop_cfg_set_idle_threads(config, IDLE_THREADS);
    fuse_loop_cfg_set_max_threads(config, MOST_THREADS);
    result = fuse_session_loop_mt(session->fuse, config);
    fuse_loop_cfg_destroy(config);
    if (result > 0)
        log_info("unmounting: %s", strsignal(result));
    /*
     * A read of the device into which the unmount falls ends with ECONNABORTED
     * on some kernels (seen on 6.18); libfuse takes only ENODEV for the end.
     */
    return result < 0 && result != -ECONNABORTED ? result : 0;
}

void
session_status(struct session *session, struct buffer *out)
{
    uint64_t handles;
    bool refused = session->readahead < session->options.options->readahead;

    buffer_addf(out, "{\"readahead\":{\"bytes\":%" PRIu64, session->readahead);
    if (refused && session->readahead_error)
        buffer_addf(out, ",\"refused\":\"%s\"", strerror(-session->readahead_error));
    buffer_add_text(out, "},\"passthrough\":");
    passthrough_status(session->passthrough, out);
    pthread_mutex_lock(&session->lock);
    handles = session->handle_count;
    pthread_mutex_unlock(&session->lock);
    buffer_addf(out, ",\"open_files\":%" PRIu64 ",\"requests\":", handles);
    requests_status(session->requests, out);
    buffer_add_char(out, '}');
}

void
session_unmount(struct session *session)
{
    fuse_session_unmount(session->fuse);
}

void
session_abort(struct session *session)
{
    if (session->device)
        connection_abort(session->options.mountpoint, session->device);
}

void
session_close(struct session *session)
{
    requests_close(session->requests);
}

/*
 * libfuse unmounts only what has not been unmounted, and learns that from the
 * connection: POLLERR. A pipe that nobody reads says the same, and takes its place,
 * which closes the connection.
 */
bool
session_cut(struct session *session)
{
    struct pollfd connection = {.fd = fuse_session_fd(session->fuse)};
    int ends[2];

    if (poll(&connection, 1, 0) == 1 && (connection.revents & POLLERR))
        return false;
    if (pipe2(ends, O_CLOEXEC) == 0) {
        close(ends[0]);
        dup3(ends[1], connection.fd, O_CLOEXEC);
        close(ends[1]);
    }
    return true;
}

void
session_free(struct session *session)
{
    fuse_session_unmount(session->fuse);
    shutdown_release_signals();
    fuse_remove_signal_handlers(session->fuse);
    requests_free(session->requests);
    while (session->handles)
        handle_unref(session, session->handles);
    passthrough_free(session->passthrough);
    fuse_session_destroy(session->fuse);
    pthread_mutex_destroy(&session->lock);
    free(session);
}
