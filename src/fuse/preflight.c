/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/preflight.h"

#include "base/mountinfo.h"
#include "fuse/mount_table.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define STACK_LEAST (512u << 10)
#define CONTAINER "docker run --device /dev/fuse --cap-add SYS_ADMIN"

static const char device[] = "/dev/fuse";

void
print_error(const char *format, ...)
{
    struct buffer line = BUFFER_INIT;
    char text[2 * PATH_MAX + 1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    buffer_add_quoted(&line, text, strlen(text), sizeof(text));
    fprintf(stderr, "fstfs: %s\n", buffer_failed(&line) ? "no memory" : line.data);
    buffer_free(&line);
}

/* ---- names ---- */

enum { ACCOUNT_BYTES = 64 };

static const char *
user_name(uid_t user, char name[ACCOUNT_BYTES])
{
    const struct passwd *account = getpwuid(user);

    if (account)
        snprintf(name, ACCOUNT_BYTES, "%s", account->pw_name);
    else
        snprintf(name, ACCOUNT_BYTES, "%u", (unsigned)user);
    return name;
}

static const char *
group_name(gid_t group, char name[ACCOUNT_BYTES])
{
    const struct group *account = getgrgid(group);

    if (account)
        snprintf(name, ACCOUNT_BYTES, "%s", account->gr_name);
    else
        snprintf(name, ACCOUNT_BYTES, "%u", (unsigned)group);
    return name;
}

static const char *
kind_of_file(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "file";
    case S_IFDIR:
        return "directory";
    case S_IFBLK:
        return "block device";
    case S_IFCHR:
        return "character device";
    case S_IFIFO:
        return "FIFO";
    default:
        return "socket";
    }
}

/* ---- both paths ---- */

/* SOURCE or MOUNTPOINT, for messages. */
struct path_argument {
    const char *what;
    const char *missing; /* advice if it does not exist */
    bool names_missing; /* whether the path follows the advice */
    const char *expected; /* if it is not a directory */
};

static const struct path_argument source_argument = {
    .what = "source",
    .missing = "expected the directory that holds the models",
    .expected = "expected the directory that holds the models",
};

static const struct path_argument mountpoint_argument = {
    .what = "mount point",
    .missing = "make it first: mkdir -p ",
    .names_missing = true,
    .expected = "expected an empty directory",
};

/* Finds the FUSE file system of the longest prefix of `path` that can be opened. */
static void
find_fuse_above(const char *path, struct fuse_mount *found)
{
    char *part = strdup(path), *slash;

    *found = (struct fuse_mount){0};
    while (part && *part) {
        if (mount_find_fuse(part, found) == 0)
            break;
        slash = strrchr(part, '/');
        *(slash ? slash : part) = '\0';
    }
    free(part);
}

/* Reports a FUSE mount on the path that denies access to this user or is dead; returns false if
 * there is none. */
static bool
report_fuse_mount_above(const struct path_argument *argument, const char *path, errint_t error)
{
    struct fuse_mount mount;
    char name[ACCOUNT_BYTES];
    bool is_reason;

    find_fuse_above(path, &mount);
    is_reason = mount.mountpoint &&
                (error == -ENOTCONN ||
                 (error == -EACCES && mount.owner.user != geteuid() && !mount.owner.allow_other));
    if (is_reason && error == -ENOTCONN)
        print_error(
            "%s %s: %s: a FUSE mount whose daemon has died is there; fusermount3 -u %s clears it",
            argument->what, path, strerror(-error), mount.mountpoint);
    else if (is_reason)
        print_error("%s %s: %s: user %s has mounted a FUSE file system on %s, which only that user "
                    "may enter; mount it with -o allow_other, or run fstfs as that user",
                    argument->what, path, strerror(-error), user_name(mount.owner.user, name),
                    mount.mountpoint);
    free(mount.mountpoint);
    return is_reason;
}

static void
report_path_error(const struct path_argument *argument, const char *path, errint_t error)
{
    char name[ACCOUNT_BYTES];

    if (error == -ECONNABORTED) /* the daemon died during the call */
        error = -ENOTCONN;
    if (report_fuse_mount_above(argument, path, error))
        return;
    if (error == -ENOENT)
        print_error("%s %s: %s; %s%s", argument->what, path, strerror(-error), argument->missing,
                    argument->names_missing ? path : "");
    else if (error == -EACCES)
        print_error("%s %s: %s for user %s; run fstfs as a user who may read and enter it",
                    argument->what, path, strerror(-error), user_name(geteuid(), name));
    else
        print_error("%s %s: %s", argument->what, path, strerror(-error));
}

static char *
resolve_argument(const struct path_argument *argument, const char *path)
{
    char *real = realpath(path, NULL);

    if (!real)
        report_path_error(argument, path, -errno);
    return real;
}

static bool
check_is_directory(const struct path_argument *argument, const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        report_path_error(argument, path, -errno);
    else if (!S_ISDIR(st.st_mode))
        print_error("%s %s: not a directory (found a %s, %s)", argument->what, path,
                    kind_of_file(st.st_mode), argument->expected);
    else
        return true;
    return false;
}

static bool
check_readable(const struct path_argument *argument, const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        report_path_error(argument, path, -errno);
        return false;
    }
    close(fd);
    return true;
}

char *
preflight_source(const char *path)
{
    char *source = resolve_argument(&source_argument, path);

    if (source && (!check_is_directory(&source_argument, source) ||
                   !check_readable(&source_argument, source))) {
        free(source);
        return NULL;
    }
    return source;
}

char *
preflight_mountpoint(const char *path)
{
    return resolve_argument(&mountpoint_argument, path);
}

static bool
check_empty(const char *path)
{
    DIR *stream = opendir(path);
    struct dirent *entry;
    bool empty = true;

    if (!stream)
        return true; /* mounting will fail and report the reason */
    while (empty && (entry = readdir(stream)))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (!empty)
        print_error("mount point %s: not empty (found %s); mount on an empty directory", path,
                    entry->d_name);
    closedir(stream);
    return empty;
}

/* Checks that no FUSE file system is mounted there. Uses the mount table: on a dead mount stat and
 * opendir succeed as long as the kernel has its attributes cached. */
static bool
check_not_mounted(const char *mountpoint)
{
    struct fuse_mount mount;
    char name[ACCOUNT_BYTES];
    errint_t error = mount_find_fuse(mountpoint, &mount);
    bool busy = !error && mount.mountpoint && strcmp(mount.mountpoint, mountpoint) == 0;

    if (error)
        print_error("mount point %s: cannot find out from /proc what is mounted there: %s",
                    mountpoint, strerror(-error));
    else if (busy)
        print_error("mount point %s: busy, user %s has mounted a FUSE file system there already. "
                    "fusermount3 -u %s unmounts it, also if its daemon has died",
                    mountpoint, user_name(mount.owner.user, name), mountpoint);
    free(mount.mountpoint);
    return !error && !busy;
}

/* ---- the device ---- */

static void
report_device_mode(const struct stat *st)
{
    char user[ACCOUNT_BYTES], owner[ACCOUNT_BYTES], group[ACCOUNT_BYTES];
    mode_t mode = st->st_mode & 07777;

    user_name(geteuid(), user);
    user_name(st->st_uid, owner);
    group_name(st->st_gid, group);
    if ((mode & 0060) == 0060 && st->st_gid != 0)
        print_error(
            "%s: %s for user %s (found mode %04o of %s:%s); join its group (as root: usermod "
            "-aG %s %s) and log in again",
            device, strerror(EACCES), user, mode, owner, group, group, user);
    else
        print_error("%s: %s for user %s (found mode %04o of %s:%s, expected 0666); as root: chmod "
                    "0666 %s",
                    device, strerror(EACCES), user, mode, owner, group, device);
}

static bool
check_fuse_device(void)
{
    int fd = open(device, O_RDWR | O_CLOEXEC), error = errno;
    struct stat st = {0};

    if (fd >= 0)
        close(fd);
    if (stat(device, &st) == 0 && !S_ISCHR(st.st_mode))
        print_error("%s: found a %s, expected a character device; a container needs " CONTAINER,
                    device, kind_of_file(st.st_mode));
    else if (fd >= 0)
        return true;
    else if (error == EACCES)
        report_device_mode(&st);
    else if (error == EPERM)
        print_error("%s: %s: the container may not use it; it needs " CONTAINER, device,
                    strerror(error));
    else
        print_error("%s: %s; load the kernel's module (as root: modprobe fuse); a container "
                    "needs " CONTAINER,
                    device, strerror(error));
    return false;
}

/* Checks that the source does not contain, through mounts of fstfs, the directory of the mount
 * point: the mount would contain itself recursively. */
static bool
check_no_loop(const char *source, const char *mountpoint)
{
    char *other, *shown;
    errint_t error = mount_find_loop(source, mountpoint, &other, &shown);
    bool loop = error || shown;

    if (error)
        print_error("mount point %s: cannot find out from /proc what is mounted: %s", mountpoint,
                    strerror(-error));
    else if (shown)
        print_error(
            "mount point %s: it is in %s, which the source %s shows through the fstfs mount "
            "on %s; mount it elsewhere",
            mountpoint, shown, source, other);
    free(other);
    free(shown);
    return !loop;
}

/* The limit is also the default size of the stacks of threads. If it is too small, threads of the
 * daemon overflow theirs while it serves. */
static bool
check_stack_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_STACK, &limit) < 0 || limit.rlim_cur >= STACK_LEAST)
        return true;
    print_error(
        "the stack size limit is too small (found %u KiB, expected at least %u KiB); raise it "
        "with ulimit -s",
        (unsigned)(limit.rlim_cur / 1024), STACK_LEAST / 1024);
    return false;
}

bool
preflight_check(const char *source, const char *mountpoint)
{
    if (!check_not_mounted(mountpoint) || !check_is_directory(&mountpoint_argument, mountpoint))
        return false;
    if (path_is_inside(mountpoint, source))
        print_error("mount point %s: it is inside of the source %s; mount it elsewhere", mountpoint,
                    source);
    else if (path_is_inside(source, mountpoint))
        print_error("mount point %s: the source %s is inside of it; mount it elsewhere", mountpoint,
                    source);
    else
        return check_no_loop(source, mountpoint) && check_empty(mountpoint) &&
               check_fuse_device() && check_stack_limit();
    return false;
}

/* ---- a mount that failed ---- */

/* fusermount3 mounts only on directories that the user may write to and, if sticky, owns. If this
 * is not such a directory, prints advice and returns true. */
static bool
advise_on_mountpoint(const char *mountpoint, struct buffer *advice)
{
    char user[ACCOUNT_BYTES], owner[ACCOUNT_BYTES];
    struct stat st;

    if (geteuid() == 0 || stat(mountpoint, &st) < 0)
        return false;
    if (access(mountpoint, W_OK) == 0 && (!(st.st_mode & S_ISVTX) || st.st_uid == geteuid()))
        return false;
    buffer_addf(advice,
                "found owner %s and mode %04o, expected a directory that user %s owns and may "
                "write to: mount on one, or as root: chown %s %s",
                user_name(st.st_uid, owner), (unsigned)(st.st_mode & 07777),
                user_name(geteuid(), user), user, mountpoint);
    return true;
}

static void
advise_on_failure(const char *mountpoint, const char *printed, struct buffer *advice)
{
    if (strstr(printed, strerror(ENOTCONN)))
        buffer_addf(advice,
                    "a FUSE mount whose daemon has died is there; fusermount3 -u %s clears it",
                    mountpoint);
    else if (prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN, 0, 0, 0) == 0)
        buffer_add_text(advice,
                        "CAP_SYS_ADMIN is not available here: a container needs " CONTAINER);
    else if (geteuid() != 0 && prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        buffer_add_text(advice, "no_new_privs keeps fusermount3 from becoming root: run without it "
                                "(docker: no-new-privileges, systemd: NoNewPrivileges=)");
    else if (strstr(printed, "exec") || strstr(printed, "spawn"))
        buffer_add_text(advice, "without root privileges only fusermount3 can mount, and it cannot "
                                "be run: install it (package fuse3)");
    else if (!advise_on_mountpoint(mountpoint, advice) &&
             (strstr(printed, strerror(EPERM)) || strstr(printed, strerror(EACCES))))
        buffer_add_text(advice, "a container needs " CONTAINER
                                ", and where AppArmor refuses mounts --security-opt "
                                "apparmor=unconfined");
}

/* Joins the lines by semicolons. */
static void
join_printed_lines(struct buffer *text)
{
    while (text->length && text->data[text->length - 1] == '\n')
        text->data[--text->length] = '\0';
    for (size_t i = 0; i < text->length; i++)
        if (text->data[i] == '\n')
            text->data[i] = ';';
}

void
preflight_explain(const char *mountpoint, struct buffer *printed)
{
    struct buffer advice = BUFFER_INIT;

    join_printed_lines(printed);
    advise_on_failure(mountpoint, printed->length ? printed->data : "", &advice);
    print_error("mount point %s: cannot mount%s%s%s%s", mountpoint, printed->length ? ": " : "",
                printed->length ? printed->data : "", advice.length ? "; " : "",
                advice.length ? advice.data : "");
    buffer_free(&advice);
}
