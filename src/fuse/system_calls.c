/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/system_calls.h"

#include "fuse/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
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
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__aarch64__)

#ifdef __x86_64__
#define THIS_MACHINE AUDIT_ARCH_X86_64
#else
#define THIS_MACHINE AUDIT_ARCH_AARCH64
#endif

#ifndef SYS_faccessat2
#define SYS_faccessat2 439 /* Linux 5.8, the same on all machines */
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5, the same on all machines */
#endif

#define INT_BITS UINT64_C(0xffffffff) /* the kernel ignores the upper half of an int */
#define ALL_BITS UINT64_MAX
#define WRITING (O_ACCMODE | O_CREAT | O_TRUNC)
#define SOCKET_TYPE UINT64_C(0xf)
/* MADV_HWPOISON and MADV_SOFT_OFFLINE, for CAP_SYS_ADMIN, take memory from the whole machine. */
#define POISONING (INT_BITS & ~UINT64_C(31))
/* For CAP_SYS_ADMIN, which passthrough keeps. */
#define NAMESPACES                                                                                 \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET)
/* A flag of liburing's, in the operation's place. */
#define REGISTER_BITS (INT_BITS & ~(UINT64_C(1) << 31))
#define REGISTER_RING_FDS 20
#define UNREGISTER_RING_FDS 21

enum { MOST_CONDITIONS = 2 };

/* A call, allowed if of each argument named here these bits have this value. Two rules for one
 * call are alternatives. */
struct rule {
    uint32_t call;
    struct {
        unsigned argument;
        uint64_t bits; /* 0: no condition */
        uint64_t value;
    } conditions[MOST_CONDITIONS];
};

/* Calls without conditions come first: the kernel caches its answer for these. glibc and musl
 * differ in which calls they make. */
static const struct rule rules[] = {
    /* reading: the connection, the source, what a directory holds */
    {SYS_read, {{0}}},
    {SYS_readv, {{0}}},
    {SYS_pread64, {{0}}},
    {SYS_preadv, {{0}}},
    {SYS_preadv2, {{0}}},
    {SYS_getdents64, {{0}}},
    {SYS_lseek, {{0}}},
    {SYS_fadvise64, {{0}}},
    {SYS_cachestat, {{0}}},
    {SYS_io_uring_enter, {{0}}},
    /* replies */
    {SYS_write, {{0}}},
    {SYS_writev, {{0}}},
    /* attributes */
    {SYS_fstat, {{0}}},
    {SYS_newfstatat, {{0}}},
    {SYS_statx, {{0}}},
    {SYS_readlinkat, {{0}}},
    {SYS_fstatfs, {{0}}},
    {SYS_getxattr, {{0}}},
#ifdef __x86_64__
    {SYS_stat, {{0}}},
    {SYS_lstat, {{0}}},
    {SYS_readlink, {{0}}},
#endif
    /* descriptors */
    {SYS_close, {{0}}},
    {SYS_dup3, {{0}}},
    {SYS_pipe2, {{0}}},
    {SYS_ppoll, {{0}}},
#ifdef __x86_64__
    {SYS_dup2, {{0}}},
    {SYS_poll, {{0}}},
#endif
    /* messages from the helpers; their end */
    {SYS_recvmsg, {{0}}},
    {SYS_sendmsg, {{0}}},
    {SYS_wait4, {{0}}},
    /* memory */
    {SYS_munmap, {{0}}},
    {SYS_mremap, {{0}}},
    {SYS_brk, {{0}}},
    /* threads */
    {SYS_futex, {{0}}},
    {SYS_exit, {{0}}},
    {SYS_exit_group, {{0}}},
    {SYS_set_robust_list, {{0}}},
    {SYS_set_tid_address, {{0}}},
    {SYS_rseq, {{0}}},
    {SYS_membarrier, {{0}}},
    {SYS_sched_yield, {{0}}},
    {SYS_sched_getaffinity, {{0}}},
    /* signals of this process */
    {SYS_rt_sigaction, {{0}}},
    {SYS_rt_sigprocmask, {{0}}},
    {SYS_rt_sigreturn, {{0}}},
    {SYS_rt_sigtimedwait, {{0}}},
    {SYS_sigaltstack, {{0}}},
    {SYS_restart_syscall, {{0}}},
#ifndef __GLIBC__
    {SYS_tkill, {{0}}}, /* musl's pthread_kill(); names no process to compare */
#endif
    /* time */
    {SYS_nanosleep, {{0}}},
    {SYS_clock_nanosleep, {{0}}},
    {SYS_clock_gettime, {{0}}},
    {SYS_clock_getres, {{0}}},
    {SYS_gettimeofday, {{0}}},
#ifdef __x86_64__
    {SYS_time, {{0}}},
#endif
    /* what a library asks about the process and the machine */
    {SYS_getpid, {{0}}},
    {SYS_getppid, {{0}}},
    {SYS_gettid, {{0}}},
    {SYS_getuid, {{0}}},
    {SYS_geteuid, {{0}}},
    {SYS_getgid, {{0}}},
    {SYS_getegid, {{0}}},
    {SYS_getrandom, {{0}}},
    {SYS_getcpu, {{0}}},
    {SYS_sysinfo, {{0}}},
    {SYS_uname, {{0}}},
#ifdef __x86_64__
    {SYS_getrlimit, {{0}}},
#endif

    /* Files are opened to be read. */
    {SYS_openat, {{2, WRITING, O_RDONLY}}},
#ifdef __x86_64__
    {SYS_open, {{1, WRITING, O_RDONLY}}},
#endif
    {SYS_io_uring_register, {{1, REGISTER_BITS, REGISTER_RING_FDS}}},
    {SYS_io_uring_register, {{1, REGISTER_BITS, UNREGISTER_RING_FDS}}},
    /* No code is made. */
    {SYS_mmap, {{2, PROT_EXEC, 0}}},
    {SYS_mprotect, {{2, PROT_EXEC, 0}}},
    {SYS_madvise, {{2, POISONING, 0}}},
    {SYS_clone, {{0, CLONE_THREAD | NAMESPACES, CLONE_THREAD}}},
    {SYS_prctl, {{0, INT_BITS, PR_SET_NAME}}},
    /* Own limits are read and none is set. */
    {SYS_prlimit64, {{0, INT_BITS, 0}, {2, ALL_BITS, 0}}},
    /* Sockets that can only be pairs, on which an address has no meaning. */
    {SYS_socketpair, {{0, INT_BITS, AF_UNIX}, {1, SOCKET_TYPE, SOCK_SEQPACKET}}},
    {SYS_sendto, {{4, ALL_BITS, 0}}},
    {SYS_fcntl, {{1, INT_BITS, F_GETFD}}},
    {SYS_fcntl, {{1, INT_BITS, F_SETFD}}},
    {SYS_fcntl, {{1, INT_BITS, F_GETFL}}},
    {SYS_fcntl, {{1, INT_BITS, F_SETFL}, {2, O_ASYNC, 0}}},
    {SYS_fcntl, {{1, INT_BITS, F_DUPFD_CLOEXEC}}},
    /* Leases: fcntl(2). The process that takes a lease gets its signal. F_SETOWN and F_SETOWN_EX
     * would let the kernel send that signal to any other process. */
    {SYS_fcntl, {{1, INT_BITS, F_GETLEASE}}},
    {SYS_fcntl, {{1, INT_BITS, F_SETLEASE}}},
    {SYS_fcntl, {{1, INT_BITS, F_SETSIG}}},
};

/* The same, where the value of the first condition is the ID of this process. */
static const struct rule own_rules[] = {
    {SYS_tgkill, {{0, INT_BITS, 0}}},
};

/* In the opener, where other users may enter the mount. */
static const struct rule credential_rules[] = {
    {SYS_setfsuid, {{0}}}, {SYS_setfsgid, {{0}}}, {SYS_setgroups, {{0}}},
    {SYS_capget, {{0}}},   {SYS_capset, {{0}}},   {SYS_faccessat2, {{0}}},
};

/* With passthrough. */
static const struct rule device_rules[] = {
#ifdef FUSE_DEV_IOC_BACKING_OPEN
    {SYS_ioctl, {{1, INT_BITS, FUSE_DEV_IOC_BACKING_OPEN}}},
    {SYS_ioctl, {{1, INT_BITS, FUSE_DEV_IOC_BACKING_CLOSE}}},
#else
    {SYS_ioctl, {{1, INT_BITS, 0}}}, /* built without passthrough */
#endif
};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* ---- the filter ---- */

struct filter {
    struct sock_filter code[BPF_MAXINSNS]; /* the most that the kernel takes */
    unsigned length; /* greater than that where it does not fit */
};

static void
filter_add(struct filter *filter, uint16_t code, uint32_t operand)
{
    if (filter->length < COUNT(filter->code))
        filter->code[filter->length] = (struct sock_filter){.code = code, .k = operand};
    filter->length++;
}

/* Loads 32 bits of struct seccomp_data. */
static void
filter_add_load(struct filter *filter, size_t offset)
{
    filter_add(filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset);
}

/* Compares what was loaded. filter_end_rule() sets where the filter goes on if it differs. */
static void
filter_add_test(struct filter *filter, uint32_t value)
{
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, value);
}

/* One half of an argument. */
static void
filter_add_condition(struct filter *filter, size_t offset, uint32_t bits, uint32_t value)
{
    if (!bits)
        return;
    filter_add_load(filter, offset);
    filter_add(filter, BPF_ALU | BPF_AND | BPF_K, bits);
    filter_add_test(filter, value);
}

/* Allows what has passed all tests of the rule that begins at `start`; the rest goes on behind it.
 */
static void
filter_end_rule(struct filter *filter, unsigned start)
{
    filter_add(filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    for (unsigned i = start; i < filter->length && i < COUNT(filter->code); i++)
        if (BPF_CLASS(filter->code[i].code) == BPF_JMP)
            filter->code[i].jf = (uint8_t)(filter->length - i - 1);
}

/* The call's number is loaded, before and after. */
static void
filter_add_rule(struct filter *filter, const struct rule *rule, uint64_t own)
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
    if (rule->conditions[0].bits)
        filter_add_load(filter, offsetof(struct seccomp_data, nr));
}

static void
filter_add_rules(struct filter *filter, const struct rule *list, size_t count, uint64_t own)
{
    for (size_t i = 0; i < count; i++)
        filter_add_rule(filter, &list[i], own);
}

static void
filter_make(struct filter *filter, bool devices, bool credentials)
{
    filter->length = 0;
    filter_add_load(filter, offsetof(struct seccomp_data, arch));
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, THIS_MACHINE);
    filter->code[1].jt = 1;
    filter_add(filter, BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter_add_load(filter, offsetof(struct seccomp_data, nr));
    filter_add_rules(filter, rules, COUNT(rules), 0);
    if (credentials)
        filter_add_rules(filter, credential_rules, COUNT(credential_rules), 0);
    filter_add_rules(filter, own_rules, COUNT(own_rules), (uint64_t)getpid());
    if (devices)
        filter_add_rules(filter, device_rules, COUNT(device_rules), 0);
    /* Libraries know what to do about a call that the kernel does not have, as with clone3(2),
     * whose flags a filter cannot see. A sanitizer makes calls of its own. */
    filter_add(filter, BPF_RET | BPF_K, SANITIZED ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | ENOSYS);
}

errint_t
system_calls_restrict(bool devices, bool credentials)
{
    struct filter filter;
    struct sock_fprog program = {.filter = filter.code};
    long result;

    filter_make(&filter, devices, credentials);
    if (filter.length > COUNT(filter.code))
        return -E2BIG;
    program.len = (unsigned short)filter.length;
    /* SPEC_ALLOW: kernels before 5.16 slow a filtered process down, to protect it from untrusted
     * code, of which it runs none. */
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
