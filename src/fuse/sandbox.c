/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/sandbox.h"

#include "fuse/opener.h"
#include "fuse/system_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void __attribute__((format(printf, 2, 3)))
refused(struct sandbox_part *part, const char *format, ...)
{
    va_list arguments;

    part->on = false;
    va_start(arguments, format);
    vsnprintf(part->why, sizeof(part->why), format, arguments);
    va_end(arguments);
}

static void
done(struct sandbox_part *part)
{
    part->on = true;
}

static void
refuse_all(struct sandbox *sandbox, const char *why)
{
    refused(&sandbox->no_new_privileges, "%s", why);
    refused(&sandbox->capabilities, "%s", why);
    refused(&sandbox->landlock, "%s", why);
    refused(&sandbox->system_calls, "%s", why);
}

void
sandbox_init(struct sandbox *sandbox, bool wanted, bool passthrough)
{
    memset(sandbox, 0, sizeof(*sandbox));
    sandbox->wanted = wanted;
    sandbox->passthrough = passthrough;
    refuse_all(sandbox, "not wanted");
}

void
sandbox_refuse(struct sandbox *sandbox, const char *why, errint_t error)
{
    char text[sizeof(sandbox->landlock.why)];

    snprintf(text, sizeof(text), "%s: %s", why, strerror(-error));
    sandbox->wanted = false;
    refuse_all(sandbox, text);
}

/* ---- privileges ---- */

static void
give_up_new_privileges(struct sandbox *sandbox)
{
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        done(&sandbox->no_new_privileges);
    else
        refused(&sandbox->no_new_privileges, "%s", strerror(errno));
}

struct capabilities {
    struct __user_cap_header_struct header;
    struct __user_cap_data_struct data[2];
};

static bool
has(const struct capabilities *capabilities, unsigned one)
{
    return capabilities->data[one / 32].permitted & 1u << one % 32;
}

static void
keep(struct capabilities *capabilities, unsigned one)
{
    capabilities->data[one / 32].permitted |= 1u << one % 32;
    capabilities->data[one / 32].effective |= 1u << one % 32;
}

static void
give_up_capabilities(struct sandbox *sandbox)
{
    struct capabilities now = {.header = {_LINUX_CAPABILITY_VERSION_3, 0}};
    struct capabilities kept = now;

    if (syscall(SYS_capget, &now.header, now.data) < 0) {
        refused(&sandbox->capabilities, "%s", strerror(errno));
        return;
    }
    /* Root must be able to read every file; the opener checks what its callers may read.
     * Docker gives its containers only the greater of the two. */
    if (has(&now, CAP_DAC_READ_SEARCH))
        keep(&kept, CAP_DAC_READ_SEARCH);
    else if (has(&now, CAP_DAC_OVERRIDE))
        keep(&kept, CAP_DAC_OVERRIDE);
    /* Leases on files of other owners (base/lease.h). */
    if (has(&now, CAP_LEASE))
        keep(&kept, CAP_LEASE);
    if (sandbox->passthrough && has(&now, CAP_SYS_ADMIN))
        keep(&kept, CAP_SYS_ADMIN);
    if (sandbox->credentials && has(&now, CAP_SETUID) && has(&now, CAP_SETGID)) {
        keep(&kept, CAP_SETUID);
        keep(&kept, CAP_SETGID);
    }
    kept.header = now.header;
    if (syscall(SYS_capset, &kept.header, kept.data) == 0)
        done(&sandbox->capabilities);
    else
        refused(&sandbox->capabilities, "%s", strerror(errno));
}

/* ---- files: Landlock (landlock(7)), by the numbers of its system calls, which are the
 * same on all machines, since older headers have it not or not all of it ---- */

enum {
    CREATE_RULESET = 444,
    ADD_RULE = 445,
    RESTRICT_SELF = 446,
    ASK_VERSION = 1,
    PATH_BENEATH = 1,
};

#define READ_FILE (1ull << 2)
#define READ_DIRECTORY (1ull << 3)
#define FILE_RIGHTS_1 ((1ull << 13) - 1)
#define FILE_RIGHT_MOVE (1ull << 13) /* from version 2 on */
#define FILE_RIGHT_TRUNCATE (1ull << 14) /* 3 */
#define NETWORK_RIGHTS 3ull /* 4: TCP */
#define FILE_RIGHT_DEVICE (1ull << 15) /* 5 */
#define SCOPES 3ull /* 6: abstract sockets, signals */

struct ruleset {
    uint64_t files, network, scopes;
};

struct beneath {
    uint64_t rights;
    int32_t directory;
} __attribute__((packed));

static int
landlock_version(void)
{
    return (int)syscall(CREATE_RULESET, NULL, 0, ASK_VERSION);
}

bool
sandbox_shuts_files(const struct sandbox *sandbox)
{
    return sandbox->wanted && landlock_version() > 0;
}

/* All that this version of Landlock can forbid. */
static struct ruleset
all_rights(int version)
{
    struct ruleset all = {.files = FILE_RIGHTS_1};

    if (version >= 2)
        all.files |= FILE_RIGHT_MOVE;
    if (version >= 3)
        all.files |= FILE_RIGHT_TRUNCATE;
    if (version >= 4)
        all.network = NETWORK_RIGHTS;
    if (version >= 5)
        all.files |= FILE_RIGHT_DEVICE;
    if (version >= 6)
        all.scopes = SCOPES;
    return all;
}

static size_t
ruleset_size(int version)
{
    if (version >= 6)
        return sizeof(struct ruleset);
    return version >= 4 ? offsetof(struct ruleset, scopes) : offsetof(struct ruleset, network);
}

static bool
allow(int rules, int directory, uint64_t rights)
{
    struct beneath beneath = {rights, directory};

    return syscall(ADD_RULE, rules, PATH_BENEATH, &beneath, 0) == 0;
}

static bool
allow_path(int rules, const char *path, uint64_t rights)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    bool allowed = fd >= 0 && allow(rules, fd, rights);

    if (fd >= 0)
        close(fd);
    return allowed;
}

static void
shut_files(struct sandbox *sandbox, int directory)
{
    int version = landlock_version(), rules;
    struct ruleset all = all_rights(version);
    bool allowed;

    if (version <= 0) {
        refused(&sandbox->landlock, "%s",
                errno == ENOSYS || errno == EOPNOTSUPP ? "the kernel has it not" : strerror(errno));
        return;
    }
    rules = (int)syscall(CREATE_RULESET, &all, ruleset_size(version), 0);
    if (rules < 0) {
        refused(&sandbox->landlock, "%s", strerror(errno));
        return;
    }
    if (directory >= 0 && !SANITIZED)
        allowed = allow(rules, directory, READ_FILE | READ_DIRECTORY) &&
                  /* How many processors there are. */
                  (allow_path(rules, "/sys/devices/system/cpu", READ_FILE | READ_DIRECTORY) ||
                   errno == ENOENT);
    else
        allowed = allow_path(rules, "/", SANITIZED ? all.files : READ_FILE | READ_DIRECTORY);
    if (!allowed || syscall(RESTRICT_SELF, rules, 0) < 0) {
        refused(&sandbox->landlock, "%s", strerror(errno));
    } else {
        done(&sandbox->landlock);
        sandbox->shut_in = directory >= 0 && !SANITIZED;
    }
    close(rules);
}

/* ---- before: what a library does late, and could not any more ---- */

static void *
wait_for_cancel(void *arg)
{
    for (;;)
        pause();
    return NULL;
}

static void
load_late_parts(void)
{
    pthread_t thread;

    /* glibc loads a library at the first cancellation of a thread; libfuse cancels
     * its threads at the end. */
    if (pthread_create(&thread, NULL, wait_for_cancel, NULL) == 0) {
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
}

void
sandbox_enter(struct sandbox *sandbox, int directory)
{
    if (!sandbox->wanted)
        return;
    load_late_parts();
    give_up_new_privileges(sandbox);
    /* Without that, only who has CAP_SYS_ADMIN may do this. */
    shut_files(sandbox, directory);
    give_up_capabilities(sandbox);
}

/* ---- system calls ---- */

void
sandbox_seal(struct sandbox *sandbox)
{
    errint_t error;

    if (!sandbox->wanted)
        return;
    error = system_calls_restrict(sandbox->passthrough, sandbox->credentials);
    if (!error)
        done(&sandbox->system_calls);
    else if (error == -ENOTSUP)
        refused(&sandbox->system_calls, "not written for this kind of machine");
    else if (error == -EBUSY)
        refused(&sandbox->system_calls, "a thread has a filter of its own");
    else
        refused(&sandbox->system_calls, "%s", strerror(-error));
}

/* ---- status ---- */

static void
add_part(struct buffer *out, const char *name, const struct sandbox_part *part)
{
    buffer_addf(out, "\"%s\":{\"on\":%s", name, part->on ? "true" : "false");
    if (!part->on) {
        buffer_add_text(out, ",\"why\":");
        buffer_add_json_string(out, part->why, strlen(part->why));
    }
    buffer_add_text(out, "},");
}

void
sandbox_status(const struct sandbox *sandbox, struct buffer *out)
{
    buffer_add_char(out, '{');
    add_part(out, "no_new_privileges", &sandbox->no_new_privileges);
    add_part(out, "capabilities", &sandbox->capabilities);
    add_part(out, "landlock", &sandbox->landlock);
    add_part(out, "system_calls", &sandbox->system_calls);
    buffer_addf(out, "\"reads\":\"%s\"", sandbox->shut_in ? "the source" : "any file");
    if (sandbox->shut_in)
        buffer_addf(out, ",\"opened_outside\":%" PRIu64, opener_opened());
    buffer_add_char(out, '}');
}
