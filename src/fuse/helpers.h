/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper processes: they keep rights that the daemon drops once it has mounted (sandbox.h). They
 * are forked before any thread (the logger before the mount, the others after it), hold neither the
 * connection to the kernel nor model data, and end when their socket to the daemon closes. This
 * file has what they share, the unmounter and the logger; opener.h has the third.
 *
 * The unmounter can unmount this one mount and abort its connection, and does nothing else. It
 * also aborts the connection if the daemon was killed while some of its threads wait on storage:
 * they keep the connection open, and the callers waiting.
 */
#ifndef FSTFS_FUSE_HELPERS_H
#define FSTFS_FUSE_HELPERS_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

struct helper {
    int socket; /* -1: not started */
    pid_t pid;
    pthread_mutex_t *liveness; /* held by its first thread; NULL: helper_has_died() is false */
};

#define HELPER_NONE ((struct helper){.socket = -1})

/* What a helper does: called once in the new process, which ends when it returns. */
typedef void helper_main(int socket, void *arg);

/* Forks a helper and connects it by a socket (SOCK_SEQPACKET). The new process has no descriptors
 * but its end, `kept` (-1: none) and the standard streams, which are /dev/null if `quiet`, and
 * ignores the signals that end the daemon. */
errint_t helper_start(const char *name, bool quiet, int kept, helper_main *run, void *arg,
                      struct helper *helper);
/* Closes the socket, which ends the helper. */
void helper_close(struct helper *helper);
/* Whether the helper's first thread has ended. Its other threads may still wait on storage and keep
 * its socket open. Call this on one thread at a time. */
bool helper_has_died(const struct helper *helper);

/* Starts the process that unmounts. Call it on the thread that lives as long as the daemon.
 * `unmount` and `abort` are called in that process. */
errint_t unmounter_start(errint_t (*unmount)(void *arg), void (*abort)(void *arg), void *arg,
                         bool quiet, struct helper *helper);
/* Ends the unmounter, and waits a limited time for it. If `unmount` is true, it unmounts first.
 * Returns the error of unmounting; -EPIPE: it was to unmount and had died; -ETIMEDOUT: it has not
 * ended in time, because it is stopped or unmounting is slow, and unmounts when it can. */
errint_t unmounter_end(struct helper *helper, bool unmount);
/* Makes it abort the connection and unmount, and waits as above. For a process that exits next.
 * Errors as above. */
errint_t unmounter_force(const struct helper *helper);

/* Starts the process that writes the daemon's log lines to syslog: log_to_socket(helper->socket).
 * It reconnects to a restarted syslogd, and ends after the daemon's last line. `drop` is called in
 * it to drop rights. */
errint_t logger_start(void (*drop)(void *arg), void *arg, struct helper *helper);

#endif
