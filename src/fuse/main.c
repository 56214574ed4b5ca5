/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs: mounts a directory of checkpoints.
 *
 * With -f the program itself serves. Without it, a child process serves, and the program returns
 * when the mount answers, or has failed. The child reports through a pipe that INIT has been
 * answered, and prints its errors to the terminal until then.
 */
#include "base/array.h"
#include "base/close.h"
#include "base/log.h"
#include "base/open.h"
#include "base/overflow_ids.h"
#include "base/renew.h"
#include "base/resolve.h"
#include "base/version.h"
#include "fuse/credentials.h"
#include "fuse/first_look.h"
#include "fuse/helpers.h"
#include "fuse/mounted_devices.h"
#include "fuse/opener.h"
#include "fuse/options.h"
#include "fuse/pages.h"
#include "fuse/preflight.h"
#include "fuse/run_delay.h"
#include "fuse/sandbox.h"
#include "fuse/session.h"
#include "fuse/shutdown.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- readiness ---- */

struct readiness {
    int pipe; /* to the parent; -1: in the foreground */
    int null; /* replaces the terminal; opened before the sandbox is entered */
    int log; /* the logger's socket */
    int manager; /* systemd's socket; -1: none */
};

/* Connects to systemd's notification socket (sd_notify(3)), before the sandbox is entered. -1:
 * there is none. */
static int
connect_to_manager(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval limit = {.tv_sec = 1}; /* for send(), which blocks on a full queue */
    size_t length = path ? strlen(path) : 0;
    int fd;

    if (length < 2 || length >= sizeof(address.sun_path))
        return -1;
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (connect(fd, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) == 0)
        return fd;
    log_warning("cannot notify systemd: %s", strerror(errno));
    close(fd);
    return -1;
}

/* Closes the socket: a datagram socket can send to any other. */
static void
notify_manager(int manager, const char *state)
{
    if (manager < 0)
        return;
    if (send(manager, state, strlen(state), MSG_NOSIGNAL) < 0)
        log_warning("cannot notify systemd: %s", strerror(errno));
    close(manager);
}

static void
leave_terminal(const struct readiness *readiness)
{
    log_to_socket(readiness->log);
    for (int fd = 0; readiness->null >= 0 && fd <= 2; fd++)
        dup2(readiness->null, fd);
    if (readiness->null > 2)
        close(readiness->null);
}

static void
mount_ready(void *arg)
{
    struct readiness *readiness = arg;

    if (readiness->pipe < 0) {
        notify_manager(readiness->manager, "READY=1");
        return;
    }
    leave_terminal(readiness);
    if (write(readiness->pipe, "R", 1) != 1)
        log_warning("cannot notify the parent process: %s", strerror(errno));
    close(readiness->pipe);
}

/* ---- serving ---- */

struct mount {
    struct mount_parts parts;
    struct helper unmounter, opener;
    struct sandbox sandbox;
    struct resolve_link_rules link_rules;
    int process; /* pidfd of the process of --pid; -1: none */
    struct view_page page_list[PAGES];
    bool failed; /* exit with status 1, so that a supervisor restarts fstfs */
};

enum helper_watched { WATCHED_UNMOUNTER, WATCHED_OPENER };

static void
begin_shutdown(void *arg)
{
    session_close(((struct mount *)arg)->parts.session);
}

/* A dead mount remains. */
static void
report_unmount_error(struct mount *mount, errint_t error)
{
    if (error == -EBUSY)
        log_error(
            "cannot unmount: another file system is mounted on the mount or inside it, and is "
            "kept; unmount that first, or use umount -l");
    else
        log_error("cannot unmount: %s; use fusermount3 -u", strerror(-error));
    mount->failed = true;
}

/* Exits although threads wait. Closing the connection answers all callers. */
static void
force_shutdown(void *arg)
{
    struct mount *mount = arg;
    errint_t error = 0;

    log_warning("storage does not answer, or a thread does not end: not waiting for it");
    if (session_cut(mount->parts.session))
        error = mount->unmounter.socket >= 0 ? unmounter_force(&mount->unmounter)
                                             : session_unmount(mount->parts.session);
    if (error)
        report_unmount_error(mount, error);
    _exit(mount->failed ? 1 : 0);
}

/* Without the opener, callers would be denied access that they are entitled to. */
static bool
handle_dead_helper(void *arg, unsigned helper)
{
    struct mount *mount = arg;

    if (helper == WATCHED_UNMOUNTER) {
        log_error("the process fstfs-unmount has died: fstfs continues, but will leave its mount "
                  "behind when it ends; use fusermount3 -u then");
        return false;
    }
    log_error(
        "the process fstfs-open has died: cannot check permissions or follow links out of the "
        "source; unmounting, start fstfs again");
    mount->failed = true;
    return true;
}

static errint_t
start_shutdown(struct mount *mount)
{
    const struct shutdown_calls calls = {
        begin_shutdown,
        force_shutdown,
        handle_dead_helper,
        mount,
        {[WATCHED_UNMOUNTER] = &mount->unmounter, [WATCHED_OPENER] = &mount->opener},
        session_connection(mount->parts.session),
        mount->process};

    return shutdown_start(&calls);
}

/* Drops rights in the opener, which may read any file and, with allow_other, take on callers'
 * credentials. */
static void
drop_rights_of_opener(void *arg)
{
    struct mount *mount = arg;
    struct sandbox sandbox = mount->sandbox;

    sandbox.passthrough = false;
    sandbox.credentials = mount->parts.options->shared;
    sandbox_enter(&sandbox, -1);
    sandbox_seal(&sandbox);
}

static errint_t
start_opener(struct mount *mount, int source)
{
    errint_t error =
        opener_start(source, catalog_source_path(mount->parts.catalog), drop_rights_of_opener,
                     mount, !mount->parts.options->foreground, &mount->opener);

    if (error)
        print_error("cannot start the process fstfs-open: %s", strerror(-error));
    return error;
}

/* Drops rights in the logger, which only connects to syslog. */
static void
drop_rights_of_logger(void *arg)
{
    const struct options *options = arg;
    struct sandbox sandbox;

    tzset(); /* reads files; syslog() sends the local time */
    sandbox_init(&sandbox, !options->no_sandbox, false);
    sandbox.no_files = true;
    sandbox_enter(&sandbox, -1);
}

/* Starts the helpers and drops rights, while there is one thread. */
static errint_t
enter_sandbox(struct mount *mount)
{
    struct sandbox *sandbox = &mount->sandbox;
    bool quiet = !mount->parts.options->foreground;
    int source = catalog_source_fd(mount->parts.catalog);
    errint_t error;

    sandbox_init(sandbox, !mount->parts.options->no_sandbox, mount->parts.options->passthrough);
    credentials_init();
    overflow_ids_init();
    sandbox->tasks = run_delay_open();
    error = unmounter_start(session_unmount, session_abort, mount->parts.session, quiet,
                            &mount->unmounter);
    if (error && sandbox->wanted)
        sandbox_refuse(sandbox, "no process to unmount", error);
    if (mount->parts.options->shared) {
        mounted_devices_init();
        renewal_check_mounts(mounted_devices_owner);
        mount->link_rules =
            (struct resolve_link_rules){source, mounted_devices_owner, mounted_devices_permit_link};
        open_check_link_owners(&mount->link_rules);
    }
    if (mount->parts.options->shared || sandbox_confines_files(sandbox)) {
        error = start_opener(mount, source);
        if (error)
            return error;
    }
    if (sandbox_confines_files(sandbox))
        open_set_other(opener_open);
    sandbox_enter(sandbox, source);
    return 0;
}

static errint_t
make_parts(struct mount *mount)
{
    struct mount_parts *parts = &mount->parts;
    const struct options *options = parts->options;
    struct view_options view_options = {.root = options->view,
                                        .shards = options->shards,
                                        .shard_size = options->shard_size,
                                        .owner = geteuid(),
                                        .group = getegid(),
                                        .pages = mount->page_list,
                                        .page_count = PAGES,
                                        .check = options->shared ? opener_check : NULL};
    errint_t error = version_start(false);

    if (!error)
        error = io_new(&options->io, &parts->io);
    if (!error) {
        parts->loads = loads_new(parts->io, !options->shared, opener_command);
        error = parts->loads ? 0 : -ENOMEM;
    }
    if (!error) {
        parts->started = time(NULL);
        parts->started_ms = monotonic_ms();
        pages_list(parts, mount->page_list);
        error = view_new(parts->catalog, &view_options, &parts->view);
    }
    if (!error) {
        parts->survey = survey_new(parts->catalog, &view_options);
        error = parts->survey ? 0 : -ENOMEM;
    }
    if (error)
        print_error("cannot start: %s", strerror(-error));
    return error;
}

static errint_t
make_session(struct mount_parts *parts, struct readiness *readiness)
{
    const struct options *options = parts->options;
    struct catalog_options catalog_options = {.source = options->source,
                                              .derived_free = view_derived_free,
                                              .skip_hung = true,
                                              .header_memory = options->io.memory,
                                              .header_memory_advice = "; raise --memory"};
    struct session_options session_options = {.options = options,
                                              .mountpoint = parts->mountpoint,
                                              .ready = mount_ready,
                                              .ready_arg = readiness};
    errint_t error = catalog_new(&catalog_options, &parts->catalog);

    if (error) {
        print_error("source %s: %s", options->source, strerror(-error));
        return error;
    }
    session_options.catalog = parts->catalog;
    return session_new(&session_options, &parts->session);
}

/* Closes the connection and unmounts, unless others have unmounted. */
static void
unmount(struct mount *mount)
{
    bool is_mounted = session_cut(mount->parts.session);
    errint_t error = 0;

    if (mount->unmounter.socket >= 0)
        error = unmounter_end(&mount->unmounter, is_mounted);
    else if (is_mounted)
        error = session_unmount(mount->parts.session);
    if (error)
        report_unmount_error(mount, error);
}

/* Does not return if threads hang in the catalog. */
static void
free_parts(struct mount *mount, errint_t error)
{
    struct mount_parts *parts = &mount->parts;
    bool hangs;

    survey_free(parts->survey);
    io_free(parts->io);
    version_stop();
    hangs = !catalog_stop_queries(parts->catalog);
    shutdown_stop();
    if (parts->session) {
        unmount(mount);
        session_free(parts->session);
    }
    if (hangs)
        _exit(error || mount->failed ? 1 : 0);
    loads_free(parts->loads);
    view_free(parts->view);
    open_set_other(NULL);
    opener_end(&mount->opener);
    catalog_free(parts->catalog);
}

static int
serve_mount(const struct options *options, const char *mountpoint, int process,
            struct readiness *readiness)
{
    struct mount mount = {
        .parts = {.options = options, .mountpoint = mountpoint, .sandbox = &mount.sandbox},
        .unmounter = HELPER_NONE,
        .opener = HELPER_NONE,
        .process = process,
    };
    errint_t error = make_session(&mount.parts, readiness);

    if (!error)
        error = enter_sandbox(&mount);
    if (!error)
        error = make_parts(&mount);
    if (!error) {
        sandbox_seal(&mount.sandbox);
        error = start_shutdown(&mount);
        if (error)
            print_error("cannot start a thread: %s", strerror(-error));
    }
    if (!error) {
        error =
            session_run(mount.parts.session, mount.parts.view, mount.parts.io, mount.parts.loads);
        if (error)
            log_error("serving ended: %s", strerror(-error));
    }
    free_parts(&mount, error);
    return error || mount.failed ? 1 : 0;
}

/* In the parent: waits until the child is ready or has ended; returns the exit status. */
static int
await_child(pid_t child, int pipe)
{
    int status = 0;
    char ready;
    ssize_t got;

    do
        got = read(pipe, &ready, 1);
    while (got < 0 && errno == EINTR);
    if (got == 1)
        return 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : 1;
}

static int
serve_in_background(struct options *options, const char *mountpoint, int process)
{
    struct readiness readiness;
    struct helper logger;
    errint_t error;
    int ends[2];
    pid_t child;

    if (pipe2(ends, O_CLOEXEC) < 0) {
        print_error("pipe: %s", strerror(errno));
        return 1;
    }
    child = fork();
    if (child < 0) {
        print_error("fork: %s", strerror(errno));
        return 1;
    }
    if (child > 0) {
        close(ends[1]);
        return await_child(child, ends[0]);
    }
    close(ends[0]);
    setsid();
    if (chdir("/") < 0)
        log_warning("cannot change to /: %s", strerror(errno));
    error = logger_start(drop_rights_of_logger, options, &logger);
    if (error) {
        print_error("cannot start a process for the log: %s", strerror(-error));
        return 1;
    }
    readiness = (struct readiness){.pipe = ends[1],
                                   .null = open("/dev/null", O_RDWR | O_CLOEXEC),
                                   .log = logger.socket,
                                   .manager = -1};
    return serve_mount(options, mountpoint, process, &readiness);
}

/* Opens the process of --pid, before it can end and another get its number. *process is -1 if there
 * is no such option. */
static bool
open_process(const struct options *options, int *process)
{
    *process = -1;
    if (options->pid == 0)
        return true;
    *process = (int)syscall(SYS_pidfd_open, (pid_t)options->pid, 0);
    if (*process < 0)
        print_error("--pid=%u: %s", (unsigned)options->pid, strerror(errno));
    return *process >= 0;
}

static void
set_signals(void)
{
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* a blocked SIGTERM would not end the daemon */
    /* A log that can take no more bytes, as a full file or a closed pipe, must not end the daemon
     * or a helper, which would leave a dead mount. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    /* With an inherited SIG_IGN, waitpid(2) would not return the status of a child. */
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL); /* libfuse leaves a signal that is ignored */
}

/* Resolves both paths before it closes the inherited descriptors, because a path may lead through
 * one of them (/dev/fd/9). They are closed because they may hold a lock or be open for writing. */
static int
mount_and_serve(struct options *options)
{
    char *source = preflight_source(options->source), *mountpoint;
    int status = 1, process;
    errint_t error;

    set_signals();
    descriptor_limit_raise(); /* each request that hangs may hold a descriptor */
    if (!source)
        return 1;
    free(options->source);
    options->source = source;
    mountpoint = preflight_mountpoint(options->mountpoint);
    error = mountpoint ? close_inherited() : 0;
    log_init();
    if (error) {
        print_error("/dev/null: %s", strerror(-error));
    } else if (mountpoint && open_process(options, &process) &&
               preflight_check(source, mountpoint)) {
        first_look(source);
        if (options->foreground) {
            struct readiness readiness = {
                .pipe = -1, .null = -1, .log = -1, .manager = connect_to_manager()};

            status = serve_mount(options, mountpoint, process, &readiness);
        } else {
            status = serve_in_background(options, mountpoint, process);
        }
    }
    free(mountpoint);
    return status;
}

/* Overwrites the environment, which may hold secrets of the caller, except what fstfs, libfuse,
 * fusermount3 and the C library use later. /proc/PID/environ and the memory of the daemon and its
 * helpers would show the secrets as long as these run. */
static void
erase_environment(void)
{
    static const char *const kept[] = {"PATH=", "TZ=", "NOTIFY_SOCKET="};
    char **to = environ;

    for (char **from = environ; from && *from; from++) {
        bool keep = false;

        for (size_t i = 0; i < COUNT_OF(kept); i++)
            keep |= strncmp(*from, kept[i], strlen(kept[i])) == 0;
        if (keep)
            *to++ = *from;
        else
            explicit_bzero(*from, strlen(*from));
    }
    if (to)
        *to = NULL;
}

int
main(int argc, char **argv)
{
    struct options options;
    int status = 0;

#ifdef __GLIBC__
    /* Limits malloc's heaps: headers are parsed on many threads, and with a heap for each the
     * process would keep many times the memory of the tables. */
    mallopt(M_ARENA_MAX, 2);
    /* Returns large short-lived blocks (headers, indexes) to the system when freed. By default
     * glibc raises the threshold when the first large block is freed. */
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    mallopt(M_TRIM_THRESHOLD, 256 << 10);
#endif
    switch (options_parse(argc, argv, &options)) {
    case OPTIONS_RUN:
        erase_environment();
        status = mount_and_serve(&options);
        break;
    case OPTIONS_DONE:
        if (fflush(stdout) != 0) {
            log_error("standard output: %s", strerror(errno));
            status = 1;
        }
        break;
    case OPTIONS_WRONG:
        status = 2;
        break;
    }
    options_free(&options);
    return status;
}
