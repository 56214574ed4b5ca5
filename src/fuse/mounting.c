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
#include <unistd.h>

/* ---- standard error ---- */

/* Keeps what is printed there, also by child processes: libfuse's messages come from two
 * processes, and fusermount3's from a third. */
struct captured_stderr {
    int stream, text; /* the real one and what takes its place; -1: nothing is kept */
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

/* ---- libfuse ---- */

/* What libfuse is told: our own options first, then the user's. */
static errint_t
fuse_arguments(const struct session_options *options, struct fuse_args *args)
{
    const char *user = options->options->mount_options;
    char *fsname = NULL, *all = NULL;
    errint_t error = -ENOMEM;

    if (asprintf(&fsname, "fsname=%s", catalog_source(options->catalog)) < 0)
        return -ENOMEM;
    /* Where other users may enter, fstfs checks them itself: by the modes that are shown, and
     * cached, the kernel would grant too much. */
    if (fuse_opt_add_opt(&all, "ro,nosuid,nodev,subtype=fstfs") == 0 &&
        (options->options->shared ? 0 : fuse_opt_add_opt(&all, "default_permissions")) == 0 &&
        (user && strstr(user, "fsname=") ? 0 : fuse_opt_add_opt_escaped(&all, fsname)) == 0 &&
        (user ? fuse_opt_add_opt(&all, user) : 0) == 0 && fuse_opt_add_arg(args, "fstfs") == 0 &&
        fuse_opt_add_arg(args, "-o") == 0 && fuse_opt_add_arg(args, all) == 0 &&
        (options->options->debug ? fuse_opt_add_arg(args, "-d") : 0) == 0)
        error = 0;
    free(fsname);
    free(all);
    return error;
}

static errint_t
make_and_mount(const struct session_options *options, const struct fuse_lowlevel_ops *operations,
               size_t size, void *userdata, struct fuse_session **fuse)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    errint_t error = fuse_arguments(options, &args);

    if (!error) {
        error = -EINVAL;
        *fuse = fuse_session_new(&args, operations, size, userdata);
    }
    fuse_opt_free_args(&args);
    if (!*fuse)
        return error;
    if (fuse_set_signal_handlers(*fuse) < 0)
        goto fail_destroy;
    if (shutdown_catch_signals() < 0)
        goto fail_handlers;
    if (fuse_session_mount(*fuse, options->mountpoint) < 0)
        goto fail_signals;
    return 0;

fail_signals:
    shutdown_release_signals();
fail_handlers:
    fuse_remove_signal_handlers(*fuse);
fail_destroy:
    fuse_session_destroy(*fuse);
    return -EIO;
}

errint_t
mounting_mount(const struct session_options *options, const struct fuse_lowlevel_ops *operations,
               size_t size, void *userdata, struct fuse_session **fuse)
{
    struct captured_stderr captured;
    struct buffer printed = BUFFER_INIT;
    errint_t error;

    stderr_capture(&captured);
    error = make_and_mount(options, operations, size, userdata, fuse);
    stderr_release(&captured, &printed);
    if (error)
        preflight_explain(options->mountpoint, &printed);
    else if (printed.length)
        fputs(printed.data, stderr);
    buffer_free(&printed);
    return error;
}
