/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions: this module ensures that the bytes of a backing are those of one version of the file.
 *
 * A version (struct backing) is opened before its first byte is read, closed when it is not in use,
 * and verified after each read. What this guarantees depends on the file:
 *
 * leases, exact times (ext4, XFS, btrfs, f2fs; the daemon owns the file or has CAP_LEASE):
 *     A version begins when no process has the file open for writing and its change time is so old
 *     that every later write changes it. From then on the time stamps reveal every write. While a
 *     lease is held, no process can write, so a new change time (chmod, link, rename) is harmless.
 * leases, inexact times (tmpfs, where a write to a mapping may not change them):
 *     The same, but a version ends with its lease, unless the lease was ended to make room for
 *     another.
 * no leases:
 *     A version begins when its change time is old enough. A write in progress at that time is not
 *     noticed. So content that changed less than VERSION_YOUNG_SECONDS ago is not cached across
 *     opens, and is replaced by a new version after that time.
 */
#ifndef FSTFS_BASE_VERSION_H
#define FSTFS_BASE_VERSION_H

#include "base/error.h"
#include "base/extent.h"

enum { VERSION_YOUNG_SECONDS = 30 };

/* Enables leases, see lease_start(). */
errint_t version_start(bool keeps_idle_leases);
void version_stop(void);
/* Call it in the child of fork(), if the parent had not called version_start(): see
 * lease_after_fork(). */
void version_after_fork(void);

/*
 * Begins to use a version. `fd`: a descriptor of the file, or -1. -ESTALE: the file is another
 * version, and the backing is now marked stale. -ETXTBSY: a process has the file open for writing,
 * and whether it writes is unknown. Other errors: the file could not be opened. May wait for
 * storage, and until the time stamps are old enough.
 */
errint_t version_open(struct backing *backing, int fd);
void version_close(struct backing *backing);

/* Call it after a read from `fd`. 0: the bytes are of this version. -ESTALE: they may not be, and
 * the backing is now marked stale. Other errors: of statx(2). */
errint_t version_verify(struct backing *backing, int fd);

/* False: a new version must begin even if the file looks unchanged. */
bool version_is_current(const struct backing *backing);

/* As version_open() and version_close(), for all backings of a list. After an error none of them is
 * open; `failed`, unless NULL, is set to the one that could not be opened. */
errint_t version_open_list(const struct extent_list *list, const struct backing **failed);
void version_close_list(const struct extent_list *list);
/* Whether cached content of the list may be used for later opens. */
bool version_list_is_kept(const struct extent_list *list);

#endif
