/* SPDX-License-Identifier: Apache-2.0 */
/*
 * short_reads: loaded before a program's libraries (LD_PRELOAD), gives it at most
 * SHORT_READS bytes by each preadv2(2) of one buffer. Storage may do so at any
 * time, and hardly any does; a FUSE file system cannot, for the kernel takes what
 * is short for the end of the file.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t
preadv2(int fd, const struct iovec *vectors, int count, off_t offset, int flags)
{
    const char *most = getenv("SHORT_READS");
    struct iovec vector = vectors[0];

    if (most && count == 1 && vector.iov_len > strtoul(most, NULL, 10))
        vector.iov_len = strtoul(most, NULL, 10);
    /* The offset's upper half stands in an argument of its own, and is no more
     * than the sign on a machine of 64 bits. */
    return syscall(SYS_preadv2, fd, count == 1 ? &vector : vectors, count, offset, 0L, flags);
}
