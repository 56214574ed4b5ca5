/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refuse: runs a program for which some system calls fail, as on an old kernel or in a sandbox.
 *
 *   refuse CALL=ERROR... -- COMMAND [ARGUMENT...]
 *
 *   CALL   io_uring_setup, io_uring_enter, io_uring_register, cachestat, statx, close_range;
 *          O_DIRECT: openat or fcntl(F_SETFL) with that flag;
 *          RWF_NOWAIT, RWF_DONTCACHE: preadv2 with that flag;
 *          landlock, seccomp, capset; no_new_privs: prctl with that option
 *   ERROR  EPERM, ENOSYS, EINVAL, EOPNOTSUPP
 *
 * Child processes inherit the filter. An unprivileged user gets it only with no_new_privs, with
 * which set-user-ID programs such as fusermount3 have no privileges.
 */
#include "base/system_call.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80 /* Linux 6.14 */
#endif

#define CLOSE_RANGE 436 /* Linux 5.9, the same on all machines */
#define LANDLOCK_CREATE_RULESET 444 /* Linux 5.13, likewise */

#define MOST_INSTRUCTIONS 256
#define MOST_CONDITIONS 2

/* Of one argument: these bits of its lower half have this value. */
struct condition {
    unsigned argument;
    uint32_t bits; /* 0: no condition */
    uint32_t value;
};

static const struct call {
    const char *name;
    uint32_t number;
    struct condition conditions[MOST_CONDITIONS];
} calls[] = {
    {"io_uring_setup", SYS_io_uring_setup, {{0}}},
    {"io_uring_enter", SYS_io_uring_enter, {{0}}},
    {"io_uring_register", SYS_io_uring_register, {{0}}},
    {"cachestat", SYS_cachestat, {{0}}},
    {"statx", SYS_statx, {{0}}},
    {"close_range", CLOSE_RANGE, {{0}}},
    {"O_DIRECT", SYS_openat, {{2, O_DIRECT, O_DIRECT}}},
    {"O_DIRECT", SYS_fcntl, {{1, UINT32_MAX, F_SETFL}, {2, O_DIRECT, O_DIRECT}}},
    {"RWF_NOWAIT", SYS_preadv2, {{5, RWF_NOWAIT, RWF_NOWAIT}}},
    {"landlock", LANDLOCK_CREATE_RULESET, {{0}}},
    {"seccomp", SYS_seccomp, {{0}}},
    {"capset", SYS_capset, {{0}}},
    {"no_new_privs", SYS_prctl, {{0, UINT32_MAX, PR_SET_NO_NEW_PRIVS}}},
    {"RWF_DONTCACHE", SYS_preadv2, {{5, RWF_DONTCACHE, RWF_DONTCACHE}}},
};

static const struct {
    const char *name;
    uint32_t number;
} errors[] = {
    {"EPERM", EPERM},
    {"ENOSYS", ENOSYS},
    {"EINVAL", EINVAL},
    {"EOPNOTSUPP", EOPNOTSUPP},
};

static struct sock_filter filter[MOST_INSTRUCTIONS];
static unsigned short length;

static void
fail(const char *what, const char *why)
{
    fprintf(stderr, "refuse: %s: %s\n", what, why);
    exit(125);
}

static void
add(uint16_t code, uint32_t operand)
{
    if (length == MOST_INSTRUCTIONS)
        fail("filter", "too long");
    filter[length++] = (struct sock_filter){.code = code, .k = operand};
}

/* Compares the loaded value. On a mismatch the filter jumps to the next rule; add_call() sets the
 * target of the jump. */
static void
add_test(uint32_t value)
{
    add(BPF_JMP | BPF_JEQ | BPF_K, value);
}

static void
add_call(const struct call *call, uint32_t error)
{
    unsigned short start = length;

    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    add_test(call->number);
    for (int i = 0; i < MOST_CONDITIONS && call->conditions[i].bits; i++) {
        const struct condition *condition = &call->conditions[i];

        /* The lower half comes first on every machine that this is built for. */
        add(BPF_LD | BPF_W | BPF_ABS,
            (uint32_t)(offsetof(struct seccomp_data, args) + condition->argument * 8));
        add(BPF_ALU | BPF_AND | BPF_K, condition->bits);
        add_test(condition->value);
    }
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
    for (unsigned short i = start; i < length; i++) {
        if (BPF_CLASS(filter[i].code) == BPF_JMP)
            filter[i].jf = (uint8_t)(length - i - 1);
    }
}

/* Adds CALL=ERROR. */
static void
add_rule(const char *rule)
{
    const char *error = strchr(rule, '=');
    size_t name = error ? (size_t)(error - rule) : 0;
    uint32_t number = 0;
    bool known = false;

    for (size_t i = 0; error && i < sizeof(errors) / sizeof(*errors); i++) {
        if (strcmp(error + 1, errors[i].name) == 0)
            number = errors[i].number;
    }
    for (size_t i = 0; number && i < sizeof(calls) / sizeof(*calls); i++) {
        if (strlen(calls[i].name) == name && strncmp(calls[i].name, rule, name) == 0) {
            add_call(&calls[i], number);
            known = true;
        }
    }
    if (!known)
        fail(rule, "not a rule");
}

static void
install(void)
{
    struct sock_fprog program = {length, filter};

    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0)
        return;
    /* An unprivileged process must set no_new_privs first. */
    if (errno == EACCES && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0)
        return;
    fail("seccomp", strerror(errno));
}

int
main(int argc, char **argv)
{
    int i = 1;

    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        add_rule(argv[i]);
    if (i + 1 >= argc)
        fail("usage", "refuse CALL=ERROR... -- COMMAND [ARGUMENT...]");
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    install();
    execvp(argv[i + 1], argv + i + 1);
    fail(argv[i + 1], strerror(errno));
}
