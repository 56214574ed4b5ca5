/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small processes that keep what the daemon gives up once it has mounted (sandbox.h).
 * They are forked after the mount and before any thread, hold neither the connection
 * to the kernel nor bytes of a model, and end with the daemon. This file has what they
 * share, the unmounter and the logger; opener.h has the third.
 *
 * The unmounter may unmount this one mount and abort its connection, and does nothing else. It
 * aborts it, too, where the daemon was killed and threads of it wait on storage: they keep the
 * connection open, and with it every caller waiting.
 */
#ifndef FSTFS_FUSE_HELPERS_H
#define FSTFS_FUSE_HELPERS_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

/* A process beside this one. */
struct helper {
    int socket; /* -1: there is none */
    pid_t pid;
    pthread_mutex_t *life; /* held by its first thread; NULL: there is none */
};

#define HELPER_NONE ((struct helper){.socket = -1})

/* As fork(2), with a socket between the two: helper->pid is 0 in the new process, and
 * helper->socket is its end. */
errint_t helper_fork(struct helper *helper);
/* In the new process, on its first thread: names it and ignores signals that are meant for the
 * daemon. `quiet`: its standard streams go nowhere. */
void helper_begin(const struct helper *helper, const char *name, bool quiet);
/* In the daemon, when its socket has been closed. */
void helper_forget(struct helper *helper);
/* Whether it has died, although threads of it may wait on storage and keep its socket open. On
 * one thread at a time. */
bool helper_has_died(const struct helper *helper);
/* In the new process: leaves nothing open but the standard streams, `a` and `b` (-1: none).
 * Above all not the mount's connection, which lives as long as it is open anywhere. */
void helper_close_all_but(int a, int b);

/* Waits until it is told, then calls unmount(arg), or abort(arg) and then unmount(arg): what a
 * process needs to do that, it has. `quiet`: its standard streams go nowhere. To be called on
 * the thread that lives as long as the daemon. */
errint_t unmounter_start(void (*unmount)(void *arg), void (*abort)(void *arg), void *arg,
                         bool quiet, struct helper *helper);
/* Makes it unmount, or end without, and waits until it has. False: it was to unmount and had
 * ended before, and the log says so. */
bool unmounter_end(struct helper *helper, bool unmount);
/* Makes it abort and unmount, and waits a bounded time; for a process that ends then. */
void unmounter_force(const struct helper *helper);

/* Writes the log of a daemon in the background to syslog: log_to_socket(helper->socket). The
 * daemon may then do without the right to connect to a socket, and syslogd may restart. It
 * ends when the daemon does, after the last line. `give_up` is as for the opener. */
errint_t logger_start(void (*give_up)(void *arg), void *arg, struct helper *helper);

#endif
