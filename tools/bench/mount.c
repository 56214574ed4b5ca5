/* SPDX-License-Identifier: Apache-2.0 */
#include "mount.h"

#include "base/mountinfo.h"
#include "common/mounts.h"
#include "guard.h"
#include "machine.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the program ---- */

static bool
is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Where this program lies, and `fstfs` beside it. */
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
                      "there is no fstfs beside this program and none in PATH");
}

/* ---- a mount of our own ---- */

/* Makes a private directory that does not lie in the source. */
static errint_t
make_point(const char *source, char point[PATH_MAX], struct reason *reason)
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
    return reason_set(reason, -error, "Point", "no directory to mount on can be made: %s",
                      strerror(error));
}

/* Reads the guard's report; false: it has ended, or a signal came. */
static bool
read_report(int ready, struct guard_report *report)
{
    size_t have = 0;

    while (have < sizeof(*report)) {
        ssize_t got = read(ready, (char *)report + have, sizeof(*report) - have);

        if (got <= 0)
            return false;
        have += (size_t)got;
    }
    return true;
}

static errint_t
start_guard(const char *program, const char *source, struct mount *mount, int *ready)
{
    int holds[2], readies[2];

    if (pipe2(holds, O_CLOEXEC) < 0)
        return -errno;
    if (pipe2(readies, O_CLOEXEC) < 0) {
        close(holds[0]);
        close(holds[1]);
        return -errno;
    }
    mount->guard = fork();
    if (mount->guard == 0) {
        close(holds[1]);
        close(readies[0]);
        guard_run(program, source, mount->point, holds[0], readies[1]);
    }
    close(holds[0]);
    close(readies[1]);
    mount->hold = holds[1];
    *ready = readies[0];
    if (mount->guard < 0) {
        close(holds[1]);
        close(readies[0]);
        return -ENOMEM;
    }
    return 0;
}

errint_t
mount_begin(const char *program, const char *source, struct mount *mount, struct reason *reason)
{
    struct guard_report report = {0};
    struct stat st;
    errint_t error = make_point(source, mount->point, reason);
    int ready = -1;

    if (error)
        return error;
    error = start_guard(program, source, mount, &ready);
    if (error) {
        rmdir(mount->point);
        return reason_set(reason, error, "Guard", "fork: %s", strerror(-error));
    }
    if (!read_report(ready, &report))
        error = reason_set(reason, -EINTR, "Guard", "interrupted");
    else if (report.daemon == 0)
        error = reason_set(reason, -EIO, "Mount", "%s", report.text);
    else if (stat(mount->point, &st) < 0) /* returns when it answers */
        error = reason_set(reason, -errno, "Mount", "%s: %s", mount->point, strerror(errno));
    mount->daemon = report.daemon;
    close(ready);
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

/* ---- the mount a path lies on ---- */

static errint_t
read_status(struct mount *mount, char source[PATH_MAX], bool *one_view, struct reason *reason)
{
    struct buffer text = BUFFER_INIT;
    char path[PATH_MAX + 32];
    const char *where, *view;
    errint_t error = 0;
    cJSON *status;

    snprintf(path, sizeof(path), "%s/.fstfs/status", mount->point);
    machine_read(path, &text);
    status = cJSON_Parse(text.data);
    buffer_free(&text);
    where = cJSON_GetStringValue(cJSON_GetObjectItem(status, "source"));
    view = cJSON_GetStringValue(cJSON_GetObjectItem(status, "view"));
    if (!where || !view) {
        error = reason_set(reason, -EIO, "Status", "%s does not say what is mounted", path);
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
    error = read_status(mount, source, &one_view, reason);
    if (error)
        return error;
    rest = path + strlen(mount->point);
    rest += *rest == '/';
    if (!one_view) /* the first name of the path is the view's */
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
    machine_read(path, &text);
    at = text.data ? strstr(text.data, key) : NULL;
    if (at)
        bytes = strtoull(at + strlen(key), NULL, 10);
    buffer_free(&text);
    return bytes;
}
