/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/device.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysmacros.h>

/* Whether a path as mountinfo writes it (space, tab, newline and backslash as
 * \ooo) is `path`. */
static bool
is_path(const char *escaped, const char *path)
{
    for (; *escaped && *path; path++) {
        unsigned c = (unsigned char)*escaped;

        if (c == '\\' && sscanf(escaped + 1, "%3o", &c) == 1)
            escaped += 4;
        else
            escaped++;
        if (c != (unsigned char)*path)
            return false;
    }
    return !*escaped && !*path;
}

errint_t
mount_device(const char *mountpoint, dev_t *device)
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    errint_t error = -ENOENT;
    char *line = NULL;
    size_t size = 0;

    if (!mounts)
        return -errno;
    while (getline(&line, &size, mounts) > 0) {
        unsigned major, minor;
        char *path = NULL;

        /* id parent major:minor root mountpoint ...: proc(5) */
        if (sscanf(line, "%*s %*s %u:%u %*s %ms", &major, &minor, &path) == 3 &&
            is_path(path, mountpoint)) {
            *device = makedev(major, minor);
            error = 0;
        }
        free(path);
    }
    free(line);
    fclose(mounts);
    return error;
}
