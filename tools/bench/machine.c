/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include "base/file.h"
#include "common/mounts.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Leaves `name` empty if /proc/cpuinfo has no name. */
static void
name_processor(char name[80])
{
    struct buffer text = BUFFER_INIT;
    const char *at;

    file_read_text("/proc/cpuinfo", &text);
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
    machine->memory = file_read_number("/proc/meminfo", "MemTotal:", 0) << 10;
}

uint64_t
machine_peak_memory(pid_t pid)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    return file_read_number(path, "VmHWM:", 0) << 10;
}

void
machine_storage_of(const char *path, char text[160])
{
    struct mountinfo mount;

    if (mounts_find(path, &mount))
        snprintf(text, 160, "%.30s on %.100s", mount.type, mount.source);
    else
        snprintf(text, 160, "unknown storage");
    mountinfo_free(&mount);
}
