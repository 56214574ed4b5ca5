/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read leases on backing files (F_SETLEASE, fcntl(2)).
 *
 * A read lease is refused while anyone has the file open for writing or mapped shared and
 * writable. While it is held, nobody can start to write: the kernel makes who opens the
 * file for writing wait until the lease is given up, which a thread of this module does
 * at once, whatever the rest of the process waits for. Leases need the owner's rights or
 * CAP_LEASE, and a local file system.
 *
 * A lease costs a descriptor. It is kept for a few seconds after its last user, and
 * given up before that when others need the room. Any thread may call anything here.
 */
#ifndef FSTFS_BASE_LEASE_H
#define FSTFS_BASE_LEASE_H

#include "base/error.h"
#include "base/extent.h"

#include <stdbool.h>
#include <stdint.h>

/* How a lease ended. */
enum lease_end {
    LEASE_BROKEN, /* someone is about to open the file for writing, or to truncate it */
    LEASE_IDLE /* nobody has used it for some time */
};

/* Called when a lease ends, before any writer gets in, with the lock of this module held;
 * must not block. `fd` is open on the file. */
typedef void (*lease_ended)(struct backing *backing, int fd, enum lease_end how);

/* Starts the threads. Must be called before any other thread is made: the signals of
 * leases are blocked in all of them. `most`: leases held at once; 0: a share of
 * RLIMIT_NOFILE. Until then, and without it, lease_take() refuses. */
errint_t lease_start(unsigned most, lease_ended ended);
/* Gives up every lease and stops the threads. */
void lease_stop(void);

/* Counts one more user of the backing, whether or not there is a lease: while it has users its
 * lease is not idle. True: the lease is held. */
bool lease_use(struct backing *backing);
void lease_release(struct backing *backing);

/*
 * Takes a lease for the backing by a duplicate of `fd`, a descriptor open for reading; *kept is
 * false where there is no room for one, and it was given up again. On 0 nobody had the file
 * open for writing at the time. -EAGAIN: somebody has. Other errors: there are no leases for
 * this file.
 */
errint_t lease_take(struct backing *backing, int fd, bool *kept);

/* To be called when the file was found to be the backing's version while a lease that
 * lease_take() kept is held. Until then the lease proves nothing. */
void lease_confirm(struct backing *backing);

/* Whether a confirmed lease is held and has been since then: nobody has written. Where it is
 * about to be broken it ends here. */
bool lease_holds(struct backing *backing);

struct lease_counters {
    unsigned held, most; /* now, with those whose descriptor is still to be closed; at most */
    uint64_t broken; /* ended since a writer came */
    uint64_t refused; /* files for which there was none; not because of a writer */
    errint_t refusal; /* why the last of them; 0: none was refused */
};

void lease_counters(struct lease_counters *counters);

#endif
