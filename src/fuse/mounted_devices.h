/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides from the type and options of a mount which users may access its file system. A FUSE file
 * system that was mounted without allow_other is private: the kernel permits only the user who
 * mounted it to access it (fuse_allow_current_process() in fs/fuse/dir.c). It compares the real,
 * effective and saved IDs, not the file system IDs, which are the only ones that a thread of the
 * opener assumes: if it assumed the others, too, the caller could kill it. So the opener applies
 * the rule itself: the kernel has admitted this process, so it is the user who mounted it.
 *
 * The table of mounts shows that user's number in the user namespace of the FUSE mount. In another
 * namespace than the initial one, the number may belong to somebody else.
 */
#ifndef FSTFS_FUSE_MOUNTED_DEVICES_H
#define FSTFS_FUSE_MOUNTED_DEVICES_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>

/* Opens the table of mounts. Must be called before the sandbox is entered, while there is one
 * thread. */
void mounted_devices_init(void);

/*
 * Whether a user with these IDs may access the file system that `fd` is on, whose device number is
 * `device`: 0 or -EACCES. A FUSE file system that is not in the table, because it was detached,
 * permits nobody. `by_modes`: access to its files is decided by their modes; another fstfs then
 * permits nobody, since its modes do not decide. Asks the file system only if its device is not in
 * the table. Any thread.
 */
errint_t mounted_devices_permit(int fd, dev_t device, uid_t uid, gid_t gid, bool by_modes);

/* For struct resolve_link_rules (base/resolve.h); any thread. No such link may lead into a private
 * file system, or into /proc, where permissions do not depend on modes alone. */
bool mounted_devices_permit_link(int fd, dev_t device);
/* The owner of a link or directory, for the same and for renewal_check_mounts(). A FUSE file system
 * of a user other than root can show any owners, so that user owns all of it; if the user is not
 * known, nobody does: (uid_t)-1. */
uid_t mounted_devices_owner(uid_t owner, int fd, dev_t device);

#endif
