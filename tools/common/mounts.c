/* SPDX-License-Identifier: Apache-2.0 */
#include "common/mounts.h"

#include <string.h>

bool
mounts_find(const char *path, struct mountinfo *mount)
{
    FILE *table = mountinfo_open();
    struct mountinfo one;

    *mount = (struct mountinfo){0};
    /* The last mount at a mount point hides the others. */
    while (table && mountinfo_next(table, &one)) {
        if (path_is_inside(path, one.mountpoint) &&
            (!mount->mountpoint || strlen(one.mountpoint) >= strlen(mount->mountpoint))) {
            mountinfo_free(mount);
            *mount = one;
        } else {
            mountinfo_free(&one);
        }
    }
    if (table)
        fclose(table);
    return mount->mountpoint != NULL;
}

bool
mounts_is_point(const char *point)
{
    struct mountinfo mount;
    bool is_point = mounts_find(point, &mount) && strcmp(mount.mountpoint, point) == 0;

    mountinfo_free(&mount);
    return is_point;
}
