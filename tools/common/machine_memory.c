/* SPDX-License-Identifier: Apache-2.0 */
#include "common/machine_memory.h"

#include "base/file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* The names of a hierarchy of cgroups. */
struct cgroup_version {
    const char *hierarchy, *limit, *usage, *cache; /* cache: a key of memory.stat */
};

static const struct cgroup_version cgroup_1 = {
    "/sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "\ntotal_cache ",
};
static const struct cgroup_version cgroup_2 = {
    "/sys/fs/cgroup",
    "memory.max",
    "memory.current",
    "\nfile ",
};

/* As file_read_number(), for a file of a cgroup. Returns `none` for "max", too. */
static uint64_t
cgroup_number(const struct cgroup_version *version, const char *group, const char *file,
              const char *key, uint64_t none)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s%s/%s", version->hierarchy, group, file);
    return file_read_number(path, key, none);
}

/* The bytes that a cgroup can still allocate: its limit less its usage, without its page cache. */
static uint64_t
cgroup_room(const struct cgroup_version *version, const char *group)
{
    uint64_t limit = cgroup_number(version, group, version->limit, "", UINT64_MAX);
    uint64_t used = cgroup_number(version, group, version->usage, "", 0);
    uint64_t cache = cgroup_number(version, group, "memory.stat", version->cache, 0);

    used = used > cache ? used - cache : 0;
    if (limit == UINT64_MAX)
        return limit;
    return limit > used ? limit - used : 0;
}

/* The minimum of cgroup_room() of a cgroup and its ancestors; truncates `group`. In a container the
 * visible root may have a limit, too. */
static uint64_t
cgroup_least_room(const struct cgroup_version *version, char *group)
{
    uint64_t least = UINT64_MAX;
    char *end;

    do {
        uint64_t room = cgroup_room(version, group);

        if (room < least)
            least = room;
        end = strrchr(group, '/');
        if (end)
            *end = '\0';
    } while (end);
    return least;
}

/* The bytes that this process can still allocate by the limits of cgroups v1 and v2. */
static uint64_t
cgroup_memory_room(void)
{
    struct buffer text = BUFFER_INIT;
    uint64_t room = UINT64_MAX;
    char *rest = NULL, *line;

    file_read_text("/proc/self/cgroup", &text);
    line = text.data ? strtok_r(text.data, "\n", &rest) : NULL;
    for (; line; line = strtok_r(NULL, "\n", &rest)) { /* number:controllers:/group */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        uint64_t one = UINT64_MAX;

        if (!group)
            continue;
        *group++ = '\0';
        if (controllers[1] == '\0')
            one = cgroup_least_room(&cgroup_2, group);
        else if (strcmp(controllers + 1, "memory") == 0)
            one = cgroup_least_room(&cgroup_1, group);
        if (one < room)
            room = one;
    }
    buffer_free(&text);
    return room;
}

uint64_t
machine_memory_available(void)
{
    uint64_t available = file_read_number("/proc/meminfo", "MemAvailable:", 0) << 10;
    uint64_t room = cgroup_memory_room();
    struct rlimit limit;

    if (room < available)
        available = room;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < available)
        available = limit.rlim_cur;
    return available;
}
