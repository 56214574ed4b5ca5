/* SPDX-License-Identifier: Apache-2.0 */
#include "common/mounts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Turns the \ooo of the kernel's tables back into bytes, where it stands. */
static void
unescape(char *text)
{
    char *out = text;

    for (const char *in = text; *in; out++) {
        if (in[0] == '\\' && in[1] >= '0' && in[1] <= '3' && in[2] && in[3]) {
            *out = (char)((in[1] & 7) << 6 | (in[2] & 7) << 3 | (in[3] & 7));
            in += 4;
        } else {
            *out = *in++;
        }
    }
    *out = '\0';
}

/* Takes a line of mountinfo apart (proc(5)). */
static bool
read_line(const char *line, struct mount_entry *entry)
{
    const char *rest = strstr(line, " - ");

    if (!rest || sscanf(line, "%*s %*s %*s %*s %4095s", entry->point) != 1 ||
        sscanf(rest + 3, "%63s %4095s", entry->type, entry->device) != 2)
        return false;
    unescape(entry->point);
    unescape(entry->device);
    return true;
}

bool
mounts_lies_in(const char *path, const char *directory)
{
    size_t length = strlen(directory);

    if (length == 1)
        return true; /* "/" */
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

bool
mounts_find(const char *path, struct mount_entry *entry)
{
    FILE *table = fopen("/proc/self/mountinfo", "re");
    struct mount_entry *one = malloc(sizeof(*one));
    char *line = NULL;
    size_t size = 0;
    bool found = false;

    /* Of mounts at one place the last covers the others. */
    while (table && one && getline(&line, &size, table) > 0) {
        if (!read_line(line, one) || !mounts_lies_in(path, one->point) ||
            (found && strlen(one->point) < strlen(entry->point)))
            continue;
        *entry = *one;
        found = true;
    }
    if (table)
        fclose(table);
    free(line);
    free(one);
    return found;
}

bool
mounts_is_point(const char *point)
{
    struct mount_entry entry;

    return mounts_find(point, &entry) && strcmp(entry.point, point) == 0;
}
