/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/first_look.h"

#include "base/file.h"
#include "base/log.h"
#include "base/quote.h"
#include "catalog/group.h"
#include "format/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The exit status of the child. */
enum finding { FOUND, NO_CHECKPOINT, NONE_READABLE, UNKNOWN };

struct look {
    char *directories[FIRST_LOOK_DIRECTORIES]; /* seen so far */
    size_t count, entries;
    bool found_invalid; /* a file named like a checkpoint that is not one */
    bool gave_up; /* at a limit or an error */
    bool found;
};

/* Whether the file starts with a valid header length and the first byte of a header. The catalog
 * parses the header later. */
static bool
starts_like_safetensors(int directory, const char *name)
{
    /* O_NONBLOCK: it may be a FIFO. */
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    unsigned char head[9];
    uint64_t length = 0;
    struct stat st;
    bool sound;

    if (fd < 0)
        return false;
    /* Disables readahead, which would leave megabytes of the file in the page cache. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    sound = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
            pread(fd, head, sizeof(head), 0) == (ssize_t)sizeof(head) && head[8] == '{';
    close(fd);
    for (int i = 7; sound && i >= 0; i--)
        length = length << 8 | head[i];
    return sound && length <= ST_MAX_HEADER && length <= (uint64_t)st.st_size - 8;
}

static void
queue_directory(struct look *look, const char *above, const char *name)
{
    char *path = look->count < FIRST_LOOK_DIRECTORIES ? path_join(above, name) : NULL;

    if (!path)
        look->gave_up = true;
    else
        look->directories[look->count++] = path;
}

static void
search_entry(struct look *look, int directory, const char *path, const struct dirent *entry)
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
        queue_directory(look, path, name);
    } else if (group_single_name(name, NULL)) {
        look->found = starts_like_safetensors(directory, name);
        look->found_invalid |= !look->found;
    }
}

static void
search_directory(struct look *look, const char *path)
{
    DIR *stream = opendir(path);
    struct dirent *entry;

    if (!stream) {
        look->gave_up = true;
        return;
    }
    while (!look->found && !look->gave_up && (entry = readdir(stream)))
        search_entry(look, dirfd(stream), path, entry);
    closedir(stream);
}

/* Breadth first. */
static enum finding
search_source(const char *source)
{
    static struct look look;

    queue_directory(&look, source, ".");
    for (size_t i = 0; i < look.count && !look.found && !look.gave_up; i++)
        search_directory(&look, look.directories[i]);
    for (size_t i = 0; i < look.count; i++)
        free(look.directories[i]);
    if (look.found)
        return FOUND;
    if (look.gave_up)
        return UNKNOWN;
    return look.found_invalid ? NONE_READABLE : NO_CHECKPOINT;
}

/* Returns the child's exit status, or UNKNOWN after killing it at the time limit. A child in an
 * uninterruptible system call is not waited for. */
static enum finding
await_finding(pid_t child)
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

/* The child may outlive its parent; it must not keep the streams open for a process that waits for
 * their end. */
static void
detach_streams(void)
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
        detach_streams();
        _exit((int)search_source(source));
    }
    switch (await_finding(child)) {
    case NO_CHECKPOINT:
        log_warning("%s: found no checkpoint (*.safetensors); other files are shown unchanged",
                    quoted(name, source, strlen(source)));
        break;
    case NONE_READABLE:
        log_warning("%s: found no valid checkpoint: every *.safetensors is invalid or not readable "
                    "by this user, see .fstfs/problems",
                    quoted(name, source, strlen(source)));
        break;
    case FOUND:
    case UNKNOWN:
        break;
    }
}
