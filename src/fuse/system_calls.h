/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seccomp filter, which allows the system calls that serving needs. SECURITY.md lists them with
 * reasons; tests/mount/test_sandbox.py compares the two lists.
 */
#ifndef FSTFS_FUSE_SYSTEM_CALLS_H
#define FSTFS_FUSE_SYSTEM_CALLS_H

#include "base/error.h"

#include <stdbool.h>

/* A sanitizer reads /proc, writes its report and stops the other threads to find leaks. Builds with
 * one allow that. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/*
 * Restricts all threads of this process permanently; any other call fails with ENOSYS. `devices`
 * also allows FUSE's ioctls for passthrough, `credentials` the calls that change the thread's
 * credentials. -ENOTSUP: not implemented for this architecture; -EBUSY: a thread has a filter of
 * its own.
 */
errint_t system_calls_restrict(bool devices, bool credentials);

#endif
