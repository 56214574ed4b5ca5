/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system calls that serving needs, as a seccomp filter. SECURITY.md lists them with
 * the reason for each; tests/mount/test_sandbox.py compares that list with this one.
 */
#ifndef FSTFS_FUSE_SYSTEM_CALLS_H
#define FSTFS_FUSE_SYSTEM_CALLS_H

#include "base/error.h"

#include <stdbool.h>

/* Restricts all threads of this process to the calls of the list, for good. `devices`: also to
 * FUSE's ioctls for passthrough; `credentials`: also to those that the opener needs to take on
 * the credentials of callers. -ENOTSUP: there is no list for this kind of machine;
 * -EBUSY: a thread has a filter of its own. */
errint_t system_calls_restrict(bool devices, bool credentials);

#endif
