/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/mounting.h"

#include "fuse/preflight.h"
#include "fuse/shutdown.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- standard error ---- */

/* Captures what this process and its children print: libfuse and fusermount3 report errors there
 * and nowhere else. */
struct captured_stderr {
    int stream, text; /* the original and its replacement; -1: nothing is captured */
};

static void
stderr_capture(struct captured_stderr *captured)
{
    captured->stream = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    captured->text = memfd_create("stderr", MFD_CLOEXEC);
    if (captured->stream >= 0 && captured->text >= 0 && dup2(captured->text, STDERR_FILENO) >= 0)
        return;
    if (captured->stream >= 0)
        close(captured->stream);
    if (captured->text >= 0)
        close(captured->text);
    captured->stream = captured->text = -1;
}

static void
stderr_release(struct captured_stderr *captured, struct buffer *text)
{
    char part[1024];
    ssize_t got;

    if (captured->stream < 0)
        return;
    dup2(captured->stream, STDERR_FILENO);
    close(captured->stream);
    for (off_t at = 0; (got = pread(captured->text, part, sizeof(part), at)) > 0; at += got)
        buffer_add(text, part, (size_t)got);
    close(captured->text);
}

/* ---- mounting ---- */

/* libfuse's command line: fstfs's own mount options, then the user's. */
static errint_t
build_fuse_args(const struct mount_parameters *parameters, struct fuse_args *args)
{
    const char *user = parameters->mount_options;
    char *fsname = NULL, *all = NULL;
    errint_t error = -ENOMEM;

    if (asprintf(&fsname, "fsname=%s", parameters->source) < 0)
        return -ENOMEM;
    /* With allow_other fstfs checks permissions itself: default_permissions would grant by cached
     * modes. */
    if (fuse_opt_add_opt(&all, "ro,nosuid,nodev,noexec,subtype=fstfs") == 0 &&
        (parameters->shared ? 0 : fuse_opt_add_opt(&all, "default_permissions")) == 0 &&
        (user && strstr(user, "fsname=") ? 0 : fuse_opt_add_opt_escaped(&all, fsname)) == 0 &&
        (user ? fuse_opt_add_opt(&all, user) : 0) == 0 && fuse_opt_add_arg(args, "fstfs") == 0 &&
        fuse_opt_add_arg(args, "-o") == 0 && fuse_opt_add_arg(args, all) == 0 &&
        (parameters->debug ? fuse_opt_add_arg(args, "-d") : 0) == 0)
        error = 0;
    free(fsname);
    free(all);
    return error;
}

/* Reads a request. If the connection ends while a request is read, read(2) fails with ECONNABORTED.
 * libfuse expects ENODEV at the end, and prints any other error; a thread that it cancels while it
 * prints would leave stderr locked, and exit(3) would wait for that. */
static ssize_t
read_request(int fd, void *to, size_t size, void *userdata)
{
    ssize_t got = read(fd, to, size);

    (void)userdata;
    if (got < 0 && errno == ECONNABORTED)
        errno = ENODEV;
    return got;
}

static ssize_t
write_reply(int fd, struct iovec *parts, int count, void *userdata)
{
    (void)userdata;
    return writev(fd, parts, count);
}

static errint_t
make_and_mount(const struct mount_parameters *parameters, const struct fuse_lowlevel_ops *ops,
               void *userdata, struct fuse_session **fuse)
{
    const struct fuse_custom_io calls = {.read = read_request, .writev = write_reply};
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    errint_t error = build_fuse_args(parameters, &args);

    *fuse = NULL;
    if (!error) {
        error = -EINVAL;
        *fuse = fuse_session_new(&args, ops, sizeof(*ops), userdata);
    }
    fuse_opt_free_args(&args);
    if (!*fuse)
        return error;
    if (fuse_set_signal_handlers(*fuse) < 0)
        goto fail_destroy;
    if (shutdown_catch_signals() < 0)
        goto fail_handlers;
    if (fuse_session_mount(*fuse, parameters->mountpoint) < 0)
        goto fail_signals;
    if (fuse_session_custom_io(*fuse, &calls, fuse_session_fd(*fuse)) != 0)
        goto fail_unmount;
    shutdown_interrupt_calls();
    return 0;

fail_unmount:
    fuse_session_unmount(*fuse);
fail_signals:
    shutdown_release_signals();
fail_handlers:
    fuse_remove_signal_handlers(*fuse);
fail_destroy:
    fuse_session_destroy(*fuse);
    return -EIO;
}

errint_t
mount_new(const struct mount_parameters *parameters, const struct fuse_lowlevel_ops *ops,
          void *userdata, struct fuse_session **fuse)
{
    struct captured_stderr captured;
    struct buffer printed = BUFFER_INIT;
    errint_t error;

    stderr_capture(&captured);
    error = make_and_mount(parameters, ops, userdata, fuse);
    stderr_release(&captured, &printed);
    if (error)
        preflight_explain(parameters->mountpoint, &printed);
    else if (printed.length)
        fputs(printed.data, stderr);
    buffer_free(&printed);
    return error;
}

void
mount_end(struct fuse_session *fuse)
{
    fuse_session_unmount(fuse);
    shutdown_release_signals();
    fuse_remove_signal_handlers(fuse);
}

/* ---- unmounting ---- */

/* Calls umount2() for the mount whose root is `fd`, whatever its path leads to. */
static errint_t
unmount_root(int fd, int flags)
{
    char path[sizeof("/proc/self/fd/") + 3 * sizeof(int)];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return umount2(path, flags) < 0 ? -errno : 0;
}

/* Unmounts as an ordinary user. */
static errint_t
unmount_by_fusermount(const char *path)
{
    pid_t pid = fork();
    int status;

    if (pid < 0)
        return -errno;
    if (pid == 0) {
        execlp("fusermount3", "fusermount3", "-u", "-q", "-z", "--", path, (char *)NULL);
        _exit(1);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

errint_t
mount_detach(const struct mount_identity *mount)
{
    struct mount_place place;
    errint_t error = mount_locate(mount, &place);

    if (!error)
        error = place.fd < 0 || place.has_mounts ? -EBUSY : unmount_root(place.fd, MNT_DETACH);
    if (error == -EPERM)
        error = unmount_by_fusermount(place.path);
    mount_place_free(&place);
    return error == -ENOENT ? 0 : error;
}

/* ---- aborting ---- */

static bool
abort_by_fusectl(dev_t device)
{
    char path[64];
    bool aborted;
    int fd;

    snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort", minor(device));
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    aborted = write(fd, "1", 1) == 1;
    close(fd);
    return aborted;
}

void
mount_abort(const struct mount_identity *mount)
{
    struct mount_place place;

    /* While its root is open, umount2() aborts the connection without unmounting. */
    if (mount_locate(mount, &place) == 0 && !abort_by_fusectl(mount->device) && place.fd >= 0)
        unmount_root(place.fd, MNT_FORCE);
    mount_place_free(&place);
}
