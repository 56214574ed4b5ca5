/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/first_look.h"

#include "base/file.h"
#include "base/log.h"
#include "base/open.h"
#include "catalog/group.h"

#include <dirent.h>
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

/* Whether the file starts like one of its container. The catalog reads the header later. */
static bool
starts_like(int directory, const char *name, const struct container *container)
{
    /* Opening a FIFO or a device, to which a link may lead, has side effects. */
    int at = openat(directory, name, O_PATH | O_CLOEXEC), fd = -1;
    unsigned char first[CONTAINER_FIRST_BYTES];
    struct stat st;
    bool is_alike;

    if (at >= 0 && fstat(at, &st) == 0 && S_ISREG(st.st_mode))
        fd = open_again(at, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (at >= 0)
        close(at);
    if (fd < 0)
        return false;
    /* Disables readahead, which would leave megabytes of the file in the page cache. */
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    is_alike = pread(fd, first, sizeof(first), 0) == (ssize_t)sizeof(first) &&
               container->starts_like(first, (uint64_t)st.st_size);
    close(fd);
    return is_alike;
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
        const struct container *container = group_file_container(name);

        look->found = starts_like(directory, name, container);
        look->found_invalid |= !look->found && !container->is_converted;
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
        log_warning(
            "%s: found no checkpoint (*.safetensors, *.gguf, or *.bin, *.pt, *.pth or *.ckpt of "
            "PyTorch); other files are shown unchanged",
            quoted(name, source, strlen(source)));
        break;
    case NONE_READABLE:
        log_warning("%s: found no valid checkpoint: every *.safetensors or *.gguf is invalid or "
                    "not readable "
                    "by this user, see .fstfs/problems",
                    quoted(name, source, strlen(source)));
        break;
    case FOUND:
    case UNKNOWN:
        break;
    }
}
