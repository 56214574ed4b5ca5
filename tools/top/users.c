/* SPDX-License-Identifier: Apache-2.0 */
/* Reads links and tables in /proc, but never opens the files that they name: that could block on
 * the mount. */
#include "users.h"

#include "base/clock.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns the path relative to the mount; NULL if it is not a file of a view. */
static const char *
path_in_mount(const char *path, const char *point)
{
    size_t length = strcmp(point, "/") == 0 ? 0 : strlen(point);

    if (strncmp(path, point, length) != 0 || path[length] != '/' || !path[length + 1])
        return NULL;
    path += length + 1;
    return strncmp(path, ".fstfs/", 7) == 0 ? NULL : path;
}

static void
user_add_file(struct user *user, const char *file)
{
    for (size_t i = 0; i < user->file_count && i < USER_FILES; i++)
        if (strcmp(user->files[i], file) == 0)
            return;
    if (user->file_count < USER_FILES)
        snprintf(user->files[user->file_count], PATH_MAX, "%s", file);
    user->file_count++;
}

static void
scan_descriptors(int process, const char *point, struct user *user)
{
    int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    if (!stream) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(stream))) {
        char path[PATH_MAX];
        ssize_t length = readlinkat(fd, entry->d_name, path, sizeof(path) - 1);
        const char *file;

        if (length <= 0)
            continue;
        path[length] = '\0';
        file = path_in_mount(path, point);
        if (file)
            user_add_file(user, file);
    }
    closedir(stream);
}

static void
scan_mappings(int process, const char *point, struct user *user)
{
    int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC);
    FILE *table = fd >= 0 ? fdopen(fd, "re") : NULL;
    char *line = NULL;
    size_t size = 0;

    while (table && getline(&line, &size, table) > 0) {
        char *path = strchr(line, '/');
        const char *file = path ? path_in_mount(path, point) : NULL;

        if (!file)
            continue;
        path[strcspn(path, "\n")] = '\0';
        user_add_file(user, file);
    }
    free(line);
    if (table)
        fclose(table);
    else if (fd >= 0)
        close(fd);
}

static void
read_process_name(int process, struct user *user)
{
    int fd = openat(process, "comm", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, user->name, sizeof(user->name) - 1) : 0;

    user->name[length > 0 ? length : 0] = '\0';
    user->name[strcspn(user->name, "\n")] = '\0';
    if (fd >= 0)
        close(fd);
}

static void
scan_process(int proc, const char *name, const char *point, struct users *users)
{
    int process = openat(proc, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct user *user = &users->list[users->count];

    if (process < 0)
        return;
    user->pid = (pid_t)strtol(name, NULL, 10);
    user->file_count = 0;
    scan_descriptors(process, point, user);
    scan_mappings(process, point, user);
    if (user->file_count > 0 && users->count < USERS_MOST) {
        read_process_name(process, user);
        users->count++;
    } else if (user->file_count > 0) {
        users->left_out++;
    }
    close(process);
}

void
users_scan(const char *point, struct users *users)
{
    double begin = monotonic_seconds();
    const struct dirent *entry;
    DIR *proc;

    if (users->scanned > 0 && begin - users->scanned < 10 * users->scan_seconds)
        return;
    if (!users->list)
        users->list = calloc(USERS_MOST + 1, sizeof(*users->list));
    proc = users->list ? opendir("/proc") : NULL;
    users->count = users->left_out = 0;
    while (proc && (entry = readdir(proc)))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            scan_process(dirfd(proc), entry->d_name, point, users);
    if (proc)
        closedir(proc);
    users->scanned = begin;
    users->scan_seconds = monotonic_seconds() - begin;
}

void
users_free(struct users *users)
{
    free(users->list);
    *users = (struct users){0};
}
