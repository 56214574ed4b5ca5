/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/run_delay.h"

#include "base/clock.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* run_delay_restart() measures at most once in this time. */
#define RESTART_NS UINT64_C(1000000)

static int tasks = -1; /* /proc/self/task; constant once opened */
static _Thread_local uint64_t measured; /* monotonic_ns() of the thread's last measurement */

int
run_delay_open(void)
{
    tasks = open("/proc/self/task", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return tasks;
}

uint64_t
run_delay_increase(void)
{
    static _Thread_local unsigned long long last;
    unsigned long long delay, before = last;
    char path[32], text[96];
    ssize_t length;
    int fd;

    measured = monotonic_ns();
    snprintf(path, sizeof(path), "%ld/schedstat", (long)syscall(SYS_gettid));
    fd = tasks >= 0 ? openat(tasks, path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return 0;
    length = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[length > 0 ? length : 0] = '\0';
    /* The fields: nanoseconds on a processor, nanoseconds waiting for one, number of time slices.
     */
    if (sscanf(text, "%*u %llu", &delay) != 1)
        return 0;
    last = delay;
    return delay - before;
}

void
run_delay_restart(void)
{
    if (monotonic_ns() - measured >= RESTART_NS)
        run_delay_increase();
}
