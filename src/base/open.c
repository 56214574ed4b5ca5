/* SPDX-License-Identifier: Apache-2.0 */
#include "base/open.h"

#include "base/eintr.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { NO_DESCRIPTOR_REPEATS_MOST = 50, NO_DESCRIPTOR_PAUSE_NS = 5000000 };

static int (*other_opener)(int directory, const char *path, int flags, uint64_t mount);
static const struct resolve_link_rules *owner_rules; /* NULL: owners of links are not checked */

void
open_set_other(int (*other)(int directory, const char *path, int flags, uint64_t mount))
{
    other_opener = other;
}

void
open_check_link_owners(const struct resolve_link_rules *rules)
{
    owner_rules = rules;
}

int
open_again(int fd, int flags)
{
    char link[sizeof("/proc/self/fd/") + 3 * sizeof(int)];

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    return eintr_openat(AT_FDCWD, link, flags);
}

/* Reopens a file or directory that is open with O_PATH, and closes `fd`. Opening any other type may
 * have side effects, such as waking a process that waits for a FIFO or rewinding a tape. */
static int
reopen(int fd, int flags)
{
    struct resolve_stat st;
    int opened = resolve_stat(fd, &st);

    if (!opened && !S_ISREG(st.mode) && !S_ISDIR(st.mode))
        opened = -ENXIO;
    if (!opened)
        opened = open_again(fd, flags);
    close(fd);
    return opened;
}

/* ---- opening ---- */

static struct resolve_rules
own_rules(void)
{
    return (struct resolve_rules){
        .user = geteuid(), .owners = owner_rules, .top = owner_rules ? owner_rules->top : -1};
}

/* As open_unless_excluded(). -ENOENT and *no_proc: the file exists, but /proc is not mounted. */
static int
open_in_process(int directory, const char *path, int flags, const struct resolve_mounts *mounts,
                uint64_t *refused, bool *no_proc)
{
    const struct resolve_rules own = own_rules();
    int fd = resolve_path(directory, path, flags, &own, mounts, refused);
    struct stat st;
    int opened = fd >= 0 && !(flags & O_PATH) ? reopen(fd, flags) : fd;

    *no_proc = fd >= 0 && opened == -ENOENT && stat("/proc/self", &st) < 0;
    return opened;
}

/* As open_at(), but -EXDEV for the excluded device. `mounts`, `refused`: as open_local(); NULL: any
 * mount. */
static int
open_unless_excluded(int directory, const char *path, int flags,
                     const struct resolve_mounts *mounts, uint64_t *refused)
{
    bool no_proc;
    int fd;

    if (!resolve_has_excluded())
        return eintr_openat(directory, path, flags);
    fd = open_in_process(directory, path, flags, mounts, refused, &no_proc);
    if (fd == -ESTALE) {
        /* A cached NFS directory is stale. The kernel revalidates it only when it resolves the
         * whole path. */
        fd = eintr_openat(directory, path, O_PATH | O_CLOEXEC);
        if (fd >= 0)
            close(fd);
        fd = open_in_process(directory, path, flags, mounts, refused, &no_proc);
    }
    return no_proc ? eintr_openat(directory, path, flags) : fd;
}

/*
 * Whether to open again because no descriptor was free. Every walk holds a few for a short time, so
 * many walks at once can use up a low limit. The walk has closed its own before it waits, since
 * walks that wait with descriptors open would wait for each other.
 */
static bool
no_descriptor_repeat(int fd, unsigned *repeats)
{
    if (!error_is_no_descriptor(fd) || *repeats == NO_DESCRIPTOR_REPEATS_MOST)
        return false;
    ++*repeats;
    nanosleep(&(struct timespec){0, NO_DESCRIPTOR_PAUSE_NS}, NULL);
    return true;
}

int
open_at_mount(int directory, const char *path, int flags, uint64_t mount, uint64_t *refused)
{
    struct resolve_mounts mounts = {.ids = {mount}};
    struct resolve_stat st;
    int fd;

    if (mount != 0 && resolve_stat(directory, &st) == 0 && st.mount != 0) {
        mounts.ids[1] = st.mount;
        mounts.count = 2;
    }
    fd = open_unless_excluded(directory, path, flags, mounts.count ? &mounts : NULL, refused);
    if (fd == -EACCES && other_opener && !(flags & O_PATH))
        return other_opener(directory, path, flags, mount);
    return fd == -EXDEV ? -ELOOP : fd;
}

int
open_at(int directory, const char *path, int flags)
{
    unsigned repeats = 0;
    int fd;

    do
        fd = open_at_mount(directory, path, flags, 0, NULL);
    while (no_descriptor_repeat(fd, &repeats));
    return fd;
}

int
open_local(int directory, const char *path, const struct resolve_mounts *mounts, uint64_t *refused)
{
    const struct resolve_rules own = own_rules();
    unsigned repeats = 0;
    int fd;

    do
        fd = resolve_path(directory, path, 0, &own, mounts, refused);
    while (no_descriptor_repeat(fd, &repeats));
    return fd;
}

errint_t
open_stat(int directory, const char *path, struct stat *st)
{
    unsigned waits = 0, repeats = 0;
    errint_t error = 0;
    int fd, failed;

    do
        fd = open_unless_excluded(directory, path, O_PATH | O_CLOEXEC, NULL, NULL);
    while (no_descriptor_repeat(fd, &waits));
    if (fd < 0)
        return fd;
    do
        failed = fstat(fd, st);
    while (failed && eintr_repeat(&repeats));
    if (failed)
        error = -errno;
    close(fd);
    return error;
}
