/* SPDX-License-Identifier: Apache-2.0 */
#include "common/output.h"

#include "base/file.h"
#include "base/hash.h"
#include "common/command.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TRIES = 100,
    NAME_KEPT = 200, /* bytes of a name that its hidden names contain */
};

/* A suffix that other programs do not use: output_remove_stale() removes such files. */
#define UNFINISHED ".fstfs-tmp"

/* ---- hidden names ---- */

static void
format_hidden_name(const char *name, uint64_t number, const char *suffix, char hidden[NAME_MAX + 1])
{
    snprintf(hidden, NAME_MAX + 1, ".%.*s.%08llx%s", NAME_KEPT, name,
             (unsigned long long)number & 0xffffffff, suffix);
}

/* Formats a hidden name of `name` that is most probably unused. */
static void
make_hidden_name(const char *name, unsigned attempt, const char *suffix, char hidden[NAME_MAX + 1])
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    format_hidden_name(name, hash64(&now, sizeof(now), ((uint64_t)getpid() << 32) + attempt),
                       suffix, hidden);
}

/* Returns whether `found` is a name of make_hidden_name(), for `name` if that is not NULL. */
static bool
is_hidden_name(const char *found, const char *name, const char *suffix)
{
    size_t length = strlen(found), tail = 1 + 8 + strlen(suffix);
    const char *end;

    if (found[0] != '.' || length < 1 + tail)
        return false;
    end = found + length - tail;
    if (end[0] != '.' || strspn(end + 1, "0123456789abcdef") != 8 || strcmp(end + 9, suffix) != 0)
        return false;
    return !name || ((size_t)(end - found - 1) == strnlen(name, NAME_KEPT) &&
                     strncmp(found + 1, name, strnlen(name, NAME_KEPT)) == 0);
}

void
output_directory_name(const char *name, char temporary[NAME_MAX + 1])
{
    format_hidden_name(name, hash64(name, strlen(name), 0), UNFINISHED, temporary);
}

/* ---- existing files ---- */

errint_t
output_inspect(int directory, const char *name, struct output_entry *entry)
{
    struct stat st;

    *entry = (struct output_entry){.fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC)};
    if (entry->fd < 0)
        return errno == ENOENT ? 0 : -errno;
    if (fstat(entry->fd, &st) < 0) {
        errint_t error = -errno;

        output_entry_close(entry);
        return error;
    }
    entry->size = st.st_size;
    entry->mtime = st.st_mtim;
    return 0;
}

void
output_entry_close(struct output_entry *entry)
{
    if (entry->fd >= 0)
        close(entry->fd);
    entry->fd = -1;
}

bool
output_is_inode(int directory, const char *name, int fd)
{
    struct stat there, ours;

    return fstatat(directory, name, &there, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &ours) == 0 &&
           there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

bool
output_is_unchanged(int directory, const char *name, const struct output_entry *entry)
{
    struct stat now;

    return output_is_inode(directory, name, entry->fd) && fstat(entry->fd, &now) == 0 &&
           now.st_size == entry->size && now.st_mtim.tv_sec == entry->mtime.tv_sec &&
           now.st_mtim.tv_nsec == entry->mtime.tv_nsec;
}

errint_t
output_rename(int directory, const char *from, const char *to)
{
    if (renameat2(directory, from, directory, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -errno;
    /* NFS and others support no flags. link() does not replace a file either. */
    if (linkat(directory, from, directory, to, 0) == 0) {
        unlinkat(directory, from, 0);
        return 0;
    }
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS)
        return -errno;
    /* Without flags and links, a file that is created as `to` between the two calls is lost. */
    if (faccessat(directory, to, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return -EEXIST;
    return renameat(directory, from, directory, to) < 0 ? -errno : 0;
}

errint_t
output_set_aside(int directory, const char *name, const struct output_entry *entry,
                 char aside[NAME_MAX + 1])
{
    unsigned i = 0;

    if (!output_is_unchanged(directory, name, entry))
        return -ESTALE;
    do
        make_hidden_name(name, i, ".swap", aside);
    while (faccessat(directory, aside, F_OK, AT_SYMLINK_NOFOLLOW) == 0 && i++ < TRIES);
    /* Uses rename(): unlink() after link() would remove a file created in between. */
    if (renameat(directory, name, directory, aside) < 0)
        return -errno;
    if (output_is_unchanged(directory, aside, entry))
        return 0;
    output_rename(directory, aside, name); /* changed or replaced after the comparison */
    return -ESTALE;
}

/* ---- new files ---- */

errint_t
output_open_directory(const char *path, int *directory, char name[NAME_MAX + 1],
                      struct reason *reason)
{
    char *copy = strdup(path), *other = strdup(path);
    errint_t error = 0;

    *directory = -1;
    if (!copy || !other)
        error = reason_no_memory(reason);
    else if (snprintf(name, NAME_MAX + 1, "%s", basename(copy)) > NAME_MAX)
        error = reason_errno(reason, -ENAMETOOLONG, "its name");
    else if ((*directory = open(dirname(other), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        error = reason_errno(reason, -errno, "its directory");
    free(copy);
    free(other);
    return error;
}

static errint_t
output_begin_named(struct output *output, mode_t mode, struct reason *reason)
{
    for (unsigned i = 0; i < TRIES; i++) {
        make_hidden_name(output->name, i, UNFINISHED, output->temporary);
        output->fd = openat(output->directory, output->temporary,
                            O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (output->fd >= 0)
            break;
        if (errno != EEXIST)
            return reason_errno(reason, -errno, "cannot create it");
    }
    if (output->fd < 0)
        return reason_errno(reason, -EEXIST, "cannot create it");
    output->state = OUTPUT_TEMPORARY;
    return 0;
}

/* Sets the permissions that the file may have because of its group. Without them it is usable, so
 * errors are ignored. */
static void
output_set_group_mode(const struct output *output, const struct output_mode *mode)
{
    struct stat st;
    mode_t mask;

    if (mode->mode == mode->group_mode || fstat(output->fd, &st) < 0 || st.st_gid != mode->group ||
        file_may_have_acl(output->fd))
        return;
    mask = umask(0);
    umask(mask);
    fchmod(output->fd, mode->group_mode & ~mask);
}

errint_t
output_begin(int directory, const char *name, const struct output_mode *mode, struct output *output,
             struct reason *reason)
{
    errint_t error = 0;

    *output = (struct output){.fd = -1, .directory = directory};
    if (snprintf(output->name, sizeof(output->name), "%s", name) > NAME_MAX)
        return reason_errno(reason, -ENAMETOOLONG, "cannot create it");
    output->fd = openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode->mode);
    if (output->fd >= 0)
        output->state = OUTPUT_UNNAMED;
    else if (errno == EMFILE || errno == ENFILE)
        return reason_errno(reason, -errno, "cannot create it");
    else
        error = output_begin_named(output, mode->mode, reason);
    if (error)
        return error;
    flock(output->fd, LOCK_EX | LOCK_NB); /* output_remove_stale() skips locked files */
    output_set_group_mode(output, mode);
    return 0;
}

errint_t
output_sync(struct output *output, struct reason *reason)
{
    return fsync(output->fd) < 0 ? reason_errno(reason, -errno, "cannot sync it") : 0;
}

/* Gives the file a name. -EEXIST if the name exists. */
static errint_t
output_give_name(struct output *output, const char *name)
{
    char path[64];

    if (output->state == OUTPUT_TEMPORARY)
        return output_rename(output->directory, output->temporary, name);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", output->fd);
    return linkat(AT_FDCWD, path, output->directory, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

/* For file systems without RENAME_EXCHANGE: for a moment no file has the name. */
static errint_t
output_replace_in_two_steps(struct output *output, const struct output_entry *replaced,
                            char aside[NAME_MAX + 1])
{
    errint_t error = output_set_aside(output->directory, output->name, replaced, aside);

    if (error)
        return error;
    error = output_give_name(output, output->name);
    if (error) {
        output_rename(output->directory, aside, output->name);
        aside[0] = '\0';
    }
    return error;
}

/* Replaces a file. On success `aside` is the new name of the replaced one. */
static errint_t
output_exchange(struct output *output, const struct output_entry *replaced,
                char aside[NAME_MAX + 1])
{
    char swap[NAME_MAX + 1];
    errint_t error = -EEXIST;
    int directory = output->directory;

    if (!output_is_unchanged(directory, output->name, replaced))
        return -ESTALE;
    for (unsigned i = 0; error == -EEXIST && i < TRIES; i++) {
        make_hidden_name(output->name, i, ".swap", swap);
        error = output_give_name(output, swap);
    }
    if (error)
        return error;
    strcpy(output->temporary, swap);
    output->state = OUTPUT_TEMPORARY;
    if (renameat2(directory, swap, directory, output->name, RENAME_EXCHANGE) < 0)
        return errno == EINVAL || errno == ENOSYS
                   ? output_replace_in_two_steps(output, replaced, aside)
                   : -errno;
    if (!output_is_unchanged(directory, swap, replaced)) {
        renameat2(directory, swap, directory, output->name, RENAME_EXCHANGE);
        return -ESTALE;
    }
    strcpy(aside, swap);
    return 0;
}

errint_t
output_place(struct output *output, const struct output_entry *replaced, char aside[NAME_MAX + 1],
             struct reason *reason)
{
    char old[NAME_MAX + 1] = "", name[QUOTED_SIZE];
    errint_t error = replaced && replaced->fd >= 0 ? output_exchange(output, replaced, old)
                                                   : output_give_name(output, output->name);

    if (error == -EEXIST || error == -ESTALE)
        return reason_set(reason, error, "Output", "%s was %s by another program; it is kept",
                          quoted(name, output->name, strlen(output->name)),
                          error == -EEXIST ? "created" : "changed");
    if (error)
        return reason_errno(reason, error, "cannot rename it");
    output->state = OUTPUT_PLACED;
    if (aside)
        strcpy(aside, old);
    else if (old[0])
        unlinkat(output->directory, old, 0);
    return 0;
}

void
output_unplace(struct output *output)
{
    struct output_entry entry = {.fd = output->fd};
    char aside[NAME_MAX + 1];
    struct stat st;

    if (output->state != OUTPUT_PLACED || fstat(output->fd, &st) < 0)
        return;
    entry.size = st.st_size;
    entry.mtime = st.st_mtim;
    if (output_set_aside(output->directory, output->name, &entry, aside) == 0)
        unlinkat(output->directory, aside, 0);
}

void
output_drop(struct output *output)
{
    /* After a failed exchange another file may have the temporary name. */
    if (output->state == OUTPUT_TEMPORARY &&
        output_is_inode(output->directory, output->temporary, output->fd))
        unlinkat(output->directory, output->temporary, 0);
    if (output->state != OUTPUT_NONE)
        close(output->fd);
    *output = (struct output){0};
}

errint_t
output_write(const char *path, const struct buffer *text, bool replace, struct reason *reason)
{
    const struct output_mode mode = {.mode = 0666, .group_mode = 0666};
    struct output_entry replaced = {.fd = -1};
    struct output output = {0};
    char name[NAME_MAX + 1];
    int directory;
    errint_t error = output_open_directory(path, &directory, name, reason);

    if (error)
        return error;
    error = output_begin(directory, name, &mode, &output, reason);
    if (!error && (error = file_write(output.fd, text->data, text->length, 0)))
        reason_errno(reason, error, "cannot write it");
    if (!error)
        error = output_sync(&output, reason);
    if (!error && replace && (error = output_inspect(directory, name, &replaced)))
        reason_errno(reason, error, "cannot inspect it");
    if (!error)
        error = output_place(&output, &replaced, NULL, reason);
    if (!error)
        error = output_sync_directory(directory, reason);
    output_entry_close(&replaced);
    output_drop(&output);
    close(directory);
    return error;
}

/* ---- files of killed processes ---- */

/* Returns whether no process has the file locked, as far as this user can find out. */
static bool
is_abandoned(int directory, const char *name)
{
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool abandoned;

    if (fd < 0)
        return errno != ENOENT;
    abandoned = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    close(fd);
    return abandoned;
}

static bool
is_own_file(int directory, const char *name)
{
    struct stat st;

    return fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
           st.st_uid == geteuid();
}

void
output_remove_stale(int directory, const char *name)
{
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    char shown[QUOTED_SIZE];

    if (!stream) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(stream))) {
        const char *found = entry->d_name;

        if (is_hidden_name(found, name, UNFINISHED) && is_own_file(directory, found) &&
            is_abandoned(directory, found))
            unlinkat(directory, found, 0);
        else if (is_hidden_name(found, name, ".swap") && is_abandoned(directory, found))
            complain("%s: left by a process that was killed while it replaced this file; not "
                     "removed",
                     quoted(shown, found, strlen(found)));
    }
    closedir(stream);
}

errint_t
output_sync_directory(int directory, struct reason *reason)
{
    if (fsync(directory) == 0 || errno == EINVAL)
        return 0; /* EINVAL: the file system does not support or need it */
    return reason_errno(reason, -errno, "cannot sync its directory");
}
