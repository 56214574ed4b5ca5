/* SPDX-License-Identifier: Apache-2.0 */
#include "base/close.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436 /* Linux 5.9, the same on all machines */
#endif

/* For kernels and seccomp filters that do not support close_range(2). */
static void
close_each_between(int first, int last)
{
    DIR *stream = opendir("/proc/self/fd");
    struct dirent *entry;

    if (!stream)
        return;
    while ((entry = readdir(stream))) {
        int fd = atoi(entry->d_name); /* "." and "..": 0 */

        if (entry->d_name[0] != '.' && fd >= first && fd <= last && fd != dirfd(stream))
            close(fd);
    }
    closedir(stream);
}

void
close_between(int first, int last)
{
    if (first <= last && syscall(SYS_close_range, (unsigned)first, (unsigned)last, 0) < 0)
        close_each_between(first, last);
}

errint_t
close_inherited(void)
{
    int null = open("/dev/null", O_RDWR), error = errno;

    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        bool is_closed = fcntl(fd, F_GETFD) < 0;

        if (null < 0 && is_closed)
            return -error;
        if (null >= 0 && (is_closed || fd != STDERR_FILENO) && dup2(null, fd) < 0)
            return -errno;
    }
    close_between(STDERR_FILENO + 1, INT_MAX);
    return 0;
}

void
descriptor_limit_raise(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}
