/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/first_look.h"

#include "base/log.h"
#include "base/quote.h"
#include "catalog/group.h"
#include "format/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The exit status of the process that looks. */
enum finding { FOUND, NO_CHECKPOINT, NONE_READABLE, UNKNOWN };

struct look {
    char *directories[FIRST_LOOK_DIRECTORIES]; /* seen so far */
    size_t count, entries;
    bool refused_any, gave_up; /* saw a file of the name that is none; could not see all */
    bool found;
};

/* Whether the file begins with the length of a header that is in it, and the header's first byte.
 * Reads no more than that: the catalog parses it when it is asked for. */
static bool
looks_sound(int directory, const char *name)
{
    /* O_NONBLOCK: it may be a FIFO. */
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    unsigned char head[9];
    uint64_t length = 0;
    struct stat st;
    bool sound;

    if (fd < 0)
        return false;
    /* Without readahead, or megabytes of the file would stay in the page cache. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    sound = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
            pread(fd, head, sizeof(head), 0) == (ssize_t)sizeof(head) && head[8] == '{';
    close(fd);
    for (int i = 7; sound && i >= 0; i--)
        length = length << 8 | head[i];
    return sound && length <= ST_MAX_HEADER && length <= (uint64_t)st.st_size - 8;
}

static void
add_directory(struct look *look, const char *above, const char *name)
{
    char *path;

    if (look->count == FIRST_LOOK_DIRECTORIES || asprintf(&path, "%s/%s", above, name) < 0)
        look->gave_up = true;
    else
        look->directories[look->count++] = path;
}

static void
look_at_entry(struct look *look, int directory, const char *path, const struct dirent *entry)
{
    const char *name = entry->d_name;
    unsigned char type = entry->d_type;
    struct stat st;

    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return;
    look->gave_up |= ++look->entries > FIRST_LOOK_ENTRIES;
    if ((type == DT_LNK || type == DT_UNKNOWN) && fstatat(directory, name, &st, 0) == 0 &&
        S_ISDIR(st.st_mode))
        type = DT_DIR;
    if (type == DT_DIR) {
        add_directory(look, path, name);
    } else if (group_single_name(name, NULL)) {
        look->found = looks_sound(directory, name);
        look->refused_any |= !look->found;
    }
}

static void
look_into(struct look *look, const char *path)
{
    DIR *stream = opendir(path);
    struct dirent *entry;

    if (!stream) {
        look->gave_up = true;
        return;
    }
    while (!look->found && !look->gave_up && (entry = readdir(stream)))
        look_at_entry(look, dirfd(stream), path, entry);
    closedir(stream);
}

/* Directories that are higher first. */
static enum finding
look_through(const char *source)
{
    static struct look look;

    add_directory(&look, source, ".");
    for (size_t i = 0; i < look.count && !look.found && !look.gave_up; i++)
        look_into(&look, look.directories[i]);
    for (size_t i = 0; i < look.count; i++)
        free(look.directories[i]);
    if (look.found)
        return FOUND;
    if (look.gave_up)
        return UNKNOWN;
    return look.refused_any ? NONE_READABLE : NO_CHECKPOINT;
}

/* The child's exit status; UNKNOWN where it has none in time, and it is killed. A system call that
 * cannot be killed may outlive that; then nobody waits for the process any more. */
static enum finding
await(pid_t child)
{
    struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, child, 0), .events = POLLIN};
    int status = 0;

    if (end.fd < 0 || poll(&end, 1, FIRST_LOOK_MS) != 1) {
        kill(child, SIGKILL);
        if (end.fd >= 0)
            poll(&end, 1, FIRST_LOOK_MS);
    }
    if (end.fd >= 0)
        close(end.fd);
    if (waitpid(child, &status, WNOHANG) != child || !WIFEXITED(status))
        return UNKNOWN;
    return (enum finding)WEXITSTATUS(status);
}

/* It may outlive its parent, whose streams others wait for to be closed. */
static void
leave_streams(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = STDIN_FILENO; null >= 0 && fd <= STDERR_FILENO; fd++)
        dup2(null, fd);
}

void
first_look(const char *source)
{
    char name[QUOTED_SIZE];
    pid_t child = fork();

    if (child < 0)
        return;
    if (child == 0) {
        leave_streams();
        _exit((int)look_through(source));
    }
    switch (await(child)) {
    case NO_CHECKPOINT:
        log_warning("%s: no checkpoint that fstfs can read (*.safetensors) was found in it; other "
                    "files are shown as they are",
                    quoted(name, source, strlen(source)));
        break;
    case NONE_READABLE:
        log_warning("%s: no checkpoint that fstfs can read was found in it: every *.safetensors is "
                    "broken or closed to this user, and .fstfs/problems says how",
                    quoted(name, source, strlen(source)));
        break;
    case FOUND:
    case UNKNOWN:
        break;
    }
}
