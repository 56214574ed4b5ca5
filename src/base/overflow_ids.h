/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overflow IDs: what system calls report for every user or group that a user namespace, or the
 * mount of a file, does not map (user_namespaces(7), "Unmapped user and group IDs"). Two files with
 * an overflow ID may belong to different users. A user namespace can also map the number itself, to
 * a user "nobody", so it may be a user's own ID.
 */
#ifndef FSTFS_BASE_OVERFLOW_IDS_H
#define FSTFS_BASE_OVERFLOW_IDS_H

#include <stdbool.h>
#include <sys/types.h>

/* Reads the settings kernel.overflowuid and kernel.overflowgid. Call it before other threads are
 * started, and before a sandbox is entered. */
void overflow_ids_init(void);

/* Whether the IDs are those of one user for certain. Any thread. */
bool is_same_user(uid_t a, uid_t b);
bool is_overflow_uid(uid_t id);
bool is_overflow_gid(gid_t id);

#endif
