/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions: whether the bytes of a backing file are those of one version.
 *
 * A version (struct backing) is opened before its first byte is read and closed when it is
 * not needed for now; after each read it is verified. How sure that is depends on the file:
 *
 * leases, exact times (ext4, XFS, btrfs, f2fs; the daemon owns the file or has CAP_LEASE):
 *     A version begins when nobody has the file open for writing, and its change time is old
 *     enough that each later write moves it. Time stamps then tell of every write. While a
 *     lease is held nobody writes, so a change time that moves (chmod, link, rename) is
 *     harmless.
 * leases, inexact times (tmpfs: a write to a mapping may leave them alone):
 *     The same, and a version ends with its lease.
 * no leases:
 *     A version begins when its change time is old enough. Who is in the middle of a write then
 *     is not seen. So what was changed less than VERSION_YOUNG_SECONDS ago is not kept from
 *     one open to the next, and is replaced by a new version after that time.
 */
#ifndef FSTFS_BASE_VERSION_H
#define FSTFS_BASE_VERSION_H

#include "base/error.h"
#include "base/extent.h"

enum { VERSION_YOUNG_SECONDS = 30 };

/* Starts the use of leases, see lease_start(); without it there are none. */
errint_t version_start(unsigned most_leases);
void version_stop(void);

/*
 * Begins to use a version. `fd`: open on the file, or -1. -ESTALE: the file is another version
 * (the backing is then marked stale); -ETXTBSY: someone has it open for writing, and it cannot
 * be told whether he writes; others: it could not be opened. May wait for storage, and until
 * its time stamps are old enough.
 */
errint_t version_open(struct backing *backing, int fd);
void version_close(struct backing *backing);

/* After a read by `fd`: 0 when the bytes are of this version, else -ESTALE, and the backing is
 * marked stale; or what stat said. */
errint_t version_verify(struct backing *backing, int fd);

/* Whether no new version is to be made though the file looks the same. */
bool version_is_current(const struct backing *backing);

/* The same for all backings of a list, each as often as it has runs. */
errint_t version_open_list(const struct extent_list *list);
void version_close_list(const struct extent_list *list);
/* Whether what was read of the list may be given to those who open it later. */
bool version_list_is_kept(const struct extent_list *list);

#endif
