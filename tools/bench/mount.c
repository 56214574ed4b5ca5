/* SPDX-License-Identifier: Apache-2.0 */
#include "mount.h"

#include "base/mountinfo.h"
#include "common/mounts.h"
#include "machine.h"

#include <cjson/cJSON.h>
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
#include <sys/socket.h>
#include <sys/stat.h>
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

/* ---- the guard process ---- */

/* Sent by the guard once, when it has mounted or failed. */
struct guard_report {
    pid_t daemon; /* 0: failed */
    char text[400]; /* the error, if it failed */
};

static void __attribute__((noreturn))
guard_exec_daemon(const char *program, const char *source, const char *point, int log)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    dup2(null, 0);
    dup2(null, 1);
    dup2(log, 2);
    execl(program, program, "-f", source, point, (char *)NULL);
    dprintf(log, "%s: %s", program, strerror(errno));
    _exit(127);
}

/* Waits up to `ms` for a child to end. */
static bool
child_has_ended(pid_t child, int ms)
{
    int status;

    for (int at = 0; waitpid(child, &status, WNOHANG) == 0; at += STEP_MS) {
        if (at >= ms)
            return false;
        poll(NULL, 0, STEP_MS);
    }
    return true;
}

/* Whether the other end of the socket is closed; waits up to `ms`, or without limit if -1. */
static bool
guard_is_released(int hold, int ms)
{
    struct pollfd waiting = {.fd = hold, .events = POLLIN};

    return poll(&waiting, 1, ms) > 0;
}

/* False: the daemon ended or hangs, or the mount is no longer wanted. */
static bool
guard_await_mount(pid_t daemon, const char *point, int hold, struct guard_report *report)
{
    for (int at = 0; !mounts_is_point(point); at += STEP_MS) {
        int status;

        if (waitpid(daemon, &status, WNOHANG) != 0)
            return false;
        if (guard_is_released(hold, STEP_MS))
            return false;
        if (at >= MOUNT_MS) {
            snprintf(report->text, sizeof(report->text), "not mounted after %d s", MOUNT_MS / 1000);
            return false;
        }
    }
    return true;
}

static void
guard_unmount(const char *point)
{
    pid_t child = fork();

    if (child == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        dup2(null, 2);
        execlp("fusermount3", "fusermount3", "-u", "-z", point, (char *)NULL);
        _exit(127);
    }
    if (child > 0)
        waitpid(child, NULL, 0);
    if (mounts_is_point(point))
        umount2(point, MNT_DETACH); /* as root */
}

static void
guard_end_daemon(pid_t daemon)
{
    static const struct {
        int signal, ms;
    } steps[] = {{0, UNMOUNT_MS}, {SIGTERM, TERM_MS}, {SIGKILL, TERM_MS}};

    /* If the mount has a copy in another namespace, the daemon continues: send a signal then. */
    for (size_t i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        kill(daemon, steps[i].signal);
        if (child_has_ended(daemon, steps[i].ms))
            return;
    }
}

/* Reports the first line that the daemon printed. */
static void
guard_read_error(int log, struct guard_report *report)
{
    ssize_t got = pread(log, report->text, sizeof(report->text) - 1, 0);

    if (got <= 0) {
        snprintf(report->text, sizeof(report->text), "fstfs exited before mounting");
        return;
    }
    report->text[got] = '\0';
    report->text[strcspn(report->text, "\n")] = '\0';
}

static void __attribute__((noreturn))
guard_main(const char *program, const char *source, const char *point, int hold)
{
    int log = memfd_create("log", MFD_CLOEXEC);
    struct guard_report report = {0};
    pid_t daemon;

    prctl(PR_SET_NAME, "bench-guard");
    setsid();
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    daemon = fork();
    if (daemon == 0)
        guard_exec_daemon(program, source, point, log);
    if (daemon < 0)
        snprintf(report.text, sizeof(report.text), "fork: %s", strerror(errno));
    else if (guard_await_mount(daemon, point, hold, &report))
        report.daemon = daemon;
    else if (!report.text[0])
        guard_read_error(log, &report);
    if (write(hold, &report, sizeof(report)) == (ssize_t)sizeof(report))
        guard_is_released(hold, -1);
    if (mounts_is_point(point))
        guard_unmount(point);
    if (daemon > 0)
        guard_end_daemon(daemon);
    if (mounts_is_point(point)) /* mounted after the check above */
        guard_unmount(point);
    rmdir(point);
    _exit(0);
}

/* ---- temporary mounts ---- */

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
mount_start_guard(const char *program, const char *source, struct mount *mount)
{
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    mount->guard = fork();
    if (mount->guard == 0) {
        close(ends[0]);
        guard_main(program, source, mount->point, ends[1]);
    }
    close(ends[1]);
    mount->hold = ends[0];
    if (mount->guard > 0)
        return 0;
    close(ends[0]);
    return -EAGAIN;
}

errint_t
mount_begin(const char *program, const char *source, struct mount *mount, struct reason *reason)
{
    struct guard_report report = {0};
    struct stat st;
    errint_t error = make_mountpoint(source, mount->point, reason);

    if (error)
        return error;
    error = mount_start_guard(program, source, mount);
    if (error) {
        rmdir(mount->point);
        return reason_set(reason, error, "Guard", "fork: %s", strerror(-error));
    }
    if (recv(mount->hold, &report, sizeof(report), MSG_WAITALL) != (ssize_t)sizeof(report))
        error = reason_set(reason, -EINTR, "Guard", "interrupted");
    else if (report.daemon == 0)
        error = reason_set(reason, -EIO, "Mount", "%s", report.text);
    else if (stat(mount->point, &st) < 0) /* waits until the daemon answers */
        error = reason_set(reason, -errno, "Mount", "%s: %s", mount->point, strerror(errno));
    mount->daemon = report.daemon;
    if (error)
        mount_end(mount);
    return error;
}

void
mount_end(struct mount *mount)
{
    if (mount->guard <= 0)
        return;
    close(mount->hold);
    while (waitpid(mount->guard, NULL, 0) < 0 && errno == EINTR)
        ;
    *mount = (struct mount){0};
}

/* ---- the mount that a path is on ---- */

static errint_t
mount_read_status(struct mount *mount, char source[PATH_MAX], bool *one_view, struct reason *reason)
{
    struct buffer text = BUFFER_INIT;
    char path[PATH_MAX + 32];
    const char *where, *view;
    errint_t error = 0;
    cJSON *status;

    snprintf(path, sizeof(path), "%s/.fstfs/status", mount->point);
    machine_read_file(path, &text);
    status = cJSON_Parse(text.data);
    buffer_free(&text);
    where = cJSON_GetStringValue(cJSON_GetObjectItem(status, "source"));
    view = cJSON_GetStringValue(cJSON_GetObjectItem(status, "view"));
    if (!where || !view) {
        error = reason_set(reason, -EIO, "Status", "%s: the source and view are missing", path);
    } else {
        snprintf(source, PATH_MAX, "%s", where);
        *one_view = strcmp(view, "all") != 0;
        mount->daemon = (pid_t)cJSON_GetNumberValue(cJSON_GetObjectItem(status, "pid"));
    }
    cJSON_Delete(status);
    return error;
}

errint_t
mount_of(const char *path, struct mount *mount, char source[PATH_MAX], struct reason *reason)
{
    struct mount_entry entry;
    bool one_view = false;
    const char *rest;
    size_t length;
    errint_t error;

    *mount = (struct mount){0};
    if (!mounts_find(path, &entry) || strcmp(entry.type, "fuse.fstfs") != 0)
        return -ENOENT;
    strcpy(mount->point, entry.point);
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
    static const char key[] = "\nfstfs_storage_read_bytes_total ";
    struct buffer text = BUFFER_INIT;
    char path[PATH_MAX + 32];
    const char *at;
    uint64_t bytes = 0;

    snprintf(path, sizeof(path), "%s/.fstfs/metrics", mount->point);
    machine_read_file(path, &text);
    at = text.data ? strstr(text.data, key) : NULL;
    if (at)
        bytes = strtoull(at + strlen(key), NULL, 10);
    buffer_free(&text);
    return bytes;
}
