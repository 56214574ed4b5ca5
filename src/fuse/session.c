/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/session.h"

#include "base/log.h"
#include "base/resolve.h"
#include "base/thread.h"
#include "fuse/mount_table.h"
#include "fuse/mounting.h"
#include "fuse/operations.h"
#include "fuse/readahead.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* libfuse's threads. Those beyond REQUESTS_RUNNING never wait on storage. */
enum { MOST_THREADS = REQUESTS_RUNNING + 32, IDLE_THREADS = 8 };

struct session {
    struct operations operations; /* first: the userdata of `fuse` is a pointer to both */
    struct session_options options;
    struct fuse_session *fuse;
    struct mount_identity mount; /* device 0: not known */
    unsigned queue_size; /* size of the kernel's queue of background requests */
    int broken; /* a pipe without a reader: replaces the connection */
    errint_t readahead_error; /* of setting it */
    bool is_initialized; /* libfuse has called op_init() */
};

/* ---- INIT ---- */

/* The requested readahead in bytes; 0: none. */
static uint64_t
wanted_readahead(const struct session *session)
{
    uint64_t wanted = session->options.options->readahead;

    return wanted == READAHEAD_BY_FILE ? 0 : wanted;
}

/* The reply to INIT can lower the readahead of the mount, not raise it. */
static void
set_max_readahead(struct session *session, struct fuse_conn_info *conn)
{
    uint64_t wanted = wanted_readahead(session);

    if (wanted && (!session->readahead_error || wanted < conn->max_readahead))
        conn->max_readahead = (unsigned)wanted;
    session->operations.readahead_least = conn->max_readahead;
    io_set_readahead(session->operations.io, session->operations.readahead_least);
}

/* Warns of options that the kernel refused. The mount is not ready yet, so this goes to the
 * terminal. */
static void
warn_of_refused_options(struct session *session)
{
    uint64_t wanted = wanted_readahead(session);
    const char *refusal = passthrough_refusal(session->operations.passthrough);

    if (session->operations.readahead_least < wanted)
        log_warning("--readahead=%" PRIu64
                    "K: refused by the kernel (%s): only root may set more than "
                    "128K; the readahead of this mount is %" PRIu64 "K",
                    wanted / 1024,
                    session->readahead_error ? strerror(-session->readahead_error) : "a limit",
                    session->operations.readahead_least / 1024);
    if (refusal)
        log_warning("--passthrough=on: refused: %s; fstfs reads all files for the kernel", refusal);
}

static void
op_init(void *userdata, struct fuse_conn_info *conn)
{
    struct session *session = userdata;

    /* A node ID is one version of a file, so a new time stamp or size never invalidates pages. */
    conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
    conn->want |= conn->capable & (FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_ASYNC_READ |
                                   FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS);
    /* READDIRPLUS fills the kernel's cache of names, which is not used with allow_other. */
    if (session->options.options->shared)
        conn->want &= ~(unsigned)(FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
    else
        conn->want |= conn->capable & (FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
    /* Replies are in memory; splicing measured slower than copying. */
    conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
    set_max_readahead(session, conn);
    passthrough_init(session->operations.passthrough, session->fuse, conn);
    conn->max_background = session->queue_size;
    conn->congestion_threshold = session->queue_size;
    warn_of_refused_options(session);
    session->is_initialized = true;
}

/* Answers INIT, the kernel's first request, which is queued as soon as the file system is mounted.
 * libfuse can refuse it before it calls op_init(), or after that; then it ends the session, as a
 * signal does, and fuse_session_loop_mt() returns the error. */
static errint_t
answer_init(struct session *session)
{
    struct fuse_buf request = {.mem = NULL};
    int received;

    do
        received = fuse_session_receive_buf(session->fuse, &request);
    while (received == -EINTR);
    if (received > 0)
        fuse_session_process_buf(session->fuse, &request);
    free(request.mem);
    if (received < 0)
        return received;
    if (fuse_session_exited(session->fuse))
        return 0;
    if (!session->is_initialized)
        return -EPROTO;
    session->options.ready(session->options.ready_arg);
    return 0;
}

static void *
end_at_once(void *arg)
{
    return arg;
}

/* Starts and joins a thread, so that an error is reported before the mount is ready: the first
 * thread of libfuse then reuses the stack of this one. */
static errint_t
try_thread(void)
{
    pthread_t thread;
    errint_t error = thread_start(&thread, end_at_once, NULL);

    if (!error)
        pthread_join(thread, NULL);
    return error;
}

/* ---- mount and unmount ---- */

static errint_t
session_mount(struct session *session)
{
    const struct options *options = session->options.options;
    struct readahead *readahead = &session->operations.readahead;
    const struct mount_parameters parameters = {
        .source = catalog_source(session->options.catalog),
        .mountpoint = session->options.mountpoint,
        .mount_options = options->mount_options,
        .shared = options->shared,
        .debug = options->debug,
    };
    struct fuse_lowlevel_ops ops = {.init = op_init};
    errint_t error;

    operations_fill(&ops);
    error = mount_new(&parameters, &ops, session, &session->fuse);
    if (error)
        return error;
    error = mount_identify(session->options.mountpoint, &session->mount);
    if (!error) {
        resolve_exclude(session->mount.device);
        error = readahead_init(readahead, session->mount.device);
    }
    /* Before INIT is answered: the kernel then takes the lower of this value and the reply's. */
    if (!error && wanted_readahead(session)) {
        error = readahead_begin_open(readahead, wanted_readahead(session));
        readahead_end_open(readahead);
    }
    session->queue_size = reads_queue_size();
    readahead->is_by_file = !error && options->readahead == READAHEAD_BY_FILE;
    session->readahead_error = error;
    return 0;
}

static void
session_free_parts(struct session *session)
{
    requests_free(session->operations.requests);
    reads_free(session->operations.reads);
    handles_destroy(&session->operations.handles);
    passthrough_free(session->operations.passthrough);
    readahead_destroy(&session->operations.readahead);
    if (session->broken >= 0)
        close(session->broken);
}

/* Returns the descriptor, or the negative errno. */
static int
open_broken_pipe(void)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    close(ends[0]);
    return ends[1];
}

errint_t
session_new(const struct session_options *options, struct session **out)
{
    struct session *session = calloc(1, sizeof(*session));
    struct operations *operations;
    errint_t error = -ENOMEM;

    if (!session)
        return -ENOMEM;
    session->options = *options;
    operations = &session->operations;
    operations->catalog = options->catalog;
    operations->readahead.fd = -1;
    operations->passthrough = passthrough_new(options->options->passthrough);
    handles_init(&operations->handles);
    operations->handles.passthrough = operations->passthrough;
    session->broken = open_broken_pipe();
    if (operations->passthrough)
        error = requests_new(operations, operations_release_handle, &operations->requests);
    if (!error && session->broken < 0)
        error = session->broken;
    if (error)
        log_error("cannot set up the session: %s", strerror(-error));
    else
        error = session_mount(session);
    if (error) {
        session_free_parts(session);
        free(session);
        return error;
    }
    *out = session;
    return 0;
}

errint_t
session_run(struct session *session, struct view *view, struct io *io, struct loads *loads)
{
    struct operations *operations = &session->operations;
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    errint_t error;
    int result;

    if (!config)
        return -ENOMEM;
    operations->view = operations->handles.view = view;
    operations->io = io;
    operations->loads = operations->handles.loads = loads;
    error = requests_start(operations->requests, view);
    if (!error)
        error = reads_new(io, loads, session->queue_size, &operations->reads);
    if (!error)
        error = try_thread();
    if (!error)
        error = answer_init(session);
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
    return result < 0 ? result : 0;
}

void
session_status(struct session *session, struct buffer *out)
{
    struct operations *operations = &session->operations;
    bool refused = session->operations.readahead_least < wanted_readahead(session);

    buffer_addf(out, "{\"readahead\":{\"bytes\":%" PRIu64, session->operations.readahead_least);
    if (session->operations.readahead.is_by_file)
        buffer_add_text(out, ",\"by_file\":true");
    if (refused && session->readahead_error)
        buffer_addf(out, ",\"refused\":\"%s\"", strerror(-session->readahead_error));
    buffer_add_text(out, "},\"passthrough\":");
    passthrough_status(operations->passthrough, out);
    buffer_addf(out,
                ",\"open_files\":%" PRIu64 ",\"requests\":", handles_count(&operations->handles));
    requests_status(operations->requests, out);
    buffer_add_text(out, ",\"reads\":");
    reads_status(operations->reads, out);
    buffer_add_char(out, '}');
}

errint_t
session_unmount(void *session)
{
    return mount_detach(&((struct session *)session)->mount);
}

void
session_abort(void *session)
{
    mount_abort(&((struct session *)session)->mount);
}

void
session_close(struct session *session)
{
    requests_close(session->operations.requests);
}

int
session_connection(const struct session *session)
{
    return fuse_session_fd(session->fuse);
}

/* libfuse unmounts unless the connection polls as POLLERR, which an unmounted one does. A pipe
 * without a reader does so too. */
bool
session_cut(struct session *session)
{
    struct pollfd connection = {.fd = fuse_session_fd(session->fuse)};

    if (poll(&connection, 1, 0) == 1 && (connection.revents & POLLERR))
        return false;
    dup3(session->broken, connection.fd, O_CLOEXEC);
    return true;
}

void
session_free(struct session *session)
{
    mount_end(session->fuse);
    session_free_parts(session);
    fuse_session_destroy(session->fuse);
    free(session);
}
