/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"

#include "base/array.h"
#include "catalog/catalog.h"
#include "catalog/group.h"
#include "common/find.h"
#include "common/say.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { TRIES = 100 };

static errint_t
fail(struct reason *reason, errint_t error, const char *what)
{
    return reason_set(reason, error, "IoError", "%s: %s", what, strerror(-error));
}

/* The same, of a file in the directory. */
static errint_t
fail_name(struct reason *reason, errint_t error, const char *name, const char *what)
{
    char shown[QUOTED_SIZE];

    return reason_set(reason, error, "Output", "%s %s", quoted(shown, name, strlen(name)), what);
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

/* ---- the lock ---- */

/* The process that has locked the directory, as far as the kernel names it; or 0. */
static int
find_lock_holder(int directory)
{
    FILE *locks = fopen("/proc/locks", "re");
    char line[256];
    struct stat st;
    int holder = 0;

    if (!locks)
        return 0;
    while (holder == 0 && fstat(directory, &st) == 0 && fgets(line, sizeof(line), locks)) {
        unsigned major, minor;
        unsigned long inode;
        int pid;

        if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &major, &minor, &inode) == 4 &&
            inode == st.st_ino && makedev(major, minor) == st.st_dev)
            holder = pid;
    }
    fclose(locks);
    return holder;
}

/* A file system that cannot lock does not keep a second run out; that run fails when it is
 * to give names that are taken. */
static errint_t
lock_directory(int directory, struct reason *reason)
{
    char process[32] = "";
    int holder;

    if (flock(directory, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return 0;
    holder = find_lock_holder(directory);
    if (holder > 0)
        snprintf(process, sizeof(process), " (process %d)", holder);
    return reason_set(reason, -EBUSY, "Locked",
                      "another program has locked it%s: fstfs-pack "
                      "writes into it already, and a second run must wait",
                      process);
}

/* ---- an existing directory ---- */

static errint_t
add_old(struct place *place, const char *name, struct reason *reason)
{
    struct old_file *old = array_room(place->old, place->old_count, sizeof(*old));
    errint_t error;

    if (!old) {
        fail(reason, -ENOMEM, "no memory");
        return -ENOMEM;
    }
    place->old = old;
    old += place->old_count;
    *old = (struct old_file){.entry = {.fd = -1}};
    snprintf(old->name, sizeof(old->name), "%s", name);
    error = output_look(place->directory, name, &old->entry);
    if (error)
        return fail(reason, error, "looking into it");
    place->old_count += old->entry.fd >= 0;
    return 0;
}

/* Whether a file that would be replaced is none of the inputs. */
static errint_t
check_source(const struct place *place, const char *name, const struct sources *sources,
             struct reason *reason)
{
    char shown[QUOTED_SIZE], input[QUOTED_SIZE];
    const char *path;
    struct stat st;

    if (fstatat(place->directory, name, &st, 0) < 0)
        return 0;
    path = sources_find(sources, st.st_dev, st.st_ino);
    if (!path)
        return 0;
    quoted(input, path, strlen(path));
    if (!place->is_directory)
        return reason_set(reason, -EINVAL, "Output",
                          "it is an input, by the path %.300s; give the output another name",
                          input);
    return reason_set(reason, -EINVAL, "Output",
                      "%.100s in it is an input, by the path %.250s; give another DIRECTORY, or "
                      "another --stem",
                      quoted(shown, name, strlen(name)), input);
}

static errint_t
check_sources(const struct place *place, const struct group *group, const struct sources *sources,
              struct reason *reason)
{
    errint_t error = group->index ? check_source(place, group->index, sources, reason) : 0;

    for (uint32_t i = 0; !error && i < group->member_count; i++)
        error = check_source(place, group->members[i], sources, reason);
    return error;
}

static errint_t
add_old_group(struct place *place, const struct group *group, struct reason *reason)
{
    errint_t error = group->index ? add_old(place, group->index, reason) : 0;

    for (uint32_t i = 0; !error && i < group->member_count; i++)
        error = add_old(place, group->members[i], reason);
    return error;
}

/* What belongs to the stem, and an index of its name that could not be read. */
static errint_t
add_old_of_listing(struct place *place, const struct listing *listing,
                   const struct place_request *request, struct reason *reason)
{
    const char *stem = request->stem;
    char index[300];
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < listing->group_count; i++) {
        if (strcmp(listing->groups[i].stem, stem) != 0 ||
            strcmp(listing->groups[i].suffix, ST_SUFFIX) != 0)
            continue;
        error = check_sources(place, &listing->groups[i], request->sources, reason);
        if (error)
            return error;
        if (!request->force)
            return reason_set(reason, -EEXIST, "Output",
                              "there is a checkpoint %s in it already; --force replaces it", stem);
        error = add_old_group(place, &listing->groups[i], reason);
    }
    group_name_index(stem, ST_SUFFIX, index);
    for (size_t i = 0; !error && i < place->old_count; i++)
        if (strcmp(place->old[i].name, index) == 0)
            return 0;
    return error || !request->force ? error : add_old(place, index, reason);
}

static errint_t
find_old(struct place *place, const struct place_request *request, struct reason *reason)
{
    char path[64];
    const struct catalog_options options = {.source = path, .problems = {find_no_problem, NULL, 0}};
    struct listing *listing = NULL;
    struct catalog *catalog = NULL;
    struct source_dir *root = NULL;
    errint_t error;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", place->directory);
    error = catalog_new(&options, &catalog);
    if (!error && !(root = catalog_root(catalog)))
        error = -ENOMEM;
    if (!error)
        error = source_dir_listing(root, &listing);
    if (error)
        fail(reason, error, "looking into it");
    else
        error = add_old_of_listing(place, listing, request, reason);
    listing_unref(listing);
    source_dir_unref(root);
    catalog_free(catalog);
    return error;
}

/* ---- a new directory ---- */

/* Empties the temporary directory of a run that was killed. */
static errint_t
clear_temporary(const struct place *place, const char *temporary, struct reason *reason)
{
    int fd = openat(place->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    struct stat st;
    errint_t error = 0;

    if (!stream) {
        error = fail(reason, -errno, "looking into its temporary directory");
        if (fd >= 0)
            close(fd);
        return error;
    }
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid())
        error = fail_name(reason, -EPERM, temporary, "is there already and is of another user");
    else
        while ((entry = readdir(stream)))
            unlinkat(fd, entry->d_name, 0); /* "." and ".." it refuses */
    closedir(stream);
    return error;
}

/* Makes the temporary directory, or takes over the one of a run that was killed. Its lock
 * keeps out a second run that is to make the same directory. */
static errint_t
make_directory(struct place *place, struct reason *reason)
{
    char temporary[NAME_MAX + 1];

    output_directory_name(place->name, temporary);
    for (unsigned i = 0; i < TRIES; i++) {
        errint_t error;
        bool is_new = mkdirat(place->parent, temporary, 0777) == 0;

        if (!is_new && errno != EEXIST)
            return fail(reason, -errno, "creating it");
        place->directory =
            openat(place->parent, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (place->directory < 0 && errno != ENOENT)
            return fail_name(reason, -errno, temporary, "cannot be opened as a directory");
        if (place->directory < 0)
            continue;
        error = lock_directory(place->directory, reason);
        if (error)
            return error;
        /* The run that had the lock may have given it its name, or removed it. */
        if (output_is_inode(place->parent, temporary, place->directory)) {
            error = is_new ? 0 : clear_temporary(place, temporary, reason);
            if (!error)
                strcpy(place->temporary, temporary);
            return error;
        }
        close(place->directory);
        place->directory = -1;
    }
    return fail(reason, -EBUSY, "creating it");
}

/* ---- opening ---- */

static errint_t
open_file(struct place *place, const struct place_request *request, struct reason *reason)
{
    struct stat st;
    errint_t error;

    place->directory = place->parent;
    output_remove_stale(place->parent, place->name);
    if (fstatat(place->parent, place->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    if (S_ISDIR(st.st_mode))
        return reason_set(reason, -EISDIR, "Output", "it is a directory");
    error = check_source(place, place->name, request->sources, reason);
    if (error)
        return error;
    if (!request->force)
        return reason_set(reason, -EEXIST, "Output", "it is there already; --force replaces it");
    return add_old(place, place->name, reason);
}

static errint_t
open_directory(struct place *place, const struct place_request *request, struct reason *reason)
{
    errint_t error;

    place->directory =
        openat(place->parent, place->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (place->directory < 0 && errno == ENOENT)
        return make_directory(place, reason);
    if (place->directory < 0)
        return reason_set(reason, -errno, "Output",
                          "it is there already, and cannot be opened as a directory: %s",
                          strerror(errno));
    error = lock_directory(place->directory, reason);
    if (error)
        return error;
    output_remove_stale(place->directory, NULL);
    return find_old(place, request, reason);
}

errint_t
place_open(const struct place_request *request, struct place *place, struct reason *reason)
{
    errint_t error;

    *place = (struct place){.parent = -1, .directory = -1, .is_directory = request->stem != NULL};
    error = open_parent(request->path, place, reason);
    if (error)
        return error;
    return request->stem ? open_directory(place, request, reason)
                         : open_file(place, request, reason);
}

static struct old_file *
find_old_file(const struct place *place, const char *name)
{
    for (size_t i = 0; i < place->old_count; i++)
        if (strcmp(place->old[i].name, name) == 0)
            return &place->old[i];
    return NULL;
}

/* Whether the name is free, or an old file's that is as it was. */
static errint_t
check_name(const struct place *place, const char *name, struct reason *reason)
{
    struct stat st;

    if (find_old_file(place, name))
        return 0;
    if (fstatat(place->directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return fail_name(reason, -EEXIST, name,
                         "is in the way: it is there and is no part of what "
                         "is to be replaced");
    return errno == ENOENT ? 0 : fail(reason, -errno, "looking into it");
}

/* ---- side files ---- */

/* Whether the open file has the same bytes; false where that cannot be read. */
static bool
has_content(int fd, const struct backing *content)
{
    enum { PIECE = 1 << 16 };
    int other = openat(content->directory, content->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *pieces = malloc((size_t)2 * PIECE);
    uint64_t at = 0;
    bool same = other >= 0 && pieces;

    while (same && at < content->identity.size) {
        ssize_t one = pread(fd, pieces, PIECE, (off_t)at);
        ssize_t two = pread(other, pieces + PIECE, PIECE, (off_t)at);

        same = one > 0 && one == two && memcmp(pieces, pieces + PIECE, (size_t)one) == 0;
        at += same ? (uint64_t)one : 0;
    }
    if (other >= 0)
        close(other);
    free(pieces);
    return same;
}

/* Whether what the name leads to is the same file or one of the same content. */
static bool
is_there(const struct place *place, const char *name, const struct backing *content)
{
    int fd = openat(place->directory, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    bool same = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                (uint64_t)st.st_size == content->identity.size;

    if (same && (st.st_dev != content->identity.device || st.st_ino != content->identity.inode))
        same = has_content(fd, content);
    if (fd >= 0)
        close(fd);
    return same;
}

errint_t
place_needs(struct place *place, const char *name, const struct backing *content, bool force,
            bool *needed, struct reason *reason)
{
    struct stat st;
    errint_t error;

    *needed = true;
    if (fstatat(place->directory, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fail(reason, -errno, "looking into it");
    if (is_there(place, name, content)) {
        *needed = false;
        return 0;
    }
    if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return fail_name(reason, -EEXIST, name, "is in the way: it is there and is no file");
    if (!force)
        return fail_name(reason, -EEXIST, name,
                         "is in it already and is not the INPUT's; --force replaces it, "
                         "--tensors-only leaves it");
    error = add_old(place, name, reason);
    if (!error && place->old_count && strcmp(place->old[place->old_count - 1].name, name) == 0)
        place->old[place->old_count - 1].is_side = true;
    return error;
}

/* ---- beginning ---- */

errint_t
place_begin(struct place *place, char *const *names, size_t count, size_t side_count,
            struct reason *reason)
{
    place->side_count = side_count;
    place->outputs = calloc(count, sizeof(*place->outputs));
    if (!place->outputs)
        return fail(reason, -ENOMEM, "no memory");
    for (size_t i = 0; i < count; i++) {
        const char *name = names ? names[i] : place->name;
        errint_t error = check_name(place, name, reason);

        if (!error)
            error = output_begin(place->directory, name, &place->outputs[i], reason);
        if (error)
            return error;
        place->output_count++;
    }
    return 0;
}

/* ---- ending ---- */

/* Whether all is still as it was looked at. */
static errint_t
check_unchanged(const struct place *place, struct reason *reason)
{
    errint_t error = 0;

    if (place->is_directory && !place->temporary[0] &&
        !output_is_inode(place->parent, place->name, place->directory))
        return reason_set(reason, -ESTALE, "Output",
                          "it was moved or replaced meanwhile; nothing was written into it");
    for (size_t i = 0; i < place->old_count; i++)
        if (!output_is_unchanged(place->directory, place->old[i].name, &place->old[i].entry))
            return fail_name(reason, -ESTALE, place->old[i].name,
                             "was changed by another program meanwhile, and stays");
    for (size_t i = 0; !error && i < place->output_count; i++)
        error = check_name(place, place->outputs[i].name, reason);
    return error;
}

static errint_t
set_aside(struct place *place, struct old_file *old, struct reason *reason)
{
    char aside[NAME_MAX + 1], name[QUOTED_SIZE];
    errint_t error = output_set_aside(place->directory, old->name, &old->entry, aside);

    if (error == -ESTALE)
        return fail_name(reason, error, old->name,
                         "was changed by another program meanwhile, and stays");
    if (error)
        return reason_set(reason, error, "Output", "replacing %s: %s",
                          quoted(name, old->name, strlen(old->name)), strerror(-error));
    strcpy(old->aside, aside);
    return 0;
}

/*
 * Where old and new shards have the same names no order of renames keeps both whole. All
 * old files go first, the index before the others: at no moment are there both old and new
 * shards under names that a loader would put together.
 */
static errint_t
make_way(struct place *place, struct reason *reason)
{
    errint_t error = 0;

    for (size_t i = place->side_count; i + 1 < place->output_count; i++)
        place->made_way = place->made_way || find_old_file(place, place->outputs[i].name);
    for (size_t i = 0; place->made_way && !error && i < place->old_count; i++)
        if (!place->old[i].is_side)
            error = set_aside(place, &place->old[i], reason);
    return error;
}

/* Each takes the place of the old one in one step. */
static errint_t
name_side_files(struct place *place, struct reason *reason)
{
    errint_t error = 0;

    for (size_t i = 0; !error && i < place->side_count; i++) {
        struct output *output = &place->outputs[i];
        struct old_file *old = find_old_file(place, output->name);

        error = old ? output_place_keeping(output, &old->entry, old->aside, reason)
                    : output_place(output, NULL, reason);
    }
    return error;
}

/* Gives all names, the last one (the index) when the others are on storage. */
static errint_t
give_names(struct place *place, struct reason *reason)
{
    struct output *last = &place->outputs[place->output_count - 1];
    struct old_file *old = find_old_file(place, last->name);
    errint_t error = name_side_files(place, reason);

    if (!error)
        error = make_way(place, reason);
    if (old && old->aside[0])
        old = NULL;
    for (size_t i = place->side_count; !error && i + 1 < place->output_count; i++)
        error = output_place(&place->outputs[i], NULL, reason);
    /* Not where old files were set aside: a kill must not find it waiting without an index. */
    if (!error && place->is_directory && !place->made_way)
        error = output_sync_directory(place->directory, reason);
    if (!error)
        error = output_place(last, old ? &old->entry : NULL, reason);
    if (!error && old)
        output_forget(&old->entry);
    return error;
}

static void
take_names_back(struct place *place)
{
    char name[QUOTED_SIZE], aside[QUOTED_SIZE];

    for (size_t i = 0; i < place->output_count; i++)
        output_unplace(&place->outputs[i]);
    for (size_t i = 0; i < place->old_count; i++) {
        const struct old_file *old = &place->old[i];

        if (old->aside[0] && output_rename(place->directory, old->aside, old->name) != 0)
            complain("%s could not be given its name again, and is now %s",
                     quoted(name, old->name, strlen(old->name)),
                     quoted(aside, old->aside, strlen(old->aside)));
    }
}

/* Removes what was replaced, as far as that goes: the new files are in place by now. */
static errint_t
remove_old(struct place *place, struct reason *reason)
{
    errint_t error = 0;

    for (size_t i = 0; i < place->old_count; i++) {
        struct old_file *old = &place->old[i];
        errint_t result = 0;

        if (old->entry.fd < 0)
            continue;
        if (!old->aside[0])
            result = set_aside(place, old, reason);
        if (!result && unlinkat(place->directory, old->aside, 0) < 0)
            result = fail(reason, -errno, "removing what was replaced");
        if (result)
            complain("all files were written, but not all that they replace could be removed");
        error = error ? error : result;
    }
    return error;
}

static errint_t
name_directory(struct place *place, struct reason *reason)
{
    const char *from = place->temporary;
    errint_t error = output_sync_directory(place->directory, reason);

    if (error)
        return error;
    if (renameat2(place->parent, from, place->parent, place->name, RENAME_NOREPLACE) < 0 &&
        /* Without flags it replaces an empty directory at most. */
        ((errno != EINVAL && errno != ENOSYS) ||
         renameat(place->parent, from, place->parent, place->name) < 0))
        return errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR
                   ? reason_set(reason, -EEXIST, "Output",
                                "it was made by another program meanwhile, and stays")
                   : fail(reason, -errno, "giving it its name");
    place->temporary[0] = '\0';
    return 0;
}

errint_t
place_finish(struct place *place, struct reason *reason)
{
    errint_t error = check_unchanged(place, reason);

    if (error)
        return error;
    error = give_names(place, reason);
    if (!error && place->temporary[0])
        error = name_directory(place, reason);
    if (error) {
        take_names_back(place);
        return error;
    }
    error = output_sync_directory(place->directory, reason);
    if (!error)
        error = remove_old(place, reason);
    return error ? error : output_sync_directory(place->parent, reason);
}

void
place_end(struct place *place)
{
    for (size_t i = 0; i < place->output_count; i++)
        output_drop(&place->outputs[i]);
    for (size_t i = 0; i < place->old_count; i++)
        output_forget(&place->old[i].entry);
    if (place->temporary[0])
        unlinkat(place->parent, place->temporary, AT_REMOVEDIR);
    if (place->is_directory && place->directory >= 0)
        close(place->directory);
    if (place->parent >= 0)
        close(place->parent);
    free(place->outputs);
    free(place->old);
}
