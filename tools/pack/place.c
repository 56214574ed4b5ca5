/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory that has other files (a config, say) is replaced whole too: the new one
 * gets links to what is to stay, and the two are exchanged at once. So whoever looks
 * sees all of the old checkpoint or all of the new one.
 */
#include "place.h"

#include "catalog/catalog.h"
#include "common/find.h"
#include "common/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static errint_t
fail(struct reason *reason, errint_t error, const char *what)
{
    return reason_set(reason, error, "IoError", "%s: %s", what, strerror(-error));
}

/* Splits the path, and opens the directory it is in. */
static errint_t
open_parent(const char *path, struct place *place, struct reason *reason)
{
    char *copy = strdup(path), *other = strdup(path);
    errint_t error = 0;

    if (!copy || !other) {
        error = fail(reason, -ENOMEM, "no memory");
    } else {
        const char *name = basename(copy);

        place->parent = open(dirname(other), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (place->parent < 0)
            error = fail(reason, -errno, "the directory it is to be in");
        else if (snprintf(place->name, sizeof(place->name), "%s", name) > NAME_MAX)
            error = fail(reason, -ENAMETOOLONG, "its name");
        else if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "/") == 0)
            error = reason_set(reason, -EINVAL, "Output", "a name is wanted for it");
    }
    free(copy);
    free(other);
    return error;
}

/* ---- a directory that is there already ---- */

/* Whether the file belongs to a checkpoint of the stem. */
static bool
belongs(const struct listing *listing, const char *stem, const char *file)
{
    for (uint32_t i = 0; i < listing->group_count; i++) {
        const struct group *group = &listing->groups[i];

        if (strcmp(group->stem, stem) != 0)
            continue;
        if (group->index && strcmp(group->index, file) == 0)
            return true;
        for (uint32_t m = 0; m < group->member_count; m++)
            if (strcmp(group->members[m], file) == 0)
                return true;
    }
    return false;
}

struct old {
    struct catalog *catalog;
    struct source_dir *root;
    struct listing *listing;
};

static errint_t
old_open(const struct place *place, struct old *old, struct reason *reason)
{
    char path[64];
    const struct catalog_options options = {.source = path, .problems = {find_no_problem, NULL, 0}};
    errint_t error;

    *old = (struct old){0};
    snprintf(path, sizeof(path), "/proc/self/fd/%d", place->old);
    error = catalog_new(&options, &old->catalog);
    if (!error && !(old->root = catalog_root(old->catalog)))
        error = -ENOMEM;
    if (!error)
        error = source_dir_listing(old->root, &old->listing);
    return error ? fail(reason, error, "looking into it") : 0;
}

static void
old_close(struct old *old)
{
    listing_unref(old->listing);
    source_dir_unref(old->root);
    catalog_free(old->catalog);
}

static errint_t
check_old(const struct place *place, const char *stem, struct reason *reason)
{
    struct old old;
    errint_t error = old_open(place, &old, reason);

    if (!error && old.listing->directory_count > 0)
        error = reason_set(reason, -ENOTEMPTY, "Output",
                           "there are directories in it (%s), which cannot go along when it is "
                           "replaced; name a new directory",
                           old.listing->directories[0]);
    for (uint32_t i = 0; !error && !place->force && i < old.listing->group_count; i++)
        if (strcmp(old.listing->groups[i].stem, stem) == 0)
            error = reason_set(reason, -EEXIST, "Output",
                               "there is a checkpoint %s in it already; --force replaces it", stem);
    old_close(&old);
    return error;
}

/* Links into the new directory what stays of the old one. */
static errint_t
link_rest(const struct place *place, const char *stem, struct reason *reason)
{
    struct old old;
    errint_t error = old_open(place, &old, reason);
    int fd = error ? -1 : openat(place->old, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    if (!error && !stream)
        error = fail(reason, -errno, "looking into it");
    /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): 0 means that stream is set */
    while (!error && (errno = 0, entry = readdir(stream))) {
        const char *name = entry->d_name;

        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || belongs(old.listing, stem, name))
            continue;
        if (linkat(place->old, name, place->directory, name, 0) < 0)
            error = fail(reason, -errno, "keeping what else is in it");
    }
    /* What is not linked would go with the old directory. */
    if (!error && errno)
        error = fail(reason, -errno, "looking into it");
    if (stream)
        closedir(stream);
    else if (fd >= 0)
        close(fd);
    old_close(&old);
    return error;
}

/* ---- beginning ---- */

static errint_t
look_whether_empty(int directory, bool *empty)
{
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    errint_t error;

    if (!stream) {
        error = -errno;
        if (fd >= 0)
            close(fd);
        return error;
    }
    *empty = true;
    while (*empty && (errno = 0, entry = readdir(stream)))
        *empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    error = *empty ? -errno : 0; /* what cannot be read to its end may have more in it */
    closedir(stream);
    return error;
}

static errint_t
begin_file(struct place *place, struct reason *reason)
{
    struct stat st;

    if (fstatat(place->parent, place->name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (S_ISDIR(st.st_mode))
            return reason_set(reason, -EISDIR, "Output", "it is a directory");
        if (!place->force)
            return reason_set(reason, -EEXIST, "Output",
                              "it is there already; --force replaces it");
    }
    place->directory = place->parent;
    return 0;
}

static errint_t
begin_directory(struct place *place, const char *stem, struct reason *reason)
{
    struct stat st;
    int old = openat(place->parent, place->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    errint_t error = 0;
    bool empty = true;

    if (old < 0 && errno != ENOENT)
        return reason_set(reason, -errno, "Output",
                          "it is there already, and is no directory that can be replaced: %s",
                          strerror(errno));
    if (old >= 0)
        error = look_whether_empty(old, &empty);
    if (error)
        fail(reason, error, "looking into it");
    if (error || empty) {
        if (old >= 0)
            close(old);
    } else {
        place->old = old;
        error = check_old(place, stem, reason);
    }
    if (!error)
        error = output_make_directory(place->parent, place->name, place->temporary,
                                      &place->directory, reason);
    if (error) {
        place->temporary[0] = '\0';
        return error;
    }
    /* It is to be what the old one was, as far as this user may. */
    if (place->old >= 0 && fstat(place->old, &st) == 0 &&
        (fchown(place->directory, st.st_uid, st.st_gid) < 0 ||
         fchmod(place->directory, st.st_mode & 07777) < 0))
        return fail(reason, -errno, "giving it the owner and mode of the old one");
    return 0;
}

errint_t
place_begin(const char *path, const char *stem, bool force, struct place *place,
            struct reason *reason)
{
    errint_t error;

    *place = (struct place){
        .parent = -1, .directory = -1, .old = -1, .is_directory = stem != NULL, .force = force};
    error = open_parent(path, place, reason);
    if (error)
        return error;
    output_remove_stale(place->parent, place->name);
    return stem ? begin_directory(place, stem, reason) : begin_file(place, reason);
}

/* ---- ending ---- */

static errint_t
exchange(struct place *place, const char *stem, struct reason *reason)
{
    errint_t error = link_rest(place, stem, reason);

    if (!error)
        error = output_sync_directory(place->directory, reason);
    if (error)
        return error;
    if (renameat2(place->parent, place->temporary, place->parent, place->name, RENAME_EXCHANGE) < 0)
        return errno == EINVAL || errno == ENOSYS
                   ? reason_set(reason, -ENOTSUP, "Output",
                                "this file system cannot replace a directory at once; name a new "
                                "one")
                   : fail(reason, -errno, "replacing it");
    /* The temporary name is the old one's now, which place_end() removes. */
    return output_sync_directory(place->parent, reason);
}

static errint_t
name_directory(struct place *place, struct reason *reason)
{
    errint_t error = output_sync_directory(place->directory, reason);

    if (error)
        return error;
    if (renameat(place->parent, place->temporary, place->parent, place->name) < 0)
        return fail(reason, -errno, "giving it its name");
    place->temporary[0] = '\0';
    return output_sync_directory(place->parent, reason);
}

errint_t
place_finish(struct place *place, const char *stem, struct reason *reason)
{
    if (!place->is_directory)
        return output_sync_directory(place->parent, reason);
    return place->old >= 0 ? exchange(place, stem, reason) : name_directory(place, reason);
}

void
place_end(struct place *place)
{
    if (place->temporary[0])
        output_remove_directory(place->parent, place->temporary);
    if (place->is_directory && place->directory >= 0)
        close(place->directory);
    if (place->old >= 0)
        close(place->old);
    if (place->parent >= 0)
        close(place->parent);
}
