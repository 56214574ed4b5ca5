/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/credentials.h"

#include "base/array.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/overflow_ids.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_GROUPS = 65536 }; /* NGROUPS_MAX */

/* ---- /proc ---- */

/* Reads /proc/PID/NAME (PID 0: self). */
static errint_t
proc_read_file(pid_t pid, const char *name, struct buffer *text)
{
    char path[64];
    errint_t error;

    if (pid)
        snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    else
        snprintf(path, sizeof(path), "/proc/self/%s", name);
    error = file_read_text(path, text);
    if (error)
        buffer_free(text);
    return error;
}

/* Returns the text after `label` ("\nGroups:"), or NULL if there is no such line. */
static const char *
proc_find_line(const char *text, const char *label)
{
    const char *line = text ? strstr(text, label) : NULL;

    return line ? line + strlen(label) : NULL;
}

/* Whether `id` is the real ID (as for access(2)) or the file system ID of a line of four
 * ("\nUid:"). */
static bool
proc_has_id(const char *status, const char *label, unsigned long id)
{
    const char *line = proc_find_line(status, label);
    unsigned long ids[4];

    return line && sscanf(line, "%lu %lu %lu %lu", &ids[0], &ids[1], &ids[2], &ids[3]) == 4 &&
           (ids[0] == id || ids[3] == id);
}

/* Whether /proc shows this process's own PID namespace. In that of a parent namespace the process
 * has several PIDs. */
static bool
proc_is_own(void)
{
    struct buffer status = BUFFER_INIT;
    const char *pids;
    char *end;
    bool own = false;

    if (proc_read_file(0, "status", &status) < 0)
        return false;
    pids = proc_find_line(status.data, "\nNSpid:");
    if (pids) {
        own = strtoul(pids, &end, 10) == (unsigned long)getpid() && *end == '\n';
    } else {
        pids = proc_find_line(status.data, "\nPid:"); /* no PID namespaces */
        own = pids && strtoul(pids, &end, 10) == (unsigned long)getpid();
    }
    buffer_free(&status);
    return own;
}

static bool proc_usable; /* constant after credentials_init() */

void
credentials_init(void)
{
    proc_usable = proc_is_own();
}

errint_t
credentials_from_status(const char *status, const struct caller *caller,
                        struct credentials *credentials)
{
    const char *at = proc_find_line(status, "\nGroups:");

    *credentials = (struct credentials){.uid = caller->uid, .gid = caller->gid};
    if (!at || !proc_has_id(status, "\nUid:", caller->uid) ||
        !proc_has_id(status, "\nGid:", caller->gid))
        return 0;
    credentials->groups_known = true;
    while (at += strspn(at, " \t"), *at >= '0' && *at <= '9') {
        char *end;
        unsigned long group = strtoul(at, &end, 10);

        if (credentials->group_count == MOST_GROUPS)
            break;
        at = end;
        if (!array_add(credentials->groups, credentials->group_count, (gid_t)group)) {
            credentials_free(credentials);
            return -ENOMEM;
        }
    }
    return 0;
}

bool
credentials_is_io_worker(const char *stat)
{
    enum { PF_IO_WORKER = 0x10 }; /* include/linux/sched.h */
    const char *name_end = stat ? strrchr(stat, ')') : NULL; /* a name may contain anything */
    unsigned long flags;

    return name_end && sscanf(name_end, ") %*c %*d %*d %*d %*d %*d %lu", &flags) == 1 &&
           (flags & PF_IO_WORKER);
}

/* Reads the status of the thread that a request comes from. Returns false if it says nothing about
 * the caller: the worker threads of io_uring act with the credentials of each request, and show
 * those with which they were created. */
static bool
read_status_of_caller(const struct caller *caller, struct buffer *status)
{
    struct buffer stat = BUFFER_INIT;
    bool is_worker;

    if (!proc_usable || caller->pid == 0 || proc_read_file(caller->pid, "stat", &stat) < 0)
        return false;
    is_worker = credentials_is_io_worker(stat.data);
    buffer_free(&stat);
    return !is_worker && proc_read_file(caller->pid, "status", status) == 0;
}

/* Whether /proc/A/NAME and /proc/B/NAME have the same text. */
static bool
proc_files_equal(pid_t a, pid_t b, const char *name)
{
    struct buffer x = BUFFER_INIT, y = BUFFER_INIT;
    bool equal = proc_read_file(a, name, &x) == 0 && proc_read_file(b, name, &y) == 0 && x.data &&
                 y.data && strcmp(x.data, y.data) == 0;

    buffer_free(&x);
    buffer_free(&y);
    return equal;
}

static bool
has_overriding_capability(const char *status)
{
    const char *line = proc_find_line(status, "\nCapEff:");
    uint64_t effective = line ? strtoull(line, NULL, 16) : 0;

    return effective & (1ull << CAP_DAC_OVERRIDE | 1ull << CAP_DAC_READ_SEARCH);
}

void
credentials_command(pid_t thread, char name[COMMAND_SIZE])
{
    struct buffer text = BUFFER_INIT;

    name[0] = '\0';
    if (!proc_usable || thread <= 0 || proc_read_file(thread, "comm", &text) < 0)
        return;
    snprintf(name, COMMAND_SIZE, "%.*s", (int)strcspn(text.data, "\n"), text.data);
    buffer_free(&text);
}

/* ---- of a process or a caller ---- */

errint_t
credentials_of_process(struct credentials *credentials)
{
    int count = getgroups(0, NULL);

    *credentials = (struct credentials){.uid = geteuid(), .gid = getegid(), .overrides = true};
    if (count < 0)
        return -EIO;
    credentials->groups = malloc(((size_t)count + 1) * sizeof(*credentials->groups));
    if (!credentials->groups)
        return -ENOMEM;
    count = getgroups(count, credentials->groups);
    credentials->group_count = count < 0 ? 0 : (size_t)count;
    return 0;
}

errint_t
credentials_of_caller(const struct caller *caller, struct credentials *credentials)
{
    struct buffer status = BUFFER_INIT;
    errint_t error;

    *credentials = (struct credentials){.uid = caller->uid, .gid = caller->gid};
    if (!read_status_of_caller(caller, &status))
        return 0;
    error = credentials_from_status(status.data, caller, credentials);
    buffer_free(&status);
    return error;
}

bool
credentials_may_override(const struct caller *caller)
{
    struct buffer status = BUFFER_INIT;
    bool may;

    if (caller->uid != 0 || !read_status_of_caller(caller, &status))
        return false;
    may = has_overriding_capability(status.data) && proc_files_equal(caller->pid, 0, "uid_map") &&
          proc_files_equal(caller->pid, 0, "gid_map");
    buffer_free(&status);
    return may;
}

void
credentials_free(struct credentials *credentials)
{
    free(credentials->groups);
    *credentials = (struct credentials){.uid = (uid_t)-1, .gid = (gid_t)-1};
}

/* ---- assuming them ---- */

/* By the system call: the C library changes all threads. */
static bool
set_groups_of_thread(const struct credentials *credentials)
{
    return syscall(SYS_setgroups, credentials->group_count, credentials->groups) == 0;
}

/* Makes all permitted capabilities effective, or only those for changing credentials. */
static bool
set_capabilities_of_thread(bool all)
{
    const uint32_t changing = 1u << CAP_SETUID | 1u << CAP_SETGID;
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {{0}};

    if (syscall(SYS_capget, &header, data) < 0)
        return false;
    data[0].effective = all ? data[0].permitted : data[0].permitted & changing;
    data[1].effective = all ? data[1].permitted : 0;
    return syscall(SYS_capset, &header, data) == 0;
}

static bool
set_credentials_of_thread(const struct credentials *credentials)
{
    if (!set_groups_of_thread(credentials))
        return false;
    setfsgid(credentials->gid);
    setfsuid(credentials->uid);
    /* setfsuid(2) and setfsgid(2) do not report errors. */
    if ((gid_t)setfsgid((gid_t)-1) != credentials->gid ||
        (uid_t)setfsuid((uid_t)-1) != credentials->uid)
        return false;
    /* Last: setfsuid(0) restores capabilities. */
    return set_capabilities_of_thread(credentials->overrides);
}

bool
credentials_assume(const struct credentials *credentials, const struct credentials *process)
{
    if (set_credentials_of_thread(credentials))
        return true;
    setfsuid(process->uid);
    setfsgid(process->gid);
    set_groups_of_thread(process);
    set_capabilities_of_thread(true);
    return false;
}

/* ---- by modes ---- */

static bool
is_in_group(const struct credentials *credentials, gid_t group)
{
    if (credentials->gid == group)
        return true;
    for (size_t i = 0; i < credentials->group_count; i++)
        if (credentials->groups[i] == group)
            return true;
    return false;
}

/* What the mode grants to a caller who is not the owner. If the caller may be in the file's group
 * or not, that is what both classes have. */
static mode_t
bits_of_group_or_others(const struct credentials *credentials, const struct stat *st)
{
    mode_t both = st->st_mode & st->st_mode >> 3;

    if (is_in_group(credentials, st->st_gid))
        return is_overflow_gid(st->st_gid) ? both : st->st_mode >> 3;
    return credentials->groups_known ? st->st_mode : both;
}

bool
credentials_have_unknown_groups(const struct credentials *credentials)
{
    for (size_t i = 0; i < credentials->group_count; i++)
        if (is_overflow_gid(credentials->groups[i]))
            return true;
    return !credentials->groups_known;
}

errint_t
credentials_permit(void *arg, int fd, int mask)
{
    const struct credentials *credentials = arg;
    struct stat st;
    mode_t granted;

    if (credentials->overrides)
        return 0;
    if (fstat(fd, &st) < 0 || file_may_have_acl(fd))
        return -EACCES;
    granted = bits_of_group_or_others(credentials, &st);
    if (is_same_user(st.st_uid, credentials->uid))
        granted = st.st_mode >> 6;
    else if (st.st_uid == credentials->uid) /* the owner or somebody else */
        granted &= st.st_mode >> 6;
    return (granted & (mode_t)mask) == (mode_t)mask ? 0 : -EACCES;
}
