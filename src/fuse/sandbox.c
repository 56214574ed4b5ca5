/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/sandbox.h"

#include "fuse/helpers.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A sanitizer works inside the process: it looks into /proc, writes its report, stops
 * the other threads to look for leaks. It gets what it needs. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

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
    /* Root reads the files of all: who may see them, the kernel asks their modes. Docker
     * gives its containers only the greater of the two. */
    if (has(&now, CAP_DAC_READ_SEARCH))
        keep(&kept, CAP_DAC_READ_SEARCH);
    else if (has(&now, CAP_DAC_OVERRIDE))
        keep(&kept, CAP_DAC_OVERRIDE);
    if (sandbox->passthrough && has(&now, CAP_SYS_ADMIN))
        keep(&kept, CAP_SYS_ADMIN);
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
#define SCOPE_SIGNALS 2ull /* the service manager's socket may be an abstract one */

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
        all.scopes = SCOPE_SIGNALS;
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

    tzset(); /* for syslog(3) */
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

#if defined(__x86_64__) || defined(__aarch64__)

#ifdef __x86_64__
#define THIS_MACHINE AUDIT_ARCH_X86_64
#else
#define THIS_MACHINE AUDIT_ARCH_AARCH64
#endif

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5, the same on all machines */
#endif

/* As serving does, with glibc's and musl's ways to do it. */
static const uint32_t allowed_calls[] = {
#ifdef __x86_64__
    SYS_open, SYS_stat, SYS_lstat, SYS_readlink, SYS_poll, SYS_dup2, SYS_time, SYS_getrlimit,
#endif
    /* the connection, the source */
    SYS_read, SYS_readv, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_write, SYS_writev, SYS_openat,
    SYS_close, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_getdents64, SYS_lseek, SYS_readlinkat,
    SYS_fstatfs, SYS_statfs, SYS_getxattr, SYS_fadvise64, SYS_fcntl, SYS_cachestat,
    SYS_io_uring_enter, SYS_io_uring_register, SYS_ppoll,
    /* memory */
    SYS_munmap, SYS_mremap, SYS_madvise, SYS_brk,
    /* threads, signals, time */
    SYS_futex, SYS_exit, SYS_exit_group, SYS_set_robust_list, SYS_rseq, SYS_sched_yield,
    SYS_sched_getaffinity, SYS_set_tid_address, SYS_membarrier, SYS_gettid, SYS_getpid, SYS_getppid,
    SYS_tgkill, SYS_tkill, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_rt_sigtimedwait, SYS_sigaltstack, SYS_restart_syscall, SYS_nanosleep, SYS_clock_nanosleep,
    SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday,
    /* the log, the service manager, the helpers, the end */
    SYS_connect, SYS_sendto, SYS_sendmsg, SYS_recvmsg, SYS_socketpair, SYS_pipe2, SYS_dup, SYS_dup3,
    SYS_chdir, SYS_wait4,
    /* what a library asks */
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getrandom, SYS_prlimit64, SYS_sysinfo,
    SYS_uname, SYS_getcpu};

/* Calls whose argument must have, of these bits, this value. */
static const struct {
    uint32_t call;
    unsigned argument;
    uint32_t bits, value;
} allowed_arguments[] = {
    {SYS_mmap, 2, PROT_EXEC, 0},
    {SYS_mprotect, 2, PROT_EXEC, 0},
    {SYS_clone, 0, CLONE_THREAD, CLONE_THREAD},
    {SYS_prctl, 0, UINT32_MAX, PR_SET_NAME},
    {SYS_socket, 0, UINT32_MAX, AF_UNIX},
};

#define CALLS (sizeof(allowed_calls) / sizeof(allowed_calls[0]))
#define ARGUMENTS (sizeof(allowed_arguments) / sizeof(allowed_arguments[0]))

struct filter {
    struct sock_filter code[2 * CALLS + 5 * ARGUMENTS + 16];
    unsigned short length;
};

static void
add(struct filter *filter, struct sock_filter instruction)
{
    filter->code[filter->length++] = instruction;
}

static void
add_load(struct filter *filter, size_t offset)
{
    add(filter, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void
add_answer(struct filter *filter, uint32_t answer)
{
    add(filter, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer));
}

static void
add_call(struct filter *filter, uint32_t call)
{
    add(filter, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    add_answer(filter, SECCOMP_RET_ALLOW);
}

/* What is not allowed is not there (ENOSYS): libraries know what to do then, as with
 * clone3(2), whose flags a filter cannot see. */
#define NOT_THERE (SANITIZED ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | ENOSYS)

static void
make_filter(struct filter *filter, bool devices)
{
    filter->length = 0;
    add_load(filter, offsetof(struct seccomp_data, arch));
    add(filter, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_MACHINE, 1, 0));
    add_answer(filter, SECCOMP_RET_KILL_PROCESS);
    add_load(filter, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < CALLS; i++)
        add_call(filter, allowed_calls[i]);
    if (devices)
        add_call(filter, SYS_ioctl);
    for (size_t i = 0; i < ARGUMENTS; i++) {
        add(filter, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                 allowed_arguments[i].call, 0, 5));
        /* The lower half comes first on both machines. */
        add_load(filter, offsetof(struct seccomp_data, args) + 8 * allowed_arguments[i].argument);
        add(filter,
            (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, allowed_arguments[i].bits));
        add(filter, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                 allowed_arguments[i].value, 0, 1));
        add_answer(filter, SECCOMP_RET_ALLOW);
        add_answer(filter, NOT_THERE);
    }
    add_answer(filter, NOT_THERE);
}

void
sandbox_seal(struct sandbox *sandbox)
{
    struct filter filter;
    struct sock_fprog program = {.filter = filter.code};
    long result;

    if (!sandbox->wanted)
        return;
    make_filter(&filter, sandbox->passthrough);
    program.len = filter.length;
    /* Kernels before 5.16 slow a filtered process down, for those that run the code of
     * others: this one does not. */
    result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                     SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
    if (result == 0)
        done(&sandbox->system_calls);
    else
        refused(&sandbox->system_calls, "%s",
                result > 0 ? "a thread has a filter of its own" : strerror(errno));
}

#else

void
sandbox_seal(struct sandbox *sandbox)
{
    if (sandbox->wanted)
        refused(&sandbox->system_calls, "not written for this kind of machine");
}

#endif

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
