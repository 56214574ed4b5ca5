/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/abort.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static bool
abort_by_fusectl(dev_t device)
{
    char path[64];
    bool aborted;
    int fd;

    snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/abort", minor(device));
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    aborted = write(fd, "1", 1) == 1;
    close(fd);
    return aborted;
}

/* Without asking the daemon. */
static bool
is_of_device(int fd, dev_t device)
{
    struct statx found;

    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &found) == 0 &&
           makedev(found.stx_dev_major, found.stx_dev_minor) == device;
}

void
connection_abort(const char *mountpoint, dev_t device)
{
    /* Open, it keeps umount2() from unmounting what it has aborted. */
    int fd = open(mountpoint, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return;
    if (is_of_device(fd, device) && !abort_by_fusectl(device))
        umount2(mountpoint, MNT_FORCE | UMOUNT_NOFOLLOW);
    close(fd);
}
