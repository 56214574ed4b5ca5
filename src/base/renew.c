/* SPDX-License-Identifier: Apache-2.0 */
#include "base/renew.h"

#include "base/overflow_ids.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether any path leads to the directory of `fd`. True if /proc is not mounted. */
static bool
is_reachable(int fd)
{
    char link[sizeof("/proc/self/fd/") + 3 * sizeof(int)], path[PATH_MAX];
    struct stat held, found;
    ssize_t length;

    if (fstat(fd, &held) < 0)
        return false;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof(path));
    if (length < 0 || (size_t)length == sizeof(path))
        return true;
    path[length] = '\0';
    return stat(path, &found) == 0 && found.st_dev == held.st_dev && found.st_ino == held.st_ino;
}

/* ---- walking along the path ---- */

/* Opens the next directory of *path, and advances *path. Opens with O_PATH, which Landlock allows
 * everywhere. */
static int
open_next(int above, const char **path)
{
    size_t length = strcspn(*path, "/");
    char name[NAME_MAX + 1];
    int fd;

    if (length > NAME_MAX)
        return -ENAMETOOLONG;
    memcpy(name, *path, length);
    name[length] = '\0';
    *path += length;
    *path += strspn(*path, "/");
    fd = openat(above, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static uid_t (*user_of_mount)(uid_t owner, int fd, dev_t device); /* constant once set */

void
renewal_check_mounts(uid_t (*user)(uid_t owner, int fd, dev_t device))
{
    user_of_mount = user;
}

static bool
is_trusted(uid_t user)
{
    return user == 0 || is_same_user(user, geteuid());
}

/* Whether only root and the user of this process can put another user's directory into this one. */
static bool
is_trusted_holder(const struct file_identity *holder)
{
    return is_trusted(holder->owner) &&
           (!(holder->mode & (S_IWGRP | S_IWOTH)) || (holder->mode & S_ISVTX));
}

/* Whether it is the root of a mount that was not there at first. */
static bool
is_root_of_new_mount(const struct file_identity *directory, const struct file_identity *holder,
                     const struct file_identity *first)
{
    if (directory->mount == 0) /* not known */
        return directory->device != holder->device && directory->device != first->device;
    return directory->mount != holder->mount && directory->mount != first->mount;
}

/* Whether it is the directory that it was at first. With another mount, the file system may have
 * another device. The owner differs if the inode number is reused for another user's directory. */
static bool
is_original(const struct file_identity *directory, const struct file_identity *first)
{
    return directory->inode == first->inode && directory->owner == first->owner &&
           (directory->device == first->device || directory->mount != first->mount);
}

/* -EPERM: the directory is refused. `first`: what was there at first. */
static errint_t
check_above(const struct file_identity *first, int holder_fd, int fd)
{
    struct file_identity holder, directory;
    errint_t error = file_identity_from_fd(&holder, holder_fd);
    bool accepted;

    if (!error)
        error = file_identity_from_fd(&directory, fd);
    if (error)
        return error;
    if (is_root_of_new_mount(&directory, &holder, first))
        accepted = !user_of_mount || is_trusted(user_of_mount(0, fd, directory.device));
    else
        accepted = is_original(&directory, first) || is_trusted_holder(&holder);
    return accepted ? 0 : -EPERM;
}

/* Opens the directory at the path. Checks the directories above it, or records them. */
static int
open_path(const struct renewal_path *renewal, bool records)
{
    const char *rest = renewal->path + strspn(renewal->path, "/");
    int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), holder;
    errint_t error = fd < 0 ? -errno : 0;

    for (size_t i = 0; *rest && !error; i++) {
        holder = fd;
        fd = open_next(holder, &rest);
        if (fd < 0)
            error = fd;
        else if (*rest && records)
            error = file_identity_from_fd(&renewal->above[i], fd);
        else if (*rest)
            error = check_above(&renewal->above[i], holder, fd);
        close(holder);
        if (error && fd >= 0)
            close(fd);
    }
    return error ? error : fd;
}

/* ---- the interface ---- */

errint_t
renewal_path_init(struct renewal_path *renewal, const char *path)
{
    int fd;

    renewal->path = strdup(path);
    renewal->above = calloc(strlen(path) / 2 + 1, sizeof(*renewal->above));
    fd = renewal->path && renewal->above ? open_path(renewal, true) : -ENOMEM;
    if (fd < 0) {
        renewal_path_free(renewal);
        return fd;
    }
    close(fd);
    return 0;
}

void
renewal_path_free(struct renewal_path *renewal)
{
    free(renewal->path);
    free(renewal->above);
    *renewal = (struct renewal_path){0};
}

enum renewal
renewal_renew(const struct renewal_path *renewal, int directory)
{
    enum renewal result;
    int fd;

    if (is_reachable(directory))
        return RENEWAL_NONE;
    fd = open_path(renewal, false);
    if (fd < 0)
        return fd == -EPERM ? RENEWAL_REFUSED : RENEWAL_NONE;
    result = dup3(fd, directory, O_CLOEXEC) >= 0 ? RENEWAL_DONE : RENEWAL_NONE;
    close(fd);
    return result;
}
