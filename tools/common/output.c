/* SPDX-License-Identifier: Apache-2.0 */
#include "common/output.h"

#include "base/hash.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 100 };

static errint_t
fail(struct reason *reason, errint_t error, const char *what)
{
    return reason_set(reason, error, "IoError", "%s: %s", what, strerror(-error));
}

/* A name beside `name` that nobody else has: the prefix is cut so that it fits. */
static void
make_temporary(const char *name, unsigned attempt, char temporary[NAME_MAX + 1])
{
    struct timespec now;
    unsigned long long number;

    clock_gettime(CLOCK_REALTIME, &now);
    number = hash64(&now, sizeof(now), ((uint64_t)getpid() << 32) + attempt);
    snprintf(temporary, NAME_MAX + 1, ".%.200s.%08llx.tmp", name, number & 0xffffffff);
}

/* Whether a name is one of make_temporary(). */
static bool
is_temporary(const char *found, const char *name)
{
    size_t length = strlen(name) < 200 ? strlen(name) : 200;

    return found[0] == '.' && strncmp(found + 1, name, length) == 0 && found[1 + length] == '.' &&
           strspn(found + 2 + length, "0123456789abcdef") == 8 &&
           strcmp(found + 10 + length, ".tmp") == 0;
}

static errint_t
begin_named(struct output *output, struct reason *reason)
{
    for (unsigned i = 0; i < TRIES; i++) {
        make_temporary(output->name, i, output->temporary);
        output->fd = openat(output->directory, output->temporary,
                            O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (output->fd >= 0) {
            flock(output->fd, LOCK_EX | LOCK_NB);
            return 0;
        }
        if (errno != EEXIST)
            break;
    }
    return fail(reason, -errno, "creating it");
}

errint_t
output_begin(int directory, const char *name, struct output *output, struct reason *reason)
{
    *output = (struct output){.fd = -1, .directory = directory};
    if (snprintf(output->name, sizeof(output->name), "%s", name) > NAME_MAX)
        return fail(reason, -ENAMETOOLONG, "creating it");
    output->fd = openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    output->unnamed = output->fd >= 0;
    return output->unnamed ? 0 : begin_named(output, reason);
}

errint_t
output_sync(struct output *output, struct reason *reason)
{
    return fsync(output->fd) < 0 ? fail(reason, -errno, "syncing it") : 0;
}

/* Gives an unnamed file the temporary name, or its own. */
static errint_t
link_unnamed(struct output *output, const char *name)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", output->fd);
    return linkat(AT_FDCWD, path, output->directory, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

static errint_t
place(struct output *output, bool replace)
{
    errint_t error = -EEXIST;

    if (!replace && output->unnamed)
        return link_unnamed(output, output->name);
    for (unsigned i = 0; output->unnamed && error == -EEXIST && i < TRIES; i++) {
        make_temporary(output->name, i, output->temporary);
        error = link_unnamed(output, output->temporary);
    }
    if (output->unnamed && error)
        return error;
    output->unnamed = false;
    if (renameat2(output->directory, output->temporary, output->directory, output->name,
                  replace ? 0 : RENAME_NOREPLACE) == 0)
        return 0;
    if (replace || (errno != EINVAL && errno != ENOSYS))
        return -errno;
    /* A file system that cannot do it at once: nobody else is expected here. */
    if (faccessat(output->directory, output->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return -EEXIST;
    return renameat(output->directory, output->temporary, output->directory, output->name) < 0
               ? -errno
               : 0;
}

errint_t
output_place(struct output *output, bool replace, struct reason *reason)
{
    errint_t error = place(output, replace);

    if (error) {
        output_drop(output);
        return fail(reason, error, "giving it its name");
    }
    close(output->fd);
    *output = (struct output){0};
    return 0;
}

void
output_drop(struct output *output)
{
    if (!output->name[0])
        return;
    if (output->fd >= 0) {
        close(output->fd);
        if (!output->unnamed)
            unlinkat(output->directory, output->temporary, 0);
    }
    *output = (struct output){0};
}

/* ---- a text ---- */

static errint_t
write_all(int fd, const struct buffer *text)
{
    for (size_t done = 0; done < text->length;) {
        ssize_t put = write(fd, text->data + done, text->length - done);

        if (put < 0 && errno != EINTR)
            return -errno;
        done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

static errint_t
write_in(int directory, const char *name, const struct buffer *text, bool replace,
         struct reason *reason)
{
    struct output output;
    errint_t error = output_begin(directory, name, &output, reason);

    if (!error && (error = write_all(output.fd, text)))
        fail(reason, error, "writing it");
    if (!error)
        error = output_sync(&output, reason);
    if (!error)
        error = output_place(&output, replace, reason);
    output_drop(&output);
    return error ? error : output_sync_directory(directory, reason);
}

errint_t
output_write(const char *path, const struct buffer *text, bool replace, struct reason *reason)
{
    char *copy = strdup(path), *other = strdup(path);
    errint_t error = -ENOMEM;
    int directory = -1;

    if (copy && other) {
        directory = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        error = directory < 0 ? -errno : 0;
    }
    if (error)
        fail(reason, error, "its directory");
    else
        error = write_in(directory, basename(other), text, replace, reason);
    if (directory >= 0)
        close(directory);
    free(copy);
    free(other);
    return error;
}

/* ---- directories ---- */

errint_t
output_make_directory(int parent, const char *name, char temporary[NAME_MAX + 1], int *fd,
                      struct reason *reason)
{
    int result = -1;

    for (unsigned i = 0; result < 0 && i < TRIES; i++) {
        make_temporary(name, i, temporary);
        result = mkdirat(parent, temporary, 0777);
        if (result < 0 && errno != EEXIST)
            break;
    }
    if (result < 0)
        return fail(reason, -errno, "creating it");
    *fd = openat(parent, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd < 0) {
        errint_t error = fail(reason, -errno, "creating it");

        unlinkat(parent, temporary, AT_REMOVEDIR);
        return error;
    }
    flock(*fd, LOCK_EX | LOCK_NB);
    return 0;
}

void
output_remove_directory(int parent, const char *name)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    if (!stream) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(stream)))
        unlinkat(fd, entry->d_name, 0); /* "." and ".." it refuses */
    closedir(stream);
    unlinkat(parent, name, AT_REMOVEDIR);
}

/* Whoever made it holds a lock on it as long as it lives. */
static bool
is_left(int parent, const char *name, bool *is_directory)
{
    int fd = openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    bool left;

    if (fd < 0)
        return false;
    left = fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0;
    *is_directory = left && S_ISDIR(st.st_mode);
    close(fd);
    return left;
}

void
output_remove_stale(int parent, const char *name)
{
    int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    bool is_directory;

    if (!stream) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(stream))) {
        if (!is_temporary(entry->d_name, name) || !is_left(parent, entry->d_name, &is_directory))
            continue;
        if (is_directory)
            output_remove_directory(parent, entry->d_name);
        else
            unlinkat(parent, entry->d_name, 0);
    }
    closedir(stream);
}

errint_t
output_sync_directory(int directory, struct reason *reason)
{
    if (fsync(directory) == 0 || errno == EINVAL)
        return 0; /* EINVAL: a file system where there is nothing to be done */
    return fail(reason, -errno, "syncing its directory");
}
