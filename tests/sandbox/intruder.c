/* SPDX-License-Identifier: Apache-2.0 */
/*
 * intruder: loaded before a program's libraries (LD_PRELOAD), simulates injected code. It runs at
 * the first posix_fadvise(2), which fstfs calls on a serving thread when it has opened a file of
 * the source.
 *
 *   INTRUDER=REPORT   the file for a line for each attempt: its name, and "works" or the name
 *                     of the error. It is opened at the start, as standard input, which fstfs
 *                     does not close
 *   INTRUDER_INSIDE=, INTRUDER_OUTSIDE=   files that the user may read and write, in the
 *                     source and elsewhere
 *   INTRUDER_STREAM=, INTRUDER_DATAGRAM=   sockets of that user
 *   INTRUDER_VICTIM=  the ID of another process of that user
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int report = -1;
static atomic_bool done;
/* Targets of the attacks, from the environment; NULL: the variable is not set. */
static struct {
    char *inside, *outside, *stream, *datagram, *victim;
} targets;

static char *
copy_variable(const char *name)
{
    const char *value = getenv(name);

    return value ? strdup(value) : NULL;
}

/* Copies the variables before the daemon erases its environment. */
static void __attribute__((constructor)) begin(void)
{
    const char *path = getenv("INTRUDER");

    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;

    if (fd >= 0)
        report = dup2(fd, STDERR_FILENO); /* the only descriptor that the daemon keeps */
    if (fd > STDERR_FILENO)
        close(fd);
    targets.inside = copy_variable("INTRUDER_INSIDE");
    targets.outside = copy_variable("INTRUDER_OUTSIDE");
    targets.stream = copy_variable("INTRUDER_STREAM");
    targets.datagram = copy_variable("INTRUDER_DATAGRAM");
    targets.victim = copy_variable("INTRUDER_VICTIM");
}

static void
report_result(const char *what, long result)
{
    if (result == -1)
        dprintf(report, "%s %s\n", what, strerrorname_np(errno));
    else
        dprintf(report, "%s works\n", what);
}

/* Closes the descriptor: a file that is open for writing is refused to readers. */
static void
report_descriptor(const char *what, int fd)
{
    report_result(what, fd);
    if (fd >= 0)
        close(fd);
}

static void
try_files(const char *inside, const char *outside)
{
    char made[4096];
    int lease;

    /* Not in the source, which the test compares with the mount afterwards. */
    snprintf(made, sizeof(made), "%s.made", outside);
    report_descriptor("read-inside", open(inside, O_RDONLY | O_CLOEXEC));
    report_descriptor("read-outside", open(outside, O_RDONLY | O_CLOEXEC));
    report_descriptor("write-inside", open(inside, O_WRONLY | O_CLOEXEC));
    report_descriptor("write-outside", open(outside, O_WRONLY | O_CLOEXEC));
    report_descriptor("make", open(made, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    report_result("truncate", truncate(outside, 0));
    lease = open(inside, O_RDONLY | O_CLOEXEC);
    report_result("write-lease", fcntl(lease, F_SETLEASE, F_WRLCK));
    close(lease);
    report_result("chmod", chmod(outside, 0777));
    report_result("remove", unlink(outside));
    report_descriptor("list-root", open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    report_descriptor("open-proc", open("/proc/self/mem", O_RDWR | O_CLOEXEC));
}

/* Each call is harmless if it is permitted: its arguments make it fail, or it has no effect. */
static void
try_calls(void)
{
    struct io_uring_params params = {0};
    char *arguments[] = {(char[]){"nowhere"}, NULL};
    long page = sysconf(_SC_PAGESIZE), child;

    child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0)
        _exit(0);
    report_result("fork", child);
    report_result("internet", socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    report_result("ptrace", ptrace(PTRACE_DETACH, 0, NULL, NULL));
    report_result("mount", mount("none", "/nowhere", "none", 0, NULL));
    report_result("unmount", umount2("/nowhere", MNT_DETACH));
    report_result("namespace", unshare(CLONE_THREAD));
    report_result("kill", kill(getpid(), 0));
    report_result("ring", syscall(SYS_io_uring_setup, 1, &params));
    report_result("code", (long)mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE | PROT_EXEC,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    report_result("execute", execv("/nowhere", arguments));
}

/* `succeeded`: the number of attempts that succeeded; if it is 0, reports the last error. */
static void
report_count(const char *what, long succeeded)
{
    report_result(what, succeeded > 0 ? succeeded : -1);
}

static socklen_t
set_address(struct sockaddr_un *address, const char *path)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof(address->sun_path), "%s", path);
    if (path[0] == '@')
        address->sun_path[0] = '\0';
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
}

/* Sends a message from the socket to the address. sendmsg(2) may succeed and ignore the address, so
 * the test checks whether the receiver got it. */
static void
send_message(int fd, const char *path)
{
    struct sockaddr_un address;
    socklen_t length = set_address(&address, path);
    struct iovec vector = {(void *)(uintptr_t) "intruder", 8};
    struct msghdr message = {
        .msg_name = &address, .msg_namelen = length, .msg_iov = &vector, .msg_iovlen = 1};

    sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool
send_text(int fd, const char *path)
{
    struct sockaddr_un address;
    socklen_t length = set_address(&address, path);

    return sendto(fd, "intruder", 8, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&address,
                  length) > 0;
}

/* Whether it may be the socket to the unmounter, which unmounts on any message. */
static bool
is_helper_socket(int fd)
{
    int type = 0;

    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof(type)}) == 0 &&
           type == SOCK_SEQPACKET;
}

static void
try_sockets(const char *stream, const char *datagram)
{
    struct sockaddr_un address;
    socklen_t length = set_address(&address, stream);
    int fd, ends[2] = {-1, -1};
    long connected = 0, sent = 0;

    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    report_result("socket", fd);
    for (int other = 3; other < 64; other++)
        connected += other != fd && connect(other, (struct sockaddr *)&address, length) == 0;
    connected += connect(fd, (struct sockaddr *)&address, length) == 0;
    report_count("connect", connected);
    report_result("datagram-pair", socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends));
    send_message(ends[0], datagram);
    for (int other = 3; other < 64; other++)
        if (!is_helper_socket(other))
            sent += send_text(other, datagram);
    report_count("sendto", sent);
    /* Not from the daemon's own sockets: any message makes the unmounter unmount. */
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0)
        send_message(ends[0], datagram);
}

/* Limits of, signals to, and other access to another process. Signal 0 has no effect. */
static void
try_process(pid_t victim)
{
    struct rlimit none = {0, 0};
    struct f_owner_ex owner = {F_OWNER_PID, victim};
    siginfo_t info = {.si_code = SI_QUEUE};

    report_result("limits", prlimit(victim, RLIMIT_CORE, &none, NULL));
    report_result("read-limits", prlimit(victim, RLIMIT_CORE, NULL, &none));
    report_result("own-limits", prlimit(0, RLIMIT_CORE, &none, NULL));
    report_result("tgkill", syscall(SYS_tgkill, victim, victim, 0));
    report_result("tkill", syscall(SYS_tkill, victim, 0));
    report_result("sigqueue", syscall(SYS_rt_sigqueueinfo, victim, 0, &info));
    report_result("owner", fcntl(report, F_SETOWN, victim));
    report_result("owner-ex", fcntl(report, F_SETOWN_EX, &owner));
    report_result("pidfd", syscall(SYS_pidfd_open, victim, 0));
    report_result("memory", syscall(SYS_process_vm_readv, victim, NULL, 0, NULL, 0, 0));
    report_result("priority",
                  setpriority(PRIO_PROCESS, (id_t)victim, getpriority(PRIO_PROCESS, 0)));
    report_result("ring-register",
                  syscall(SYS_io_uring_register, report, IORING_REGISTER_PROBE, NULL, 0));
    report_result("ioctl", syscall(SYS_ioctl, report, FIOCLEX));
    /* Harmless if permitted: a length of 0, and flags that exclude each other. */
    report_result("poison", madvise((void *)(uintptr_t)sysconf(_SC_PAGESIZE), 0, MADV_HWPOISON));
    report_result("namespace-thread",
                  syscall(SYS_clone, CLONE_THREAD | CLONE_NEWNET, NULL, NULL, NULL, NULL));
    report_result("handle", syscall(SYS_open_by_handle_at, AT_FDCWD, NULL, O_RDONLY));
}

int
posix_fadvise(int fd, off_t offset, off_t length, int advice)
{
    if (report >= 0 && targets.inside && targets.outside && targets.stream && targets.datagram &&
        targets.victim && gettid() != getpid() && !atomic_exchange(&done, true)) {
        try_files(targets.inside, targets.outside);
        try_calls();
        try_sockets(targets.stream, targets.datagram);
        try_process((pid_t)atoi(targets.victim));
        report_result("end", 0);
    }
    return (int)syscall(SYS_fadvise64, fd, offset, length, advice);
}
