/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/system_calls.h"

#include "base/array.h"
#include "base/system_call.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/fiemap.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/fuse.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__aarch64__)

#ifdef __x86_64__
#define THIS_MACHINE AUDIT_ARCH_X86_64
#else
#define THIS_MACHINE AUDIT_ARCH_AARCH64
#endif

#define INT_BITS UINT64_C(0xffffffff) /* the kernel ignores the upper half of an int argument */
#define ALL_BITS UINT64_MAX
#define WRITING (O_ACCMODE | O_CREAT | O_TRUNC)
#define SOCKET_TYPE UINT64_C(0xf)
/* All advice from 32 on: MADV_HWPOISON and MADV_SOFT_OFFLINE, for CAP_SYS_ADMIN, take memory from
 * the whole machine. */
#define POISONING (INT_BITS & ~UINT64_C(31))
/* Denied, because the kernel would allow them with CAP_SYS_ADMIN, which passthrough keeps. */
#define NAMESPACES                                                                                 \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)
/* Without the flag that liburing sets in the operation, IORING_REGISTER_USE_REGISTERED_RING. */
#define REGISTER_BITS (INT_BITS & ~(UINT64_C(1) << 31))
#define REGISTER_RING_FDS 20
#define UNREGISTER_RING_FDS 21

/* Calls whose arguments are not restricted. glibc and musl differ in which calls they make. */
static const uint32_t unrestricted_calls[] = {
    /* reading: the connection, the source, directories */
    SYS_read, SYS_readv, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_getdents64, SYS_lseek,
    SYS_fadvise64, SYS_cachestat, SYS_io_uring_enter,
    /* replies */
    SYS_write, SYS_writev,
    /* attributes */
    SYS_fstat, SYS_newfstatat, SYS_statx, SYS_readlinkat, SYS_fstatfs, SYS_getxattr,
    /* descriptors */
    SYS_close, SYS_dup3, SYS_pipe2, SYS_ppoll,
    /* the helper processes */
    SYS_recvmsg, SYS_sendmsg, SYS_wait4,
    /* memory */
    SYS_munmap, SYS_mremap, SYS_brk,
    /* threads */
    SYS_futex, SYS_exit, SYS_exit_group, SYS_set_robust_list, SYS_set_tid_address, SYS_rseq,
    SYS_membarrier, SYS_sched_yield, SYS_sched_getaffinity,
    /* signals of this process */
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_rt_sigtimedwait, SYS_sigaltstack,
    SYS_restart_syscall,
    /* time */
    SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday,
    /* queries of the C library about the process and the machine */
    SYS_getpid, SYS_getppid, SYS_gettid, SYS_getpgid, SYS_getuid, SYS_geteuid, SYS_getgid,
    SYS_getegid, SYS_getrandom, SYS_getcpu, SYS_sysinfo, SYS_uname,
#ifdef __x86_64__
    SYS_stat, SYS_lstat, SYS_readlink, SYS_dup2, SYS_poll, SYS_time, SYS_getrlimit,
#endif
#ifndef __GLIBC__
    SYS_tkill, /* musl's pthread_kill(); has no process ID to compare */
#endif
};

/* For fstfs-open with allow_other. */
static const uint32_t credential_calls[] = {
    SYS_setfsuid, SYS_setfsgid, SYS_setgroups, SYS_capget, SYS_capset, SYS_faccessat2,
};

enum { MOST_CONDITIONS = 2 };

/* Allows a call if these bits of each listed argument have this value. If a call has several rules,
 * one must match. */
struct call_rule {
    uint32_t call;
    struct {
        unsigned argument;
        uint64_t bits; /* 0: no condition */
        uint64_t value;
    } conditions[MOST_CONDITIONS];
};

static const struct call_rule call_rules[] = {
    /* Files are opened for reading only. */
    {SYS_openat, {{2, WRITING, O_RDONLY}}},
#ifdef __x86_64__
    {SYS_open, {{1, WRITING, O_RDONLY}}},
#endif
    {SYS_io_uring_register, {{1, REGISTER_BITS, REGISTER_RING_FDS}}},
    {SYS_io_uring_register, {{1, REGISTER_BITS, UNREGISTER_RING_FDS}}},
    /* No memory becomes executable. */
    {SYS_mmap, {{2, PROT_EXEC, 0}}},
    {SYS_mprotect, {{2, PROT_EXEC, 0}}},
    {SYS_madvise, {{2, POISONING, 0}}},
    {SYS_clone, {{0, CLONE_THREAD | NAMESPACES, CLONE_THREAD}}},
    {SYS_prctl, {{0, INT_BITS, PR_SET_NAME}}},
    /* Reads this process's own limits. */
    {SYS_prlimit64, {{0, INT_BITS, 0}, {2, ALL_BITS, 0}}},
    /* Sockets are pairs of a kind that ignores addresses. */
    {SYS_socketpair, {{0, INT_BITS, AF_UNIX}, {1, SOCKET_TYPE, SOCK_SEQPACKET}}},
    {SYS_sendto, {{4, ALL_BITS, 0}}},
    {SYS_fcntl, {{1, INT_BITS, F_GETFD}}},
    {SYS_fcntl, {{1, INT_BITS, F_SETFD}}},
    {SYS_fcntl, {{1, INT_BITS, F_GETFL}}},
    {SYS_fcntl, {{1, INT_BITS, F_SETFL}, {2, O_ASYNC, 0}}},
    {SYS_fcntl, {{1, INT_BITS, F_DUPFD_CLOEXEC}}},
    /* Leases: fcntl(2). */
    {SYS_fcntl, {{1, INT_BITS, F_GETLEASE}}},
    /* Not F_WRLCK, which would delay readers, too. */
    {SYS_fcntl, {{1, INT_BITS, F_SETLEASE}, {2, F_WRLCK, 0}}},
    {SYS_fcntl, {{1, INT_BITS, F_SETSIG}}},
    /* The extent map of a file. */
    {SYS_ioctl, {{1, INT_BITS, FS_IOC_FIEMAP}}},
};

/* The value of the first condition is this process's ID. */
static const struct call_rule own_process_rules[] = {
    {SYS_tgkill, {{0, INT_BITS, 0}}},
    /* The owner gets the signals of leases. Injected code could have them sent to any process. */
    {SYS_fcntl, {{2, INT_BITS, 0}, {1, INT_BITS, F_SETOWN}}},
};

/* For passthrough. */
static const struct call_rule device_rules[] = {
#ifdef FUSE_DEV_IOC_BACKING_OPEN
    {SYS_ioctl, {{1, INT_BITS, FUSE_DEV_IOC_BACKING_OPEN}}},
    {SYS_ioctl, {{1, INT_BITS, FUSE_DEV_IOC_BACKING_CLOSE}}},
#else
    {SYS_ioctl, {{1, INT_BITS, 0}}}, /* built without passthrough */
#endif
};

/* ---- the filter ---- */

struct filter {
    struct sock_filter code[BPF_MAXINSNS]; /* the kernel's limit */
    unsigned length; /* greater than the limit if the filter does not fit */
};

static void
filter_add(struct filter *filter, uint16_t code, uint32_t operand)
{
    if (filter->length < COUNT_OF(filter->code))
        filter->code[filter->length] = (struct sock_filter){.code = code, .k = operand};
    filter->length++;
}

/* Loads 32 bits of struct seccomp_data. */
static void
filter_add_load(struct filter *filter, size_t offset)
{
    filter_add(filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset);
}

/* Compares the loaded value. filter_end_rule() sets the target of the jump for a mismatch. */
static void
filter_add_test(struct filter *filter, uint32_t value)
{
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, value);
}

/* Tests one half of an argument. */
static void
filter_add_condition(struct filter *filter, size_t offset, uint32_t bits, uint32_t value)
{
    if (!bits)
        return;
    filter_add_load(filter, offset);
    filter_add(filter, BPF_ALU | BPF_AND | BPF_K, bits);
    filter_add_test(filter, value);
}

/* Ends the rule that begins at `start`: allows a call that passed all its tests; any other jumps to
 * the next rule. */
static void
filter_end_rule(struct filter *filter, unsigned start)
{
    filter_add(filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    for (unsigned i = start; i < filter->length && i < COUNT_OF(filter->code); i++)
        if (BPF_CLASS(filter->code[i].code) == BPF_JMP)
            filter->code[i].jf = (uint8_t)(filter->length - i - 1);
}

static void
filter_add_calls(struct filter *filter, const uint32_t *calls, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        unsigned start = filter->length;

        filter_add_test(filter, calls[i]);
        filter_end_rule(filter, start);
    }
}

/* `own`: in place of the first condition's value, unless 0. Leaves the call's number loaded. */
static void
filter_add_rule(struct filter *filter, const struct call_rule *rule, uint64_t own)
{
    unsigned start = filter->length;

    filter_add_test(filter, rule->call);
    for (int i = 0; i < MOST_CONDITIONS; i++) {
        size_t offset = offsetof(struct seccomp_data, args) + 8 * rule->conditions[i].argument;
        uint64_t bits = rule->conditions[i].bits;
        uint64_t value = i == 0 && own ? own : rule->conditions[i].value;

        /* The lower half comes first on both machines. */
        filter_add_condition(filter, offset, (uint32_t)bits, (uint32_t)value);
        filter_add_condition(filter, offset + 4, (uint32_t)(bits >> 32), (uint32_t)(value >> 32));
    }
    filter_end_rule(filter, start);
    filter_add_load(filter, offsetof(struct seccomp_data, nr));
}

static void
filter_add_rules(struct filter *filter, const struct call_rule *rules, size_t count, uint64_t own)
{
    for (size_t i = 0; i < count; i++)
        filter_add_rule(filter, &rules[i], own);
}

/* Unrestricted calls come first: the kernel caches the answer for a call as long as the filter has
 * not looked at an argument. */
static void
filter_make(struct filter *filter, bool devices, bool credentials)
{
    filter->length = 0;
    filter_add_load(filter, offsetof(struct seccomp_data, arch));
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, THIS_MACHINE);
    filter->code[1].jt = 1;
    filter_add(filter, BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter_add_load(filter, offsetof(struct seccomp_data, nr));
    filter_add_calls(filter, unrestricted_calls, COUNT_OF(unrestricted_calls));
    if (credentials)
        filter_add_calls(filter, credential_calls, COUNT_OF(credential_calls));
    filter_add_rules(filter, call_rules, COUNT_OF(call_rules), 0);
    filter_add_rules(filter, own_process_rules, COUNT_OF(own_process_rules), (uint64_t)getpid());
    if (devices)
        filter_add_rules(filter, device_rules, COUNT_OF(device_rules), 0);
    /* With ENOSYS, libraries fall back as on a kernel without the call: from clone3(2), whose flags
     * a filter cannot read, to clone(2). A sanitizer needs further calls. */
    filter_add(filter, BPF_RET | BPF_K, SANITIZED ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | ENOSYS);
}

errint_t
system_calls_restrict(bool devices, bool credentials)
{
    struct filter filter;
    struct sock_fprog program = {.filter = filter.code};
    long result;

    filter_make(&filter, devices, credentials);
    if (filter.length > COUNT_OF(filter.code))
        return -E2BIG;
    program.len = (unsigned short)filter.length;
    /* SPEC_ALLOW: before 5.16 the kernel disables speculation in a filtered process, which slows it
     * down and protects only processes that run untrusted code. */
    result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                     SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program);
    if (result > 0)
        return -EBUSY;
    return result < 0 ? -errno : 0;
}

#else

errint_t
system_calls_restrict(bool devices, bool credentials)
{
    return -ENOTSUP;
}

#endif
