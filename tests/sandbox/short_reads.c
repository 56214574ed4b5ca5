/* SPDX-License-Identifier: Apache-2.0 */
/*
 * short_reads: loaded before a program's libraries (LD_PRELOAD), limits each preadv2(2) of one
 * buffer to SHORT_READS bytes. Any storage may return short reads, but hardly any does; a FUSE file
 * system cannot, because the kernel treats a short read as the end of the file.
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
    /* The upper half of the offset is a separate argument, which 64-bit kernels ignore. */
    return syscall(SYS_preadv2, fd, count == 1 ? &vector : vectors, count, offset, 0L, flags);
}
