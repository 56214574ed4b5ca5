/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/permission.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

struct access
access_from_stat(const struct stat *st)
{
    return (struct access){st->st_uid, st->st_gid, st->st_mode & 0555};
}

bool
access_equal(struct access a, struct access b)
{
    return a.owner == b.owner && a.group == b.group && a.mode == b.mode;
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
    /* Somebody of a's class may be in any class of b, but for what is said of both:
     * who owns both is of no other class, and who does not own a does not own b. */
    mode_t not_owner = a.owner == b.owner ? 7 : owner;
    mode_t for_owner = a.owner == b.owner ? owner : group & others;
    mode_t for_group = not_owner & (a.group == b.group ? group : group & others);
    mode_t for_others = not_owner & (a.group == b.group ? others : group & others);

    a.mode &= (for_owner << 6) | (for_group << 3) | for_others;
    return a;
}

/* ---- lists of access (acl(5)), as the kernel hands them out ---- */

enum { ACL_VERSION = 2 };
enum { ACL_USER = 0x02, ACL_GROUP_OBJ = 0x04, ACL_GROUP = 0x08, ACL_MASK = 0x10, ACL_OTHER = 0x20 };

struct acl_entry {
    uint16_t tag, bits;
    uint32_t id;
};

struct acl {
    uint32_t version;
    struct acl_entry entries[];
};

/*
 * Whoever a list names may be in the owning group or not, so that nobody gets more
 * by the mode than by the list, each class keeps what all of those have who may be in
 * it. A named group takes nothing from the owning one: who is in both has the rights
 * of both.
 */
static mode_t
weigh(mode_t mode, const struct acl *acl, size_t count)
{
    mode_t mask = 7, group = 7, users = 7, groups = 7, others = 7;
    bool named = false;

    for (size_t i = 0; i < count; i++) {
        mode_t bits = le16toh(acl->entries[i].bits) & 7;

        switch (le16toh(acl->entries[i].tag)) {
        case ACL_USER:
            users &= bits;
            named = true;
            break;
        case ACL_GROUP_OBJ:
            group = bits;
            break;
        case ACL_GROUP:
            groups &= bits;
            named = true;
            break;
        case ACL_MASK:
            mask = bits;
            break;
        case ACL_OTHER:
            others = bits;
            break;
        default: /* the owner's, which is in the mode too */
            break;
        }
    }
    group &= mask & users;
    if (named) /* the mask is not for others that are nobody else */
        others &= mask & users & groups;
    return mode & (0700 | group << 3 | others);
}

struct access
access_weigh_acl(struct access access, const char *path)
{
    union {
        struct acl acl;
        char bytes[XATTR_SIZE_MAX];
    } list;
    ssize_t length;

    if (!(access.mode & 0077))
        return access;
    length = getxattr(path, "system.posix_acl_access", &list, sizeof(list));
    if (length < 0) {
        /* It has none, or its file system knows none; else it could not be asked. */
        if (errno != ENODATA && errno != EOPNOTSUPP)
            access.mode &= 0700;
        return access;
    }
    if ((size_t)length < sizeof(list.acl) || le32toh(list.acl.version) != ACL_VERSION)
        access.mode &= 0700;
    else
        access.mode = weigh(access.mode, &list.acl,
                            ((size_t)length - sizeof(list.acl)) / sizeof(list.acl.entries[0]));
    return access;
}

struct access
access_of_open(const struct stat *st, int fd)
{
    char link[40];

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    return access_weigh_acl(access_from_stat(st), link);
}

/* ---- links ---- */

/* The search bits of a directory, spread to reading and searching alike. */
static struct access
search_access(const struct stat *st, const char *path)
{
    struct access weighed = access_weigh_acl(access_from_stat(st), path);
    struct access access = {st->st_uid, st->st_gid, 0};

    for (int shift = 0; shift <= 6; shift += 3)
        if (class_bits(weighed.mode, shift) & 1)
            access.mode |= (mode_t)7 << shift;
    return access;
}

/* The path of what is open, with its end; 0: not known. */
static size_t
path_of(int fd, char path[PATH_MAX])
{
    char link[40];
    ssize_t length;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0)
        return 0;
    path[length] = '\0';
    return (size_t)length;
}

/* Whether `inside` lies below the directory of this path and length, or is it. */
static bool
lies_below(const char *inside, const char *directory, size_t length)
{
    return strncmp(inside, directory, length) == 0 &&
           (inside[length] == '/' || inside[length] == '\0');
}

struct access
access_by_way(struct access access, int fd, int root, const char *asked)
{
    char path[PATH_MAX], root_path[PATH_MAX];
    size_t length = path_of(fd, path), root_length = path_of(root, root_path), start = 0;
    struct stat st;

    if (length && root_length) {
        root_length -= root_path[root_length - 1] == '/'; /* it is "/" */
        if (lies_below(path, root_path, root_length)) {
            start = root_length;
            /* Where it lies is where it was asked for: no link was on the way. */
            if (strcmp(path + start + (path[start] == '/'), asked) == 0)
                return access;
        }
    }
    if (length == 0 || path[0] != '/') {
        access.mode = 0; /* where it lies is not known: show it to nobody */
        return access;
    }
    for (size_t i = start + 1; i < length; i++) {
        if (path[i] != '/')
            continue;
        path[i] = '\0';
        if (lstat(path, &st) < 0)
            access.mode = 0;
        else
            access = access_meet(access, search_access(&st, path));
        path[i] = '/';
    }
    return access;
}
