/* SPDX-License-Identifier: Apache-2.0 */
#include "destination.h"

#include "base/array.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { TRIES = 100 };

/* ---- the lock ---- */

/* Returns the process that has locked the directory; 0 if /proc/locks does not name one. */
static int
read_lock_holder(int directory)
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

/* As read_lock_holder(). The kernel omits locks from /proc/locks while others are released. */
static int
find_lock_holder(int directory)
{
    int holder = 0;

    for (int i = 0; i < TRIES && holder == 0; i++)
        holder = read_lock_holder(directory);
    return holder;
}

/* Succeeds on file systems without locks: there, a second run fails when it finds that the names
 * exist. */
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
                      "locked by another program%s, probably an fstfs-pack that writes into it; "
                      "wait until it ends",
                      process);
}

/* ---- a new directory ---- */

/*
 * Marks temporary directories: only the files of a marked one may be removed. Whoever may write in
 * the parent directory can give any directory the temporary name, but only users who may write in a
 * directory can mark it.
 */
static const char temporary_mark[] = "user.fstfs.pack";

/* Removes the files in the temporary directory of a killed run. -EEXIST: it may be another
 * directory. */
static errint_t
clear_temporary(const struct destination *destination, const char *temporary, struct reason *reason)
{
    int fd = openat(destination->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    bool is_ours;
    struct stat st;
    errint_t error = 0;

    if (!stream) {
        error = reason_errno(reason, -errno, "cannot list its temporary directory");
        if (fd >= 0)
            close(fd);
        return error;
    }
    if (fstat(fd, &st) < 0 || st.st_uid != geteuid())
        error = reason_set(reason, -EPERM, "Output",
                           "its temporary directory %.300s belongs to another user", temporary);
    is_ours = fgetxattr(fd, temporary_mark, NULL, 0) >= 0;
    while (!error && (entry = readdir(stream))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (!is_ours)
            error = reason_set(reason, -EEXIST, "Output",
                               "%.300s exists and was not left by fstfs-pack; remove or rename it",
                               temporary);
        else
            unlinkat(fd, entry->d_name, 0);
    }
    closedir(stream);
    return error;
}

/* Creates the temporary directory, or reuses that of a killed run, and locks it against a second
 * run with the same output. */
static errint_t
destination_make_temporary(struct destination *destination, struct reason *reason)
{
    const int parent = destination->parent;
    char temporary[NAME_MAX + 1];

    output_directory_name(destination->name, temporary);
    for (unsigned i = 0; i < TRIES; i++) {
        errint_t error;
        bool is_new = mkdirat(parent, temporary, 0777) == 0;

        if (!is_new && errno != EEXIST)
            return reason_errno(reason, -errno, "cannot create it");
        destination->directory =
            openat(parent, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (destination->directory < 0 && errno != ENOENT)
            return reason_errno(reason, -errno, "cannot open its temporary directory");
        if (destination->directory < 0)
            continue;
        error = lock_directory(destination->directory, reason);
        if (error)
            return error;
        /* The run that held the lock may have renamed or removed the directory. */
        if (output_is_inode(parent, temporary, destination->directory)) {
            error = is_new ? 0 : clear_temporary(destination, temporary, reason);
            if (error)
                return error;
            /* Without xattrs, the directory of a killed run is not reused. */
            fsetxattr(destination->directory, temporary_mark, "", 0, 0);
            strcpy(destination->temporary, temporary);
            return 0;
        }
        close(destination->directory);
        destination->directory = -1;
    }
    return reason_errno(reason, -EBUSY, "cannot create it");
}

/* ---- opening ---- */

static errint_t
destination_open_file(struct destination *destination, const struct destination_request *request,
                      struct reason *reason)
{
    const int parent = destination->parent;
    char input[QUOTED_SIZE];
    const char *source;
    struct stat st;
    errint_t error;

    destination->directory = destination->old.directory = parent;
    output_remove_stale(parent, destination->name);
    if (fstatat(parent, destination->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    if (S_ISDIR(st.st_mode))
        return reason_set(reason, -EISDIR, "Output", "is a directory (expected a file)");
    if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
        return reason_set(reason, -EEXIST, "Output", "exists and is not a file");
    source = sources_find_in(request->sources, parent, destination->name);
    if (source)
        return reason_set(reason, -EINVAL, "Output",
                          "is an input, by the path %.300s; use another name for the output",
                          quoted(input, source, strlen(source)));
    if (!request->force)
        return reason_set(reason, -EEXIST, "Output", "already exists; --force replaces it");
    error = old_files_add(&destination->old, destination->name, false, reason);
    return error
               ? error
               : old_files_add_checkpoint(&destination->old, NULL, true, request->sources, reason);
}

static errint_t
destination_open_directory(struct destination *destination,
                           const struct destination_request *request, struct reason *reason)
{
    errint_t error = 0;
    bool exists;

    destination->directory = openat(destination->parent, destination->name,
                                    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    exists = destination->directory >= 0;
    if (!exists)
        error = errno == ENOENT
                    ? destination_make_temporary(destination, reason)
                    : reason_errno(reason, -errno, "exists and cannot be opened as a directory");
    else
        error = lock_directory(destination->directory, reason);
    destination->old.directory = destination->directory;
    if (error || !exists)
        return error;
    output_remove_stale(destination->directory, NULL);
    return old_files_add_checkpoint(&destination->old, request->stem, request->force,
                                    request->sources, reason);
}

errint_t
destination_open(const struct destination_request *request, struct destination *destination,
                 struct reason *reason)
{
    const char *name = destination->name;
    errint_t error;

    *destination = (struct destination){
        .path = request->path, .directory = -1, .is_directory = request->stem != NULL};
    error = output_open_directory(request->path, &destination->parent, destination->name, reason);
    if (error)
        return error;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "/") == 0)
        return reason_set(reason, -EINVAL, "Output", "has no name (found %s)", name);
    return request->stem ? destination_open_directory(destination, request, reason)
                         : destination_open_file(destination, request, reason);
}

errint_t
destination_add(struct destination *destination, const char *name, const struct output_mode *mode,
                bool is_side, struct reason *reason)
{
    struct output output;
    errint_t error;

    name = name ? name : destination->name;
    error = old_files_check_name(&destination->old, name, reason);
    if (!error)
        error = output_begin(destination->directory, name, mode, &output, reason);
    if (error)
        return error;
    if (!array_add(destination->outputs, destination->output_count, output)) {
        output_drop(&output);
        return reason_no_memory(reason);
    }
    destination->side_count += is_side;
    return 0;
}

/* ---- committing ---- */

/* Checks that the path still leads to the directories that are open. */
static errint_t
check_in_place(const struct destination *destination, struct reason *reason)
{
    const char *present = destination->temporary[0] ? destination->temporary : destination->name;
    char name[NAME_MAX + 1];
    int parent;
    errint_t error = output_open_directory(destination->path, &parent, name, reason);

    if (error)
        return error;
    if (!output_is_inode(parent, ".", destination->parent) ||
        (destination->is_directory && !output_is_inode(parent, present, destination->directory)))
        error = reason_set(reason, -ESTALE, "Output",
                           "it or its directory was moved or replaced by another program; the "
                           "existing files are kept");
    close(parent);
    return error;
}

static errint_t
destination_check_unchanged(const struct destination *destination, struct reason *reason)
{
    errint_t error = check_in_place(destination, reason);

    if (!error)
        error = old_files_check_unchanged(&destination->old, reason);
    for (size_t i = 0; !error && i < destination->output_count; i++)
        error = old_files_check_name(&destination->old, destination->outputs[i].name, reason);
    return error;
}

/* Replaces each side file atomically. */
static errint_t
name_side_files(struct destination *destination, struct reason *reason)
{
    errint_t error = 0;

    for (size_t i = 0; !error && i < destination->side_count; i++) {
        struct output *output = &destination->outputs[i];
        struct old_file *old = old_files_find(&destination->old, output->name);

        error = output_place(output, old ? &old->entry : NULL, old ? old->aside : NULL, reason);
    }
    return error;
}

/*
 * If old and new shards have a name in common, every order of single renames would expose a mixture
 * of them. Then all old files are first renamed to hidden names, the index before the shards.
 */
static errint_t
set_old_checkpoint_aside(struct destination *destination, struct reason *reason)
{
    for (size_t i = destination->side_count; i + 1 < destination->output_count; i++)
        if (old_files_find(&destination->old, destination->outputs[i].name))
            destination->set_aside = true;
    return destination->set_aside ? old_files_set_aside(&destination->old, reason) : 0;
}

/* Renames all files to their final names; the last one (the index) when the others are on storage.
 */
static errint_t
name_files(struct destination *destination, struct reason *reason)
{
    struct output *last = &destination->outputs[destination->output_count - 1];
    struct old_file *old = old_files_find(&destination->old, last->name);
    errint_t error = name_side_files(destination, reason);

    if (!error)
        error = set_old_checkpoint_aside(destination, reason);
    if (old && old->aside[0])
        old = NULL;
    for (size_t i = destination->side_count; !error && i + 1 < destination->output_count; i++)
        error = output_place(&destination->outputs[i], NULL, NULL, reason);
    /* Not if the old files were set aside: a kill during the wait would leave no index. */
    if (!error && destination->is_directory && !destination->set_aside)
        error = output_sync_directory(destination->directory, reason);
    if (!error)
        error = output_place(last, old ? &old->entry : NULL, old ? old->aside : NULL, reason);
    return error;
}

/* Renames a new directory to its final name. */
static errint_t
name_directory(struct destination *destination, struct reason *reason)
{
    const int parent = destination->parent;
    errint_t error = output_sync_directory(destination->directory, reason);

    if (error)
        return error;
    if (renameat2(parent, destination->temporary, parent, destination->name, RENAME_NOREPLACE) <
            0 &&
        /* Without flags, rename() can replace only an empty directory. */
        ((errno != EINVAL && errno != ENOSYS) ||
         renameat(parent, destination->temporary, parent, destination->name) < 0))
        return errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR
                   ? reason_set(reason, -EEXIST, "Output",
                                "was created by another program; it is kept")
                   : reason_errno(reason, -errno, "cannot rename it");
    fremovexattr(destination->directory, temporary_mark);
    strcpy(destination->temporary, destination->name);
    return 0;
}

errint_t
destination_commit(struct destination *destination, struct reason *reason)
{
    errint_t error = destination_check_unchanged(destination, reason);

    if (error)
        return error;
    error = name_files(destination, reason);
    if (!error && destination->temporary[0])
        error = name_directory(destination, reason);
    if (!error)
        error = output_sync_directory(destination->directory, reason);
    if (!error)
        error = output_sync_directory(destination->parent, reason);
    if (!error)
        error = check_in_place(destination, reason);
    if (error) {
        for (size_t i = 0; i < destination->output_count; i++)
            output_unplace(&destination->outputs[i]);
        old_files_restore(&destination->old);
        return error;
    }
    destination->temporary[0] = '\0';
    if (!destination->old.count)
        return 0;
    error = old_files_remove(&destination->old, reason);
    return error ? error : output_sync_directory(destination->directory, reason);
}

void
destination_close(struct destination *destination)
{
    for (size_t i = 0; i < destination->output_count; i++)
        output_drop(&destination->outputs[i]);
    old_files_free(&destination->old);
    if (destination->temporary[0] &&
        output_is_inode(destination->parent, destination->temporary, destination->directory))
        unlinkat(destination->parent, destination->temporary, AT_REMOVEDIR);
    if (destination->is_directory && destination->directory >= 0)
        close(destination->directory);
    if (destination->parent >= 0)
        close(destination->parent);
    free(destination->outputs);
}
