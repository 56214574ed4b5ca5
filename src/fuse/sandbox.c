/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/sandbox.h"

#include "fuse/system_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Records the result of a part; error 0: it is on. */
static void
set_part(struct sandbox_part *part, errint_t error)
{
    snprintf(part->why, sizeof(part->why), "%s", error ? strerror(-error) : "");
}

static void
set_all_parts_off(struct sandbox *sandbox, const char *why)
{
    struct sandbox_part off;

    snprintf(off.why, sizeof(off.why), "%s", why);
    sandbox->no_new_privileges = sandbox->capabilities = sandbox->landlock = sandbox->system_calls =
        off;
}

void
sandbox_init(struct sandbox *sandbox, bool wanted, bool passthrough)
{
    *sandbox = (struct sandbox){.wanted = wanted, .passthrough = passthrough, .tasks = -1};
    set_all_parts_off(sandbox, "not wanted");
}

void
sandbox_refuse(struct sandbox *sandbox, const char *why, errint_t error)
{
    char text[sizeof(sandbox->landlock.why)];

    snprintf(text, sizeof(text), "%s: %s", why, strerror(-error));
    sandbox->wanted = false;
    set_all_parts_off(sandbox, text);
}

/* ---- capabilities ---- */

struct capabilities {
    struct __user_cap_header_struct header;
    struct __user_cap_data_struct data[2];
};

static bool
is_permitted(const struct capabilities *capabilities, unsigned capability)
{
    return capabilities->data[capability / 32].permitted & 1u << capability % 32;
}

/* Copies a capability of `from`; returns false if it is not permitted there. */
static bool
keep_capability(struct capabilities *to, const struct capabilities *from, unsigned capability)
{
    if (!is_permitted(from, capability))
        return false;
    to->data[capability / 32].permitted |= 1u << capability % 32;
    to->data[capability / 32].effective |= 1u << capability % 32;
    return true;
}

static void
keep_capabilities(const struct sandbox *sandbox, struct capabilities *kept,
                  const struct capabilities *now)
{
    /* Root must be able to read every file; the opener checks what callers may read. Docker grants
     * only the second one. */
    if (!keep_capability(kept, now, CAP_DAC_READ_SEARCH))
        keep_capability(kept, now, CAP_DAC_OVERRIDE);
    keep_capability(kept, now, CAP_LEASE); /* leases on files of other owners: base/lease.h */
    if (sandbox->passthrough)
        keep_capability(kept, now, CAP_SYS_ADMIN);
    if (sandbox->credentials && is_permitted(now, CAP_SETUID) && is_permitted(now, CAP_SETGID)) {
        keep_capability(kept, now, CAP_SETUID);
        keep_capability(kept, now, CAP_SETGID);
    }
}

static errint_t
drop_capabilities(const struct sandbox *sandbox)
{
    struct capabilities now = {.header = {_LINUX_CAPABILITY_VERSION_3, 0}};
    struct capabilities kept = now;

    if (syscall(SYS_capget, &now.header, now.data) < 0)
        return -errno;
    if (!sandbox->no_files)
        keep_capabilities(sandbox, &kept, &now);
    kept.header = now.header;
    return syscall(SYS_capset, &kept.header, kept.data) < 0 ? -errno : 0;
}

/* ---- Landlock: landlock(7). By numbers, since older headers lack some of it ---- */

enum {
    CREATE_RULESET = 444, /* system calls; the same numbers on all machines */
    ADD_RULE = 445,
    RESTRICT_SELF = 446,
    CREATE_RULESET_VERSION = 1, /* a flag */
    RULE_PATH_BENEATH = 1,
};

#define READ_FILE (1ull << 2)
#define READ_DIRECTORY (1ull << 3)

/* Rights that a ruleset denies unless a rule allows them. */
struct landlock_ruleset {
    uint64_t files, network, scopes;
};

struct landlock_path_rule {
    uint64_t rights;
    int32_t directory;
} __attribute__((packed));

static int
landlock_version(void)
{
    return (int)syscall(CREATE_RULESET, NULL, 0, CREATE_RULESET_VERSION);
}

bool
sandbox_confines_files(const struct sandbox *sandbox)
{
    return sandbox->wanted && landlock_version() > 0;
}

/* Creates a ruleset of all rights that this version knows. A descriptor or a negative errno. */
static int
create_ruleset(int version, struct landlock_ruleset *all)
{
    size_t size = offsetof(struct landlock_ruleset, network);
    int rules;

    *all = (struct landlock_ruleset){.files = (1ull << 13) - 1};
    if (version >= 2)
        all->files |= 1ull << 13; /* renaming to another directory */
    if (version >= 3)
        all->files |= 1ull << 14; /* truncating */
    if (version >= 4) {
        all->network = 3; /* TCP: bind, connect */
        size = offsetof(struct landlock_ruleset, scopes);
    }
    if (version >= 5)
        all->files |= 1ull << 15; /* ioctl of devices */
    if (version >= 6) {
        all->scopes = 3; /* abstract sockets and signals of other processes */
        size = sizeof(*all);
    }
    rules = (int)syscall(CREATE_RULESET, all, size, 0);
    return rules < 0 ? -errno : rules;
}

static errint_t
allow_beneath(int rules, int directory, uint64_t rights)
{
    struct landlock_path_rule rule = {rights, directory};

    return syscall(ADD_RULE, rules, RULE_PATH_BENEATH, &rule, 0) < 0 ? -errno : 0;
}

static errint_t
allow_path(int rules, const char *path, uint64_t rights)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    errint_t error;

    if (fd < 0)
        return -errno;
    error = allow_beneath(rules, fd, rights);
    close(fd);
    return error;
}

static errint_t
enter_landlock(const struct sandbox *sandbox, int directory)
{
    const uint64_t reading = READ_FILE | READ_DIRECTORY;
    int version = landlock_version(), rules;
    struct landlock_ruleset all;
    errint_t error = 0;

    if (version < 0)
        return -errno;
    rules = create_ruleset(version, &all);
    if (rules < 0)
        return rules;
    if (SANITIZED) {
        error = allow_path(rules, "/", all.files);
    } else if (directory < 0 && !sandbox->no_files) {
        error = allow_path(rules, "/", reading);
    } else if (directory >= 0) {
        error = allow_beneath(rules, directory, reading);
        if (!error && sandbox->tasks >= 0)
            error = allow_beneath(rules, sandbox->tasks, READ_FILE);
        /* The C library reads the number of processors there. */
        if (!error)
            error = allow_path(rules, "/sys/devices/system/cpu", reading);
        if (error == -ENOENT)
            error = 0;
    }
    if (!error && syscall(RESTRICT_SELF, rules, 0) < 0)
        error = -errno;
    close(rules);
    return error;
}

/* ---- all of it ---- */

static void *
exit_thread(void *arg)
{
    pthread_exit(arg);
}

/* glibc loads a library when a thread is first cancelled or calls pthread_exit(), which Landlock
 * would prevent. libfuse cancels its threads at the end. Uses pthread_exit() because
 * pthread_cancel() sends a signal, which fails with RLIMIT_SIGPENDING at 0. */
static void
load_cancellation_library(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, exit_thread, NULL) == 0)
        pthread_join(thread, NULL);
}

void
sandbox_enter(struct sandbox *sandbox, int directory)
{
    errint_t error;

    if (!sandbox->wanted)
        return;
    if (SANITIZED)
        directory = -1;
    load_cancellation_library();
    /* Must be first: without it Landlock and seccomp need CAP_SYS_ADMIN. */
    set_part(&sandbox->no_new_privileges, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ? -errno : 0);
    error = enter_landlock(sandbox, directory);
    set_part(&sandbox->landlock, error);
    if (error == -ENOSYS || error == -EOPNOTSUPP)
        snprintf(sandbox->landlock.why, sizeof(sandbox->landlock.why),
                 "the kernel does not support it");
    sandbox->confined = !error && directory >= 0;
    set_part(&sandbox->capabilities, drop_capabilities(sandbox));
}

void
sandbox_seal(struct sandbox *sandbox)
{
    struct sandbox_part *part = &sandbox->system_calls;
    errint_t error;

    if (!sandbox->wanted)
        return;
    error = system_calls_restrict(sandbox->passthrough, sandbox->credentials);
    set_part(part, error);
    if (error == -ENOTSUP)
        snprintf(part->why, sizeof(part->why), "not implemented for this architecture");
    else if (error == -EBUSY)
        snprintf(part->why, sizeof(part->why), "a thread has a filter of its own");
}

/* ---- status ---- */

void
sandbox_status(const struct sandbox *sandbox, uint64_t opened_outside, struct buffer *out)
{
    buffer_add_char(out, '{');
    buffer_add_json_switch(out, "no_new_privileges", sandbox->no_new_privileges.why);
    buffer_add_json_switch(out, "capabilities", sandbox->capabilities.why);
    buffer_add_json_switch(out, "landlock", sandbox->landlock.why);
    buffer_add_json_switch(out, "system_calls", sandbox->system_calls.why);
    buffer_addf(out, "\"reads\":\"%s\"", sandbox->confined ? "the source" : "any file");
    if (sandbox->confined)
        buffer_addf(out, ",\"opened_outside\":%" PRIu64, opened_outside);
    buffer_add_char(out, '}');
}
