/* SPDX-License-Identifier: Apache-2.0 */
#include "mount.h"

#include "base/file.h"
#include "common/json.h"
#include "common/mounts.h"
#include "common/progress.h"
#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOUNT_MS = 20000, UNMOUNT_MS = 5000, TERM_MS = 15000, STEP_MS = 2 };

/* ---- the program ---- */

static bool
is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* `fstfs` in the directory of this program. */
static bool
find_beside(char program[PATH_MAX])
{
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (length <= 0)
        return false;
    self[length] = '\0';
    return snprintf(program, PATH_MAX, "%s/fstfs", dirname(self)) < PATH_MAX && is_program(program);
}

errint_t
mount_program(char program[PATH_MAX], struct reason *reason)
{
    const char *path = getenv("PATH");

    if (find_beside(program))
        return 0;
    while (path && *path) {
        size_t piece = strcspn(path, ":");

        if (piece > 0 && snprintf(program, PATH_MAX, "%.*s/fstfs", (int)piece, path) < PATH_MAX &&
            is_program(program))
            return 0;
        path += piece + (path[piece] == ':');
    }
    return reason_set(reason, -ENOENT, "Program",
                      "fstfs was found neither next to this program nor in PATH");
}

/* ---- temporary mounts ---- */

/* Waits up to `ms` for a child to end. */
static bool
child_has_ended(pid_t child, int *status, int ms)
{
    for (int at = 0; waitpid(child, status, WNOHANG) == 0; at += STEP_MS) {
        if (at >= ms)
            return false;
        poll(NULL, 0, STEP_MS);
    }
    return true;
}

/* Removes a mount whose daemon could not do so. */
static void
force_unmount(const char *point)
{
    pid_t child = fork();

    if (child == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        progress_release_signals();
        dup2(null, 2);
        execlp("fusermount3", "fusermount3", "-u", "-z", point, (char *)NULL);
        _exit(127);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
    if (mounts_is_point(point))
        umount2(point, MNT_DETACH); /* as root */
}

/* Waits until the other end of `hold` is closed, then unmounts. */
static void __attribute__((noreturn)) guard_main(const char *point, int hold)
{
    char byte;

    prctl(PR_SET_NAME, "bench-guard");
    setsid();
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    while (read(hold, &byte, 1) < 0 && errno == EINTR)
        continue;
    if (mounts_is_point(point))
        force_unmount(point);
    rmdir(point);
    _exit(0);
}

static errint_t
mount_start_guard(struct mount *mount)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    mount->guard = fork();
    if (mount->guard == 0) {
        close(ends[1]);
        guard_main(mount->point, ends[0]);
    }
    close(ends[0]);
    mount->hold = ends[1];
    if (mount->guard > 0)
        return 0;
    close(ends[1]);
    return -EAGAIN;
}

static void __attribute__((noreturn))
exec_fstfs(const char *program, const char *source, const char *point, pid_t bench, int log)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    char option[32];

    snprintf(option, sizeof(option), "--pid=%d", (int)bench);
    progress_release_signals();
    setsid(); /* ^C ends the mount after the readers */
    dup2(null, 0);
    dup2(null, 1);
    dup2(log, 2);
    execl(program, program, option, source, point, (char *)NULL);
    dprintf(log, "%s: %s", program, strerror(errno));
    _exit(127);
}

/* The first line that fstfs printed. */
static errint_t
mount_error(int log, struct reason *reason)
{
    char text[400] = "";

    if (pread(log, text, sizeof(text) - 1, 0) <= 0)
        return reason_set(reason, -EIO, "Mount", "fstfs exited before mounting");
    text[strcspn(text, "\n")] = '\0';
    return reason_set(reason, -EIO, "Mount", "%s", text);
}

/* Runs fstfs, which returns when the mount answers. */
static errint_t
run_fstfs(const char *program, const char *source, const char *point, struct reason *reason)
{
    int log = memfd_create("log", MFD_CLOEXEC), status = 0;
    pid_t bench = getpid(), child = fork();
    errint_t error = 0;

    if (child == 0)
        exec_fstfs(program, source, point, bench, log);
    if (child < 0) {
        error = reason_set(reason, -errno, "Mount", "fork: %s", strerror(errno));
    } else if (!child_has_ended(child, &status, MOUNT_MS)) {
        kill(-child, SIGKILL);
        waitpid(child, NULL, 0);
        error = reason_set(reason, -EIO, "Mount", "not mounted after %d s", MOUNT_MS / 1000);
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        error = mount_error(log, reason);
    }
    close(log);
    return error;
}

/* Makes a private directory outside the source. */
static errint_t
make_mountpoint(const char *source, char point[PATH_MAX], struct reason *reason)
{
    const char *places[] = {getenv("TMPDIR"), getenv("XDG_RUNTIME_DIR"), "/tmp", "/var/tmp",
                            "/dev/shm"};
    int error = ENOENT;

    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        char real[PATH_MAX];

        if (!places[i] || !realpath(places[i], real))
            continue;
        if (snprintf(point, PATH_MAX, "%s/fstfs-bench.XXXXXX", real) >= PATH_MAX)
            continue;
        if (path_is_inside(point, source))
            continue;
        if (mkdtemp(point))
            return 0;
        error = errno;
    }
    return reason_set(reason, -error, "Point", "cannot create a mount point: %s", strerror(error));
}

static errint_t
mount_read_status(struct mount *mount, char source[PATH_MAX], bool *one_view, struct reason *reason)
{
    struct buffer text = BUFFER_INIT;
    char path[PATH_MAX + 32];
    const char *where, *view;
    errint_t error = 0;
    cJSON *status;

    snprintf(path, sizeof(path), "%s/.fstfs/status", mount->point);
    file_read_text(path, &text);
    status = cJSON_Parse(text.data);
    buffer_free(&text);
    where = json_text(status, "source");
    view = json_text(status, "view");
    if (!*where || !*view) {
        error = reason_set(reason, -EIO, "Status", "%s: the source and view are missing", path);
    } else {
        snprintf(source, PATH_MAX, "%s", where);
        *one_view = strcmp(view, "all") != 0;
        mount->daemon = (pid_t)json_number(status, "pid");
    }
    cJSON_Delete(status);
    return error;
}

errint_t
mount_begin(const char *program, const char *source, struct mount *mount, struct reason *reason)
{
    char real[PATH_MAX];
    bool one_view;
    errint_t error = make_mountpoint(source, mount->point, reason);

    if (error)
        return error;
    error = mount_start_guard(mount);
    if (error) {
        rmdir(mount->point);
        return reason_set(reason, error, "Guard", "fork: %s", strerror(-error));
    }
    error = run_fstfs(program, source, mount->point, reason);
    if (!error)
        error = mount_read_status(mount, real, &one_view, reason);
    if (error)
        mount_end(mount);
    return error;
}

/* Waits for the daemon to exit, which it does after the unmount. If a copy of the mount in another
 * namespace keeps it running, sends it SIGTERM, and later SIGKILL. */
static void
await_daemon(pid_t pid)
{
    static const struct {
        int signal, ms;
    } steps[] = {{0, UNMOUNT_MS}, {SIGTERM, TERM_MS}, {SIGKILL, TERM_MS}};
    struct pollfd daemon = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};

    if (daemon.fd < 0)
        return; /* it has ended */
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        kill(pid, steps[i].signal);
        while (poll(&daemon, 1, steps[i].ms) < 0 && errno == EINTR)
            continue;
        if (daemon.revents)
            break;
    }
    close(daemon.fd);
}

void
mount_end(struct mount *mount)
{
    if (mount->guard <= 0)
        return;
    close(mount->hold);
    while (waitpid(mount->guard, NULL, 0) < 0 && errno == EINTR)
        continue;
    if (mount->daemon > 0)
        await_daemon(mount->daemon);
    *mount = (struct mount){0};
}

/* ---- the mount that a path is on ---- */

errint_t
mount_of(const char *path, struct mount *mount, char source[PATH_MAX], struct reason *reason)
{
    struct mountinfo found;
    bool one_view = false, is_fstfs;
    const char *rest;
    size_t length;
    errint_t error;

    *mount = (struct mount){0};
    is_fstfs = mounts_find(path, &found) && strcmp(found.type, "fuse.fstfs") == 0;
    if (is_fstfs)
        snprintf(mount->point, sizeof(mount->point), "%s", found.mountpoint);
    mountinfo_free(&found);
    if (!is_fstfs)
        return -ENOENT;
    error = mount_read_status(mount, source, &one_view, reason);
    if (error)
        return error;
    rest = path + strlen(mount->point);
    rest += *rest == '/';
    if (!one_view) /* the first name is the view */
        rest += strcspn(rest, "/");
    rest += *rest == '/';
    length = strlen(source);
    snprintf(source + length, PATH_MAX - length, "%s%s", *rest ? "/" : "", rest);
    return 0;
}

uint64_t
mount_storage_bytes(const struct mount *mount)
{
    char path[PATH_MAX + 32];

    snprintf(path, sizeof(path), "%s/.fstfs/metrics", mount->point);
    return file_read_number(path, "\nfstfs_storage_read_bytes_total ", 0);
}
