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

static size_t most; /* 0: no limit */

/* Reads the variable at load time, because the daemon erases its environment. */
static void __attribute__((constructor)) begin(void)
{
    const char *limit = getenv("SHORT_READS");

    most = limit ? strtoul(limit, NULL, 10) : 0;
}

ssize_t
preadv2(int fd, const struct iovec *vectors, int count, off_t offset, int flags)
{
    struct iovec vector = vectors[0];

    if (most && count == 1 && vector.iov_len > most)
        vector.iov_len = most;
    /* The upper half of the offset is a separate argument, which 64-bit kernels ignore. */
    return syscall(SYS_preadv2, fd, count == 1 ? &vector : vectors, count, offset, 0L, flags);
}
