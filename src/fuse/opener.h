/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The opener: a helper process (helpers.h) that looks up paths of the source for the
 * daemon.
 *
 * It opens files for a daemon that Landlock has shut into the source: those that are
 * elsewhere because a link in the source leads there. And it asks the kernel whether
 * a caller of the mount may have a path, with that caller's credentials, for which it
 * alone keeps CAP_SETUID and CAP_SETGID. It takes paths below the source only, without
 * "..", and gives back files and directories open for reading, or an errno, so that
 * it cannot be made to open what the source does not lead to.
 *
 * Each thread of the daemon that asks has a channel of its own, a socket, and the
 * opener a thread for it: storage that hangs holds up only the thread that asked.
 */
#ifndef FSTFS_FUSE_OPENER_H
#define FSTFS_FUSE_OPENER_H

#include "base/error.h"
#include "fuse/helpers.h"
#include "view/permission.h"

#include <stdbool.h>
#include <stdint.h>

/* `source` is a descriptor of the directory at `path`, which the opener renews by itself
 * (open_renew()). `give_up` is what it calls to give up what it does not need. */
errint_t opener_start(int source, const char *path, void (*give_up)(void *arg), void *arg,
                      bool quiet, struct helper *helper);
void opener_end(struct helper *helper);

/* For open_set_other(). The path is taken to be relative to the source. Any thread. */
int opener_open(int directory, const char *path, int flags);
/* A permission_check. -EACCES also where there is no opener any more. */
errint_t opener_check(const struct caller *caller, const struct permission_query *queries,
                      size_t count);
/* How many files and directories it has opened for this process, so that status shows
 * whether links lead out of the source. */
uint64_t opener_opened(void);

#endif
