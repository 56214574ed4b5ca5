/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two small processes that keep what the daemon gives up once it has mounted
 * (sandbox.h). They are forked after the mount and before any thread, hold neither
 * the connection to the kernel nor bytes of a model, and end with the daemon.
 *
 * The unmounter may unmount this one mount, and does nothing else. The opener opens
 * files for a daemon that Landlock has shut into the source: those that lie outside
 * because a link in the source leads there. It takes paths below the source only,
 * without "..", and gives back files and directories open for reading, so that it
 * cannot be made to open what the source does not lead to.
 */
#ifndef FSTFS_FUSE_HELPERS_H
#define FSTFS_FUSE_HELPERS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A process beside this one. */
struct helper {
    int socket; /* -1: there is none */
    pid_t pid;
};

#define HELPER_NONE ((struct helper){.socket = -1})

/* Waits until it is told, then calls unmount(arg): what a process needs to do that,
 * it has. `quiet`: its standard streams go nowhere. */
errint_t unmounter_start(void (*unmount)(void *arg), void *arg, bool quiet, struct helper *helper);
/* Makes it unmount, or end without, and waits until it has. */
void unmounter_end(struct helper *helper, bool unmount);

/* `source` is a descriptor of the directory at `path`, which the opener renews by itself
 * (open_renew()). `shut` is what it calls to give up what it does not need. */
errint_t opener_start(int source, const char *path, void (*shut)(void *arg), void *arg, bool quiet,
                      struct helper *helper);
void opener_end(struct helper *helper);
/* For open_set_other(). The path is taken to be relative to the source. */
int opener_open(int directory, const char *path, int flags);
/* How many files and directories it has opened, so that status shows whether links
 * lead out of the source. */
uint64_t opener_opened(void);

#endif
