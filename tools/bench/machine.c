/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include "common/mounts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

void
machine_read_file(const char *path, struct buffer *text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char piece[4096];
    ssize_t got;

    buffer_add_text(text, "");
    if (fd < 0)
        return;
    while ((got = read(fd, piece, sizeof(piece))) > 0)
        buffer_add(text, piece, (size_t)got);
    close(fd);
}

/* Returns the number after `key` in a file of values in KiB, converted to bytes; 0: not found. */
static uint64_t
kib_of(const char *path, const char *key)
{
    struct buffer text = BUFFER_INIT;
    const char *at;
    uint64_t found = 0;

    machine_read_file(path, &text);
    at = text.data ? strstr(text.data, key) : NULL;
    if (at)
        found = strtoull(at + strlen(key), NULL, 10) << 10;
    buffer_free(&text);
    return found;
}

/* Leaves `name` empty if /proc/cpuinfo has no name. */
static void
name_processor(char name[80])
{
    struct buffer text = BUFFER_INIT;
    const char *at;

    machine_read_file("/proc/cpuinfo", &text);
    at = text.data ? strstr(text.data, "model name") : NULL;
    at = at ? strstr(at, ": ") : NULL;
    if (at)
        snprintf(name, 80, "%.*s", (int)strcspn(at + 2, "\n"), at + 2);
    buffer_free(&text);
}

void
machine_describe(struct machine *machine)
{
    struct utsname names;

    *machine = (struct machine){.root = geteuid() == 0};
    if (uname(&names) == 0)
        snprintf(machine->kernel, sizeof(machine->kernel), "%s %.60s", names.sysname,
                 names.release);
    name_processor(machine->processor);
    machine->processors = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
    machine->memory = kib_of("/proc/meminfo", "MemTotal:");
}

/* A limit of a cgroup; UINT64_MAX: none. */
static uint64_t
cgroup_limit(const char *hierarchy, const char *group, const char *file)
{
    struct buffer text = BUFFER_INIT;
    char path[PATH_MAX];
    uint64_t number = UINT64_MAX;

    snprintf(path, sizeof(path), "%s%s/%s", hierarchy, group, file);
    machine_read_file(path, &text);
    if (text.data && text.data[0] >= '0' && text.data[0] <= '9')
        number = strtoull(text.data, NULL, 10);
    buffer_free(&text);
    return number;
}

/* The lowest limit of a cgroup and its ancestors; truncates `group`. In a container the visible
 * root may have a limit, too. */
static uint64_t
cgroup_smallest_limit(const char *hierarchy, char *group, const char *file)
{
    uint64_t least = UINT64_MAX;
    char *end;

    do {
        uint64_t most = cgroup_limit(hierarchy, group, file);

        if (most < least)
            least = most;
        end = strrchr(group, '/');
        if (end)
            *end = '\0';
    } while (end);
    return least;
}

/* The memory limit of this process, by cgroups of version 1 and 2. */
static uint64_t
cgroup_memory_limit(void)
{
    struct buffer text = BUFFER_INIT;
    uint64_t room = UINT64_MAX;
    char *rest = NULL, *line;

    machine_read_file("/proc/self/cgroup", &text);
    line = text.data ? strtok_r(text.data, "\n", &rest) : NULL;
    for (; line; line = strtok_r(NULL, "\n", &rest)) { /* number:controllers:/group */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        uint64_t most = UINT64_MAX;

        if (!group)
            continue;
        *group++ = '\0';
        if (controllers[1] == '\0')
            most = cgroup_smallest_limit("/sys/fs/cgroup", group, "memory.max");
        else if (strcmp(controllers + 1, "memory") == 0)
            most = cgroup_smallest_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
        if (most < room)
            room = most;
    }
    buffer_free(&text);
    return room;
}

uint64_t
machine_memory_available(void)
{
    uint64_t available = kib_of("/proc/meminfo", "MemAvailable:");
    uint64_t room = cgroup_memory_limit();
    struct rlimit limit;

    if (room < available)
        available = room;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < available)
        available = limit.rlim_cur;
    return available;
}

uint64_t
machine_peak_memory(pid_t pid)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    return kib_of(path, "VmHWM:");
}

void
machine_storage_of(const char *path, char text[160])
{
    struct mount_entry entry;

    if (mounts_find(path, &entry))
        snprintf(text, 160, "%.30s on %.100s", entry.type, entry.device);
    else
        snprintf(text, 160, "unknown storage");
}
