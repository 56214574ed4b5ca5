/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <syslog.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 };

static const struct {
    const char *name;
    int priority; /* of syslog(3) */
} levels[LOG_LEVELS] = {
    [LOG_LEVEL_ERROR] = {"error", LOG_ERR},
    [LOG_LEVEL_WARNING] = {"warning", LOG_WARNING},
    [LOG_LEVEL_INFO] = {"info", LOG_INFO},
};

static atomic_bool is_disabled;
static atomic_int log_socket = -1; /* -1: standard error */

/* How a line is written to standard error without waiting. */
static enum {
    STDERR_POLLED, /* once poll(2) reports room; for a regular file, or if it cannot be reopened */
    STDERR_NONBLOCKING,
    STDERR_SOCKET
} stderr_kind; /* constant once set */

/* Opens a pipe or terminal again, because O_NONBLOCK would also apply to the other processes that
 * have inherited it. That fails if it is another user's. */
void
log_init(void)
{
    struct stat st;
    int fd;

    if (fstat(STDERR_FILENO, &st) < 0)
        return;
    if (S_ISSOCK(st.st_mode))
        stderr_kind = STDERR_SOCKET;
    if (!S_ISFIFO(st.st_mode) && !S_ISCHR(st.st_mode))
        return;
    fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (dup2(fd, STDERR_FILENO) >= 0)
        stderr_kind = STDERR_NONBLOCKING;
    close(fd);
}

void
log_disable(void)
{
    atomic_store(&is_disabled, true);
}

void
log_to_socket(int socket)
{
    atomic_store(&log_socket, socket);
}

/* One message to log_serve(): a byte for the level, and the text. */
static void
log_send(int socket, enum log_level level, const char *text)
{
    unsigned char byte = (unsigned char)level;
    struct iovec parts[] = {{&byte, 1}, {(void *)(uintptr_t)text, strlen(text)}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    /* A full socket must not block a thread that serves requests. */
    (void)sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void
log_serve(int socket, const char *name, pid_t pid)
{
    char message[LINE_BYTES], identity[64];
    ssize_t got;

    snprintf(identity, sizeof(identity), "%s[%ld]", name, (long)pid);
    openlog(identity, 0, LOG_DAEMON);
    for (;;) {
        got = recv(socket, message, sizeof(message) - 1, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return;
        message[got] = '\0';
        if ((unsigned char)message[0] < LOG_LEVELS)
            syslog(levels[(unsigned char)message[0]].priority, "%s", message + 1);
    }
}

/* Writes one line in one call, so that lines of different threads do not mix. It is lost if that
 * would block, because threads that serve requests must not wait. That is not certain for a pipe or
 * terminal that could not be opened again, which another process could fill after poll(2), and for
 * a regular file whose storage hangs. There is nowhere to report an error. */
static void
write_to_stderr(const char *line, size_t length)
{
    static pthread_mutex_t polling = PTHREAD_MUTEX_INITIALIZER;
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    ssize_t written = 0;

    switch (stderr_kind) {
    case STDERR_NONBLOCKING:
        written = write(STDERR_FILENO, line, length);
        break;
    case STDERR_SOCKET:
        written = send(STDERR_FILENO, line, length, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    case STDERR_POLLED:
        pthread_mutex_lock(&polling);
        if (poll(&out, 1, 0) == 1)
            written = write(STDERR_FILENO, line, length);
        pthread_mutex_unlock(&polling);
    }
    (void)written;
}

void
log_line(enum log_level level, const char *format, ...)
{
    char line[LINE_BYTES];
    int length, added, socket;
    va_list arguments;

    if (atomic_load(&is_disabled))
        return;
    length = snprintf(line, sizeof(line), "fstfs: %s: ", levels[level].name);
    va_start(arguments, format);
    added = vsnprintf(line + length, sizeof(line) - (size_t)length, format, arguments);
    va_end(arguments);
    if (added < 0)
        return;
    for (char *c = line; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    socket = atomic_load(&log_socket);
    if (socket >= 0) {
        log_send(socket, level, line + length);
        return;
    }
    length = (int)strlen(line);
    if ((size_t)length == sizeof(line) - 1)
        length--;
    line[length++] = '\n';
    write_to_stderr(line, (size_t)length);
}
