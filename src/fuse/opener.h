/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The opener: a helper process (helpers.h) that looks up paths of the source for the daemon.
 *
 * - It opens files outside of the source that links in the source lead to, which Landlock denies to
 *   the daemon.
 * - With allow_other it asks the kernel whether a caller may access a path, with the caller's
 *   credentials. For that it keeps CAP_SETUID and CAP_SETGID.
 * - It reads the names of programs from /proc, for .fstfs/loads.
 *
 * It accepts only paths relative to the source, without "..", and returns an errno or a descriptor
 * of a regular file or directory that is open for reading. So a compromised daemon cannot make it
 * open what the source does not lead to.
 *
 * Each thread of the daemon that asks has its own socket, a channel, and the opener a thread for
 * it: storage that hangs blocks only the thread that asked.
 */
#ifndef FSTFS_FUSE_OPENER_H
#define FSTFS_FUSE_OPENER_H

#include "base/error.h"
#include "base/renew.h"
#include "fuse/credentials.h"
#include "fuse/helpers.h"
#include "view/permission.h"

#include <stdbool.h>
#include <stdint.h>

/* `source`: an open descriptor of the directory at `path`, which the opener renews without the
 * daemon (renewal_renew()). `drop` is called in the opener's process to drop rights. */
errint_t opener_start(int source, const struct renewal_path *path, void (*drop)(void *arg),
                      void *arg, bool quiet, struct helper *helper);
/* Does not wait for the opener, because storage may block it. */
void opener_end(struct helper *helper);

/* For open_set_other(). `path` must be relative to the source. Any thread. */
int opener_open(int directory, const char *path, int flags, uint64_t mount);
/* A permission_check. Also -EACCES if the opener has died. Any thread. */
errint_t opener_check(const struct caller *caller, const struct permission_query *queries,
                      size_t count);
/* The name of the program that a thread runs; "" if it is not known. Any thread. */
void opener_command(pid_t thread, char name[COMMAND_SIZE]);
/* The number of files and directories that it has opened for the daemon. */
uint64_t opener_opened(void);

#endif
