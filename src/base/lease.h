/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read leases on backing files (F_SETLEASE, fcntl(2)).
 *
 * A read lease is refused while the file is open for writing or mapped shared and writable. While
 * it is held, no process can start writing: an open for writing waits in the kernel until the lease
 * is released. A dedicated thread releases it at once, even if all other threads are blocked.
 * Leases need ownership of the file or CAP_LEASE, and a local file system.
 *
 * A lease occupies a descriptor. It is kept for some seconds after its last use, unless other files
 * need the descriptor. Any thread may call any function.
 */
#ifndef FSTFS_BASE_LEASE_H
#define FSTFS_BASE_LEASE_H

#include "base/error.h"
#include "base/extent.h"

#include <stdbool.h>
#include <stdint.h>

/* How a lease ended. */
enum lease_end {
    LEASE_BROKEN, /* a process opens the file for writing, or truncates it */
    LEASE_IDLE /* it was unused for some time */
};

/* Called when a confirmed lease ends because of a writer or because it was idle, but not when it
 * ends to make room for another, with its backing, or in lease_stop(). It runs before a writer can
 * open the file and with the lock of this module held, so it must not block. `fd` is open on the
 * file. */
typedef void (*lease_ended)(struct backing *backing, int fd, enum lease_end how);

/* Starts the threads. Call it before other threads are started: they inherit the signal mask, which
 * blocks the signals of leases. The number of leases is limited to a share of RLIMIT_NOFILE, as it
 * is now. `keeps_idle`: an idle lease is kept until there is no room for another one or a writer
 * breaks it. lease_take() fails unless this was called. */
errint_t lease_start(bool keeps_idle, lease_ended ended);
/* Releases all leases and stops the threads. */
void lease_stop(void);
/* Call it in the child of fork(), if the parent had not called lease_start(): reinitializes the
 * lock, which another thread of the parent may have held. */
void lease_after_fork(void);

/* Counts one more user of the backing, with or without a lease: a lease with users is not idle.
 * Returns whether a confirmed lease is held. */
bool lease_use(struct backing *backing);
void lease_release(struct backing *backing);

/*
 * Takes a lease for the backing on a duplicate of `fd`, a descriptor open for reading. 0: no
 * process had the file open for writing at that time; the lease is not kept if there is no room.
 * -EAGAIN: a process has it open for writing. Other errors: leases do not work on this file.
 */
errint_t lease_take(struct backing *backing, int fd);

/* Records that the file was verified to be the backing's version while its lease was held. A lease
 * that is not confirmed proves nothing. */
void lease_confirm(struct backing *backing);

/* Whether a confirmed lease is still held, so that no process has written to the file. Ends a lease
 * that the kernel is breaking. */
bool lease_holds(struct backing *backing);

struct lease_counters {
    unsigned held; /* now, including ended leases whose descriptor is still open */
    unsigned most; /* limit of `held` */
    uint64_t broken; /* because of a writer, since the start */
    uint64_t refused; /* for other reasons than a writer, since the start */
    errint_t refusal; /* the last of these errors; 0: none */
};

void lease_counters(struct lease_counters *counters);

#endif
