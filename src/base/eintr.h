/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repeats calls to storage that fail with EINTR, for which there are two causes. A signal to a
 * program that uses libfstfs may interrupt a call a few times. A server may answer EINTR itself,
 * for as long as it has a fault, and then the call must end.
 */
#ifndef FSTFS_BASE_EINTR_H
#define FSTFS_BASE_EINTR_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>

enum { EINTR_REPEATS_MOST = 20 };

/* Call it after a system call has failed, before errno changes. Returns whether to repeat the
 * system call. *repeats is 0 before the first one. After EINTR_REPEATS_MOST repeats, returns false
 * and sets errno to EIO, since callers would take EINTR for a signal. Any thread. */
static inline bool
eintr_repeat(unsigned *repeats)
{
    if (errno != EINTR)
        return false;
    if (*repeats == EINTR_REPEATS_MOST) {
        errno = EIO;
        return false;
    }
    ++*repeats;
    return true;
}

/* As openat(2), repeated as above, but returns a descriptor or a negative errno. Any thread. */
static inline int
eintr_openat(int directory, const char *path, int flags)
{
    unsigned repeats = 0;
    int fd;

    do
        fd = openat(directory, path, flags);
    while (fd < 0 && eintr_repeat(&repeats));
    return fd < 0 ? -errno : fd;
}

#endif
