/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/session.h"

#include "base/log.h"
#include "base/open.h"
#include "fuse/device.h"
#include "fuse/passthrough.h"
#include "fuse/readahead.h"

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

/* How long the kernel may believe a name and what stat says of it. Together with
 * CATALOG_CHECK_MS it keeps the promise that a change shows within a second. */
static const double believe = VIEW_BELIEVED_MS / 1000.0;

/* Requests that may wait in the daemon at the same time, and libfuse's threads:
 * names may wait for slow storage, and must not keep others waiting. */
enum { MOST_BACKGROUND = 128, CONGESTED = 96, MOST_THREADS = 32, IDLE_THREADS = 8 };

/* An open file or directory. The kernel may go without closing it. */
struct handle {
    struct handle *next, *previous;
    struct extent_list *list; /* of a file */
    bool live; /* it is a page of .fstfs */
    struct view_directory *directory;
    struct passthrough_file *passthrough; /* or NULL: see passthrough_open() */
};

struct session {
    struct session_options options;
    struct view *view;
    struct io *io;
    struct fuse_session *fuse;
    uint64_t readahead; /* the mount's, in bytes */
    errint_t readahead_error; /* why it could not be raised */
    struct passthrough *passthrough;
    pthread_mutex_t lock; /* guards handles */
    struct handle *handles;
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

static struct fuse_entry_param
entry_of(node_id id, const struct stat *st)
{
    return (struct fuse_entry_param){
        .ino = id, .attr = *st, .attr_timeout = believe, .entry_timeout = believe};
}

static struct handle *
handle_new(struct session *session)
{
    struct handle *handle = calloc(1, sizeof(*handle));

    if (!handle)
        return NULL;
    pthread_mutex_lock(&session->lock);
    handle->next = session->handles;
    if (handle->next)
        handle->next->previous = handle;
    session->handles = handle;
    pthread_mutex_unlock(&session->lock);
    return handle;
}

static void
handle_free(struct session *session, struct handle *handle)
{
    pthread_mutex_lock(&session->lock);
    if (handle->next)
        handle->next->previous = handle->previous;
    if (handle->previous)
        handle->previous->next = handle->next;
    else
        session->handles = handle->next;
    pthread_mutex_unlock(&session->lock);
    if (handle->passthrough)
        passthrough_close(session->passthrough, handle->passthrough);
    if (handle->list)
        view_close(session->view, handle->list);
    if (handle->directory)
        view_closedir(session->view, handle->directory);
    free(handle);
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

/* Answers an open; what nobody waits for any more is closed again. */
static void
reply_open(fuse_req_t req, struct handle *handle, errint_t error, struct fuse_file_info *fi)
{
    struct session *session = session_of(req);

    if (error) {
        handle_free(session, handle);
        reply_error(req, error);
        return;
    }
    fi->fh = (uint64_t)(uintptr_t)handle;
    if (fuse_reply_open(req, fi) == -ENOENT)
        handle_free(session, handle);
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

static void
op_init(void *userdata, struct fuse_conn_info *conn)
{
    struct session *session = userdata;

    /* A file's id is one version of its content, so a new time stamp or size
     * never means that cached pages are wrong. */
    conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
    conn->want |= conn->capable &
                  (FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO |
                   FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
    /* Replies come from memory; moving pages measured slower than copying. */
    conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
    set_readahead(session, conn);
    passthrough_init(session->passthrough, session->fuse, conn);
    conn->max_background = MOST_BACKGROUND;
    conn->congestion_threshold = CONGESTED;
    session->options.ready(session->options.ready_arg);
}

static void
op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry;
    struct stat st;
    node_id id;
    errint_t error;

    if (refuse_self(req))
        return;
    error = view_lookup(view_of(req), parent, name, &id, &st);
    if (error == -ENOENT) {
        entry = (struct fuse_entry_param){.entry_timeout = believe};
        fuse_reply_entry(req, &entry);
    } else if (error) {
        reply_error(req, error);
    } else {
        entry = entry_of(id, &st);
        if (fuse_reply_entry(req, &entry) == -ENOENT)
            view_forget(view_of(req), id, 1); /* nobody waits for the answer any more */
    }
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
op_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct stat st;
    errint_t error;

    if (refuse_self(req))
        return;
    error = view_getattr(view_of(req), id, &st);
    if (error)
        reply_error(req, error);
    else
        fuse_reply_attr(req, &st, believe);
}

static void
op_access(fuse_req_t req, fuse_ino_t id, int mask)
{
    fuse_reply_err(req, (mask & W_OK) ? EROFS : 0);
}

static void
op_statfs(fuse_req_t req, fuse_ino_t id)
{
    struct statvfs st;
    errint_t error = catalog_statvfs(session_of(req)->options.catalog, &st);

    if (error) {
        reply_error(req, error);
        return;
    }
    st.f_namemax = 255;
    fuse_reply_statfs(req, &st);
}

/* ---- directories ---- */

static void
op_opendir(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct handle *handle;

    if (refuse_self(req))
        return;
    handle = handle_new(session_of(req));
    if (!handle)
        fuse_reply_err(req, ENOMEM);
    else
        reply_open(req, handle, view_opendir(view_of(req), id, &handle->directory), fi);
}

static void
op_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    handle_free(session_of(req), handle_of(fi));
    fuse_reply_err(req, 0);
}

/* Adds one entry with its attributes; 0 when the buffer is full. */
static size_t
add_plus(fuse_req_t req, struct view_directory *directory, uint64_t position, const char *name,
         const struct stat *st, char *at, size_t room)
{
    struct view *view = view_of(req);
    struct fuse_entry_param entry = entry_of(0, st);
    struct stat full;
    node_id id;
    size_t size;

    /* "." and "..", and what is gone by now, come without an id: the kernel asks
     * when somebody does. */
    if (position >= 2 && view_readdir_lookup(view, directory, position, &id, &full) == 0)
        entry = entry_of(id, &full);
    size = fuse_add_direntry_plus(req, at, room, name, &entry, (off_t)position + 1);
    if (size <= room)
        return size;
    if (entry.ino)
        view_forget(view, id, 1);
    return 0;
}

/* Leaves the names: without an id the kernel takes nothing else. */
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

static void
reply_directory(fuse_req_t req, size_t size, off_t offset, struct fuse_file_info *fi, bool plus)
{
    struct view_directory *directory = handle_of(fi)->directory;
    char *buffer = malloc(size);
    size_t used = 0, added;
    const char *name;
    struct stat st;

    if (!buffer) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    for (uint64_t position = (uint64_t)offset;; position++) {
        if (view_readdir(view_of(req), directory, position, &name, &st) != 0)
            break;
        if (plus) {
            added = add_plus(req, directory, position, name, &st, buffer + used, size - used);
        } else {
            added =
                fuse_add_direntry(req, buffer + used, size - used, name, &st, (off_t)position + 1);
            if (added > size - used)
                added = 0;
        }
        if (!added)
            break;
        used += added;
    }
    if (plus && !view_readdir_attributes(view_of(req), directory))
        take_back(view_of(req), buffer, used);
    fuse_reply_buf(req, buffer, used);
    free(buffer);
}

static void
op_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *fi)
{
    reply_directory(req, size, offset, fi, false);
}

static void
op_readdirplus(fuse_req_t req, fuse_ino_t id, size_t size, off_t offset, struct fuse_file_info *fi)
{
    reply_directory(req, size, offset, fi, true);
}

/* ---- files ---- */

static void
op_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
    struct session *session = session_of(req);
    struct handle *handle;
    errint_t error;

    if (refuse_self(req))
        return;
    if ((fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC) {
        fuse_reply_err(req, EROFS);
        return;
    }
    handle = handle_new(session);
    if (!handle) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    error = view_open(view_of(req), id, &handle->list, &handle->live);
    fi->keep_cache = !handle->live;
    fi->direct_io = handle->live;
    fi->noflush = 1;
    if (!error)
        error = passthrough_open(session->passthrough, id, handle->list, fi, &handle->passthrough);
    reply_open(req, handle, error, fi);
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
reply_xattr(fuse_req_t req, errint_t error, struct buffer *value, size_t size)
{
    if (error)
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
op_getxattr(fuse_req_t req, fuse_ino_t id, const char *name, size_t size)
{
    struct buffer value = BUFFER_INIT;
    errint_t error = view_getxattr(view_of(req), id, name, &value);

    reply_xattr(req, error, &value, size);
}

static void
op_listxattr(fuse_req_t req, fuse_ino_t id, size_t size)
{
    struct buffer names = BUFFER_INIT;
    errint_t error = view_listxattr(view_of(req), id, &names);

    reply_xattr(req, error, &names, size);
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

/* What libfuse is told: our own options first, then the user's. */
static errint_t
fuse_arguments(const struct session_options *options, struct fuse_args *args)
{
    const char *user = options->options->mount_options;
    char *fsname = NULL, *all = NULL;
    errint_t error = -ENOMEM;

    if (asprintf(&fsname, "fsname=%s", catalog_source(options->catalog)) < 0)
        return -ENOMEM;
    if (fuse_opt_add_opt(&all, "ro,default_permissions,nosuid,nodev,subtype=fstfs") == 0 &&
        (user && strstr(user, "fsname=") ? 0 : fuse_opt_add_opt_escaped(&all, fsname)) == 0 &&
        (user ? fuse_opt_add_opt(&all, user) : 0) == 0 && fuse_opt_add_arg(args, "fstfs") == 0 &&
        fuse_opt_add_arg(args, "-o") == 0 && fuse_opt_add_arg(args, all) == 0 &&
        (options->options->debug ? fuse_opt_add_arg(args, "-d") : 0) == 0)
        error = 0;
    free(fsname);
    free(all);
    return error;
}

/* What is to be done between the mount and the kernel's INIT. */
static void
prepare_mount(struct session *session)
{
    const struct options *options = session->options.options;
    dev_t device;
    errint_t error = mount_device(session->options.mountpoint, &device);

    if (!error)
        open_leave_out(device);
    if (!error && options->readahead)
        error = readahead_set(device, options->readahead);
    session->readahead_error = error;
}

errint_t
session_new(const struct session_options *options, struct session **out)
{
    struct session *session = calloc(1, sizeof(*session));
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    errint_t error = -ENOMEM;

    if (!session)
        return -ENOMEM;
    session->options = *options;
    pthread_mutex_init(&session->lock, NULL);
    session->passthrough = passthrough_new(options->options->passthrough);
    if (session->passthrough && fuse_arguments(options, &args) == 0) {
        error = -EINVAL; /* libfuse prints what it does not like */
        session->fuse = fuse_session_new(&args, &operations, sizeof(operations), session);
    }
    fuse_opt_free_args(&args);
    if (!session->fuse)
        goto fail;
    error = -EIO;
    if (fuse_set_signal_handlers(session->fuse) < 0)
        goto fail_destroy;
    if (fuse_session_mount(session->fuse, options->mountpoint) < 0)
        goto fail_signals;
    prepare_mount(session);
    *out = session;
    return 0;

fail_signals:
    fuse_remove_signal_handlers(session->fuse);
fail_destroy:
    fuse_session_destroy(session->fuse);
fail:
    passthrough_free(session->passthrough);
    pthread_mutex_destroy(&session->lock);
    free(session);
    return error;
}

errint_t
session_run(struct session *session, struct view *view, struct io *io)
{
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    int result;

    if (!config)
        return -ENOMEM;
    session->view = view;
    session->io = io;
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
session_status(const struct session *session, struct buffer *out)
{
    bool refused = session->readahead < session->options.options->readahead;

    buffer_addf(out, "{\"readahead\":{\"bytes\":%" PRIu64, session->readahead);
    if (refused && session->readahead_error)
        buffer_addf(out, ",\"refused\":\"%s\"", strerror(-session->readahead_error));
    buffer_add_text(out, "},\"passthrough\":");
    passthrough_status(session->passthrough, out);
    buffer_add_char(out, '}');
}

void
session_unmount(struct session *session)
{
    fuse_session_unmount(session->fuse);
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
    fuse_remove_signal_handlers(session->fuse);
    while (session->handles)
        handle_free(session, session->handles);
    passthrough_free(session->passthrough);
    fuse_session_destroy(session->fuse);
    pthread_mutex_destroy(&session->lock);
    free(session);
}
