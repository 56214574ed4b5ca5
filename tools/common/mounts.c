/* SPDX-License-Identifier: Apache-2.0 */
#include "common/mounts.h"

#include "base/mountinfo.h"

#include <stdio.h>
#include <string.h>

bool
mounts_find(const char *path, struct mount_entry *entry)
{
    FILE *table = mountinfo_open();
    struct mountinfo one;
    bool found = false;

    /* The last mount at a mount point hides the others. */
    while (table && mountinfo_next(table, &one)) {
        if (path_is_inside(path, one.mountpoint) &&
            (!found || strlen(one.mountpoint) >= strlen(entry->point))) {
            snprintf(entry->point, sizeof(entry->point), "%s", one.mountpoint);
            snprintf(entry->type, sizeof(entry->type), "%s", one.type);
            snprintf(entry->device, sizeof(entry->device), "%s", one.source);
            found = true;
        }
        mountinfo_free(&one);
    }
    if (table)
        fclose(table);
    return found;
}

bool
mounts_is_point(const char *point)
{
    struct mount_entry entry;

    return mounts_find(point, &entry) && strcmp(entry.point, point) == 0;
}
