/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/mount_table.h"

#include "base/array.h"
#include "base/mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Finds the last mount on `path` (NULL: any) with this ID (-1: any). */
static errint_t
mount_entry_find(const char *path, int id, struct mountinfo *found)
{
    FILE *mounts = mountinfo_open();
    struct mountinfo entry;
    errint_t error = -ENOENT;

    if (!mounts)
        return -errno;
    *found = (struct mountinfo){0};
    while (mountinfo_next(mounts, &entry)) {
        if ((path && strcmp(entry.mountpoint, path) != 0) || (id >= 0 && id != entry.id)) {
            mountinfo_free(&entry);
            continue;
        }
        mountinfo_free(found);
        *found = entry;
        error = 0;
    }
    fclose(mounts);
    return error;
}

/* Returns the ID of the mount that an open file is on. */
static errint_t
mount_id_of_fd(int fd, int *id)
{
    char name[sizeof("/proc/self/fdinfo/") + 3 * sizeof(int)];
    errint_t error = -ENODATA;
    char *line = NULL;
    size_t size = 0;
    FILE *info;

    snprintf(name, sizeof(name), "/proc/self/fdinfo/%d", fd);
    info = fopen(name, "re");
    if (!info)
        error = -errno;
    while (info && error && getline(&line, &size, info) > 0)
        error = sscanf(line, "mnt_id: %d", id) == 1 ? 0 : error;
    free(line);
    if (info)
        fclose(info);
    return error;
}

/* Returns the ID of the mount that a path leads to. With O_PATH, the file system whose root is at
 * `path` is not accessed. */
static errint_t
mount_id_of_path(const char *path, int *id)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    errint_t error;

    if (fd < 0)
        return -errno;
    error = mount_id_of_fd(fd, id);
    close(fd);
    return error;
}

errint_t
mount_identify(const char *mountpoint, struct mount_identity *mount)
{
    struct mountinfo entry = {0};
    errint_t error = mount_entry_find(mountpoint, -1, &entry);

    if (error == -ENOENT)
        *mount = (struct mount_identity){.id = -1};
    if (error)
        return error;
    *mount = (struct mount_identity){entry.id, makedev(entry.major, entry.minor)};
    mountinfo_free(&entry);
    return 0;
}

/* Returns a descriptor (O_PATH) of the root of a mount; -1: the path does not lead to it. */
static int
open_mount_root(const char *path, int mount)
{
    int fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), id;

    if (fd >= 0 && (mount_id_of_fd(fd, &id) != 0 || id != mount)) {
        close(fd);
        return -1;
    }
    return fd;
}

errint_t
mount_locate(const struct mount_identity *mount, struct mount_place *place)
{
    struct mountinfo entry;
    FILE *mounts;

    *place = (struct mount_place){.fd = -1};
    if (mount->device == 0)
        return mount->id < 0 ? -ENOENT : -ENODATA;
    mounts = mountinfo_open();
    if (!mounts)
        return -ENODATA;
    while (mountinfo_next(mounts, &entry)) {
        place->has_mounts |= entry.parent == mount->id && entry.id != mount->id;
        if (entry.id == mount->id && makedev(entry.major, entry.minor) == mount->device) {
            free(place->path);
            place->path = entry.mountpoint;
            entry.mountpoint = NULL;
        }
        mountinfo_free(&entry);
    }
    fclose(mounts);
    if (!place->path)
        return -ENOENT;
    place->fd = open_mount_root(place->path, mount->id);
    return 0;
}

void
mount_place_free(struct mount_place *place)
{
    free(place->path);
    if (place->fd >= 0)
        close(place->fd);
}

errint_t
mount_find_fuse(const char *path, struct fuse_mount *found)
{
    struct mountinfo entry = {0};
    int id = -1;
    errint_t error = mount_id_of_path(path, &id);

    *found = (struct fuse_mount){0};
    if (!error)
        error = mount_entry_find(NULL, id, &entry);
    if (error)
        return error == -ENOENT ? 0 : error;
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): set if there is no error */
    if (strcmp(entry.type, "fuse") == 0 || strncmp(entry.type, "fuse.", 5) == 0) {
        mountinfo_fuse_owner(&entry, &found->owner);
        found->mountpoint = entry.mountpoint;
        entry.mountpoint = NULL;
    }
    mountinfo_free(&entry);
    return 0;
}

/* The mounts of fstfs, and which of them can be reached from a directory. */
struct reached_mounts {
    struct mountinfo *all;
    bool *is_reached;
    size_t count;
};

static void
reached_mounts_free(struct reached_mounts *mounts)
{
    for (size_t i = 0; i < mounts->count; i++)
        mountinfo_free(&mounts->all[i]);
    free(mounts->all);
    free(mounts->is_reached);
}

/* Reads the mounts of fstfs. */
static errint_t
reached_mounts_read(struct reached_mounts *mounts)
{
    FILE *list = mountinfo_open();
    struct mountinfo entry;
    errint_t error = 0;

    *mounts = (struct reached_mounts){0};
    if (!list)
        return -errno;
    while (!error && mountinfo_next(list, &entry)) {
        bool is_fstfs = strcmp(entry.type, "fuse.fstfs") == 0;

        if (is_fstfs && array_add(mounts->all, mounts->count, entry))
            continue;
        mountinfo_free(&entry);
        error = is_fstfs ? -ENOMEM : 0;
    }
    fclose(list);
    mounts->is_reached = calloc(mounts->count + 1, sizeof(bool));
    return mounts->is_reached ? error : -ENOMEM;
}

/* Marks the mounts that can be reached from `directory`: those below it, those it is on, and those
 * reachable from their sources. */
/* NOLINTNEXTLINE(misc-no-recursion): at most once for each mount */
static void
mark_reached_mounts(struct reached_mounts *mounts, const char *directory)
{
    for (size_t i = 0; i < mounts->count; i++) {
        const struct mountinfo *entry = &mounts->all[i];

        if (mounts->is_reached[i] || (!path_is_inside(entry->mountpoint, directory) &&
                                      !path_is_inside(directory, entry->mountpoint)))
            continue;
        mounts->is_reached[i] = true;
        mark_reached_mounts(mounts, entry->source);
    }
}

errint_t
mount_find_loop(const char *source, const char *path, char **mountpoint, char **shown)
{
    struct reached_mounts mounts;
    errint_t error = reached_mounts_read(&mounts);

    *mountpoint = *shown = NULL;
    if (!error)
        mark_reached_mounts(&mounts, source);
    for (size_t i = 0; !error && !*shown && i < mounts.count; i++) {
        if (!mounts.is_reached[i] || !path_is_inside(path, mounts.all[i].source))
            continue;
        *mountpoint = mounts.all[i].mountpoint;
        *shown = mounts.all[i].source;
        mounts.all[i].mountpoint = mounts.all[i].source = NULL;
    }
    reached_mounts_free(&mounts);
    return error;
}
