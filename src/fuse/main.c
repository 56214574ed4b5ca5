/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs: mounts a directory of safetensors checkpoints.
 *
 * The program returns when the mount answers, or says why it does not. In the
 * background a child serves it; the child tells its parent through a pipe that
 * the kernel has said hello, and until then its errors go to the terminal.
 */
#include "base/buffer.h"
#include "base/log.h"
#include "base/open.h"
#include "fuse/helpers.h"
#include "fuse/options.h"
#include "fuse/pages.h"
#include "fuse/sandbox.h"
#include "fuse/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FUSE_MAGIC = 0x65735546 };

/* One line: paths come from the command line, and that from scripts. */
static void __attribute__((format(printf, 1, 2))) complain(const char *format, ...)
{
    struct buffer line = BUFFER_INIT;
    char text[2 * PATH_MAX + 256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    buffer_add_quoted(&line, text, strlen(text), sizeof(text));
    fprintf(stderr, "fstfs: %s\n", buffer_failed(&line) ? "no memory" : line.data);
    buffer_free(&line);
}

/* ---- looking before mounting ---- */

static char *
real_directory(const char *what, const char *path)
{
    char *real = realpath(path, NULL);
    struct stat st;

    if (!real && errno == ENOTCONN) {
        complain("%s %s: a mount whose program has died is there; fusermount3 -u %s clears it",
                 what, path, path);
        return NULL;
    }
    if (!real || stat(real, &st) < 0) {
        if (errno == ENOTCONN)
            complain("%s %s: a mount whose program has died is there; fusermount3 -u %s clears it",
                     what, path, path);
        else
            complain("%s %s: %s", what, path, strerror(errno));
        free(real);
        return NULL;
    }
    if (!S_ISDIR(st.st_mode)) {
        complain("%s %s: not a directory", what, path);
        free(real);
        return NULL;
    }
    return real;
}

/* Whether `inside` is `outside` or lies in it; both real paths. */
static bool
lies_in(const char *inside, const char *outside)
{
    size_t length = strlen(outside);

    if (length == 1)
        return true; /* "/" */
    return strncmp(inside, outside, length) == 0 &&
           (inside[length] == '/' || inside[length] == '\0');
}

static bool
is_empty(const char *path)
{
    DIR *stream = opendir(path);
    struct dirent *entry;
    bool empty = true;

    if (!stream)
        return true; /* the mount itself will say what is wrong */
    while (empty && (entry = readdir(stream)))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    closedir(stream);
    return empty;
}

static bool
is_busy(const char *path)
{
    char parent[PATH_MAX + 4];
    struct stat here, above;
    struct statfs fs;

    snprintf(parent, sizeof(parent), "%s/..", path);
    return stat(path, &here) == 0 && stat(parent, &above) == 0 && here.st_dev != above.st_dev &&
           statfs(path, &fs) == 0 && fs.f_type == FUSE_MAGIC;
}

static bool
check_mountpoint(const char *source, const char *mountpoint)
{
    if (is_busy(mountpoint))
        complain("mount point %s: busy, something is mounted there already", mountpoint);
    else if (lies_in(mountpoint, source))
        complain("mount point %s: it lies in the source %s; mount it elsewhere", mountpoint,
                 source);
    else if (lies_in(source, mountpoint))
        complain("mount point %s: the source %s lies in it; mount it elsewhere", mountpoint,
                 source);
    else if (!is_empty(mountpoint))
        complain("mount point %s: not empty", mountpoint);
    else if (access("/dev/fuse", F_OK) < 0)
        complain("/dev/fuse: %s. Load it (modprobe fuse); a container needs --device /dev/fuse",
                 strerror(errno));
    else
        return true;
    return false;
}

/* ---- readiness ---- */

struct readiness {
    int pipe; /* to the parent; -1 in the foreground */
    int null; /* what takes the terminal's place then: a sandbox could not open it */
};

/* Tells systemd, when it asked to be told (sd_notify(3), the protocol). */
static void
notify_systemd(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = path ? strlen(path) : 0;
    int fd;

    if (length < 2 || length >= sizeof(address.sun_path))
        return;
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) < 0)
        log_warning("cannot notify systemd: %s", strerror(errno));
    close(fd);
}

static void
leave_terminal(int null)
{
    log_to_syslog("fstfs");
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        dup2(null, fd);
    if (null > 2)
        close(null);
    if (chdir("/") < 0)
        log_warning("cannot change to /: %s", strerror(errno));
}

static void
mount_ready(void *arg)
{
    struct readiness *readiness = arg;

    if (readiness->pipe < 0) {
        notify_systemd("READY=1");
        return;
    }
    leave_terminal(readiness->null);
    if (write(readiness->pipe, "R", 1) != 1)
        log_warning("cannot tell the parent process: %s", strerror(errno));
    close(readiness->pipe);
}

/* ---- serving ---- */

/* Everything of one mount, in the order it is made. */
struct mount {
    const struct options *options;
    struct catalog *catalog;
    struct session *session;
    struct helper unmounter, opener;
    struct sandbox sandbox;
    struct io *io;
    struct view *view;
    struct pages pages;
    struct view_page page_list[PAGES];
};

static void
unmount(void *arg)
{
    session_unmount(arg);
}

/* The opener reads whatever the source leads to, and is as poor in all else. */
static void
shut_opener(void *arg)
{
    struct sandbox sandbox = *(struct sandbox *)arg;

    sandbox.passthrough = false;
    sandbox_enter(&sandbox, -1);
    sandbox_seal(&sandbox);
}

/* Gives up what serving does not need, while there is one thread. */
static void
shut(struct mount *mount)
{
    struct sandbox *sandbox = &mount->sandbox;
    bool quiet = !mount->options->foreground;
    int source = catalog_source_fd(mount->catalog);
    errint_t error;

    sandbox_init(sandbox, !mount->options->no_sandbox, mount->options->passthrough);
    if (!sandbox->wanted)
        return;
    error = unmounter_start(unmount, mount->session, quiet, &mount->unmounter);
    if (error) {
        sandbox_refuse(sandbox, "no process to unmount", error);
        return;
    }
    if (sandbox_shuts_files(sandbox) &&
        opener_start(source, catalog_source(mount->catalog), shut_opener, sandbox, quiet,
                     &mount->opener) == 0)
        open_set_other(opener_open);
    else
        source = -1; /* nobody would open what links lead to */
    sandbox_enter(sandbox, source);
}

static errint_t
make_parts(struct mount *mount, const char *mountpoint)
{
    const struct options *options = mount->options;
    struct io_options io_options = {.threads = options->threads,
                                    .no_ring = options->no_ring,
                                    .no_direct = options->no_direct,
                                    .no_prefetch = options->no_prefetch,
                                    .queue_depth = options->queue_depth,
                                    .memory = options->memory};
    struct view_options view_options = {.root = options->view,
                                        .shards = options->shards,
                                        .shard_size = options->shard_size,
                                        .owner = geteuid(),
                                        .group = getegid(),
                                        .pages = mount->page_list,
                                        .page_count = PAGES};
    errint_t error = io_new(&io_options, &mount->io);

    if (!error) {
        mount->pages = (struct pages){.options = options,
                                      .mountpoint = mountpoint,
                                      .catalog = mount->catalog,
                                      .io = mount->io,
                                      .session = mount->session,
                                      .sandbox = &mount->sandbox,
                                      .started = time(NULL)};
        pages_list(&mount->pages, mount->page_list);
        error = view_new(mount->catalog, &view_options, &mount->view);
        mount->pages.view = mount->view;
    }
    if (error)
        complain("cannot start: %s", strerror(-error));
    return error;
}

static errint_t
make_session(struct mount *mount, const char *mountpoint, struct readiness *readiness)
{
    const struct options *options = mount->options;
    struct catalog_options catalog_options = {
        .source = options->source, .shared = options->shared, .derived_free = view_derived_free};
    struct session_options session_options = {
        .options = options, .mountpoint = mountpoint, .ready = mount_ready, .ready_arg = readiness};
    errint_t error = catalog_new(&catalog_options, &mount->catalog);

    if (error) {
        complain("source %s: %s", options->source, strerror(-error));
        return error;
    }
    session_options.catalog = mount->catalog;
    error = session_new(&session_options, &mount->session);
    if (error)
        complain("cannot mount on %s", mountpoint);
    return error;
}

static void
free_parts(struct mount *mount)
{
    io_free(mount->io);
    if (mount->unmounter.socket >= 0)
        unmounter_end(&mount->unmounter, session_cut(mount->session));
    if (mount->session)
        session_free(mount->session);
    view_free(mount->view);
    open_set_other(NULL);
    opener_end(&mount->opener);
    catalog_free(mount->catalog);
}

static int
serve(const struct options *options, const char *mountpoint, struct readiness *readiness)
{
    struct mount mount = {.options = options, .unmounter = HELPER_NONE, .opener = HELPER_NONE};
    errint_t error = make_session(&mount, mountpoint, readiness);

    if (!error) {
        shut(&mount);
        error = make_parts(&mount, mountpoint);
    }
    if (!error) {
        sandbox_seal(&mount.sandbox);
        error = session_run(mount.session, mount.view, mount.io);
        if (error)
            log_error("serving ended: %s", strerror(-error));
    }
    free_parts(&mount);
    return error ? 1 : 0;
}

/* The parent's part: waits until the child says ready, or has ended. */
static int
await_child(pid_t child, int pipe)
{
    int status;
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
serve_in_background(const struct options *options, const char *mountpoint)
{
    struct readiness readiness;
    int ends[2];
    pid_t child;

    if (pipe2(ends, O_CLOEXEC) < 0) {
        complain("pipe: %s", strerror(errno));
        return 1;
    }
    child = fork();
    if (child < 0) {
        complain("fork: %s", strerror(errno));
        return 1;
    }
    if (child > 0) {
        close(ends[1]);
        return await_child(child, ends[0]);
    }
    close(ends[0]);
    setsid();
    readiness = (struct readiness){ends[1], open("/dev/null", O_RDWR | O_CLOEXEC)};
    return serve(options, mountpoint, &readiness);
}

static int
run(struct options *options)
{
    char *source = real_directory("source", options->source), *mountpoint;
    int status = 1;

    if (!source)
        return 1;
    mountpoint = real_directory("mount point", options->mountpoint);
    if (mountpoint && check_mountpoint(source, mountpoint)) {
        if (options->foreground) {
            struct readiness readiness = {-1, -1};

            status = serve(options, mountpoint, &readiness);
        } else {
            status = serve_in_background(options, mountpoint);
        }
    }
    free(mountpoint);
    free(source);
    return status;
}

int
main(int argc, char **argv)
{
    struct options options;
    int status = 0;

#ifdef __GLIBC__
    /* Headers are parsed on many threads: a heap for each would keep many
     * times the memory that the tables need. */
    mallopt(M_ARENA_MAX, 2);
    /* What is large and short-lived (a header, an index) goes back at once;
     * left to itself the threshold grows with the first large block freed. */
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    mallopt(M_TRIM_THRESHOLD, 256 << 10);
#endif
    switch (options_parse(argc, argv, &options)) {
    case OPTIONS_RUN:
        if (options.debug)
            log_set_level(LOG_LEVEL_DEBUG);
        status = run(&options);
        break;
    case OPTIONS_DONE:
        break;
    case OPTIONS_WRONG:
        status = 2;
        break;
    }
    options_free(&options);
    return status;
}
