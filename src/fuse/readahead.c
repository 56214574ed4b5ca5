/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/readahead.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

errint_t
readahead_set(dev_t device, uint64_t bytes)
{
    char path[80], text[32];
    errint_t error = 0;
    int fd;

    snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(device),
             minor(device));
    snprintf(text, sizeof(text), "%" PRIu64 "\n", bytes / 1024);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (write(fd, text, strlen(text)) < 0)
        error = -errno;
    close(fd);
    return error;
}
