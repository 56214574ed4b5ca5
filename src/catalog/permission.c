/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/permission.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct access
access_from_stat(const struct stat *st)
{
    return (struct access){st->st_uid, st->st_gid, st->st_mode & 0555};
}

static mode_t
class_bits(mode_t mode, int shift)
{
    return (mode >> shift) & 7;
}

struct access
access_meet(struct access a, struct access b)
{
    mode_t others = class_bits(b.mode, 0);
    mode_t group = class_bits(b.mode, 3);
    mode_t owner = class_bits(b.mode, 6);
    /* Somebody of a's class may be in any class of b, unless it is the same
     * person or group; then only the nearer classes of b can be theirs. */
    mode_t for_owner = a.owner == b.owner ? owner : group & others;
    mode_t for_group = a.group == b.group ? group : group & others;

    a.mode &= (for_owner << 6) | (for_group << 3) | others;
    return a;
}

/* The search bits of a directory, spread to reading and searching alike. */
static struct access
search_access(const struct stat *st)
{
    struct access access = {st->st_uid, st->st_gid, 0};

    for (int shift = 0; shift <= 6; shift += 3)
        if (class_bits(st->st_mode, shift) & 1)
            access.mode |= (mode_t)7 << shift;
    return access;
}

struct access
access_through_link(struct access access, int fd, const char *root_path)
{
    char link[40], path[PATH_MAX];
    size_t root_length = strlen(root_path), start = 0;
    struct stat st;
    ssize_t length;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof(path) - 1);
    if (length <= 0 || path[0] != '/') {
        access.mode = 0; /* where it lies is not known: show it to nobody */
        return access;
    }
    path[length] = '\0';
    if (strncmp(path, root_path, root_length) == 0 &&
        (path[root_length] == '/' || path[root_length] == '\0'))
        start = root_length;
    for (size_t i = start + 1; i < (size_t)length; i++) {
        if (path[i] != '/')
            continue;
        path[i] = '\0';
        if (lstat(path, &st) < 0)
            access.mode = 0;
        else
            access = access_meet(access, search_access(&st));
        path[i] = '/';
    }
    return access;
}
