/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/opener.h"

#include "base/file_system.h"
#include "base/open.h"
#include "base/resolve.h"
#include "base/system_call.h"
#include "fuse/mounted_devices.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- messages ---- */

enum question_kind { QUESTION_OPEN, QUESTION_CHECK, QUESTION_COMMAND };

/* The header of a message to the opener; `count` records follow. */
struct question {
    uint32_t kind;
    uint32_t count;
    int32_t flags; /* of QUESTION_OPEN: of open(2) */
    uint64_t mount; /* of QUESTION_OPEN: see open_at_mount() */
    struct caller caller; /* of QUESTION_CHECK; its thread, of QUESTION_COMMAND */
};

/* Comes with a descriptor if a file was opened. */
struct answer {
    int32_t result; /* 0 or a negative errno */
    char command[COMMAND_SIZE]; /* of QUESTION_COMMAND */
};

/* One path, which follows with its NUL, padded to 8 bytes. */
struct record {
    uint64_t device, inode; /* as in struct permission_query */
    int64_t seconds, nanoseconds;
    int32_t mask;
    uint32_t length; /* of the padded path */
};

enum { MESSAGE_BYTES = 64 << 10 };

_Static_assert(sizeof(struct question) + sizeof(struct record) + PATH_MAX + 8 < MESSAGE_BYTES,
               "a message has room for any path");

/* Ancillary data of one descriptor. */
union passed_fd {
    char room[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

/* `fd`: passed along; -1: none. */
static ssize_t
send_with_fd(int socket, const void *bytes, size_t size, int fd)
{
    struct iovec vector = {(void *)(uintptr_t)bytes, size};
    union passed_fd passed = {{0}};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    struct cmsghdr *control;
    ssize_t sent;

    if (fd >= 0) {
        message.msg_control = &passed;
        message.msg_controllen = sizeof(passed);
        control = CMSG_FIRSTHDR(&message);
        control->cmsg_level = SOL_SOCKET;
        control->cmsg_type = SCM_RIGHTS;
        control->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(control), &fd, sizeof(fd));
    }
    do
        sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

static ssize_t
receive_with_fd(int socket, void *bytes, size_t size, int *fd)
{
    struct iovec vector = {bytes, size};
    union passed_fd passed = {{0}};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = &passed,
                             .msg_controllen = sizeof(passed)};
    struct cmsghdr *control;
    ssize_t got;

    *fd = -1;
    do
        got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    control = got >= 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (control && control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(control), sizeof(*fd));
    return got;
}

/* ---- in the opener ---- */

/* Constant. */
struct opener {
    int source; /* the number of the descriptor */
    const struct renewal_path *path; /* of the source */
    bool has_proc; /* /proc is mounted: open_again() works */
    struct credentials process; /* the opener's own */
    void (*drop)(void *arg);
    void *arg;
};

/* A thread of the opener and the channel it serves. */
struct server {
    int channel;
    const struct opener *opener;
    bool assumes; /* the thread has the caller's credentials */
    union {
        struct question question;
        char bytes[MESSAGE_BYTES];
    } message;
};

/* Whether a path is relative and has no "..". Links on the path may still lead anywhere. */
static bool
is_path_below(const char *path)
{
    if (*path == '/')
        return false;
    for (const char *part = path; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || part[2] == '\0'))
            return false;
    }
    return true;
}

static int
open_for_daemon(const struct server *server, const char *path, int asked_flags, uint64_t mount)
{
    int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (asked_flags & O_DIRECTORY);
    struct stat st;
    int fd;

    if (!is_path_below(path))
        return -EACCES;
    if (mount)
        fd = open_at_mount(server->opener->source, path, flags, mount, NULL);
    else
        fd = open_at(server->opener->source, path, flags);
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)))
        return fd;
    close(fd);
    return -ENXIO;
}

/* Whether `fd` is the file that the daemon knows. */
static bool
is_expected_file(int fd, const struct record *record)
{
    struct stat st;

    if (!record->inode)
        return true;
    if (fstat(fd, &st) < 0 || st.st_dev != record->device || st.st_ino != record->inode)
        return false;
    return (!record->seconds && !record->nanoseconds) ||
           (st.st_ctim.tv_sec == record->seconds && st.st_ctim.tv_nsec == record->nanoseconds);
}

/* Opens the file for reading with the thread's credentials, and closes it. Unlike access(2), that
 * also applies rules of a FUSE or network file system that decides when a file is opened. */
static errint_t
try_to_open(int fd)
{
    struct stat st;
    int opened;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return -ESTALE; /* opening it may have side effects */
    opened = open_again(fd, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened >= 0)
        close(opened);
    /* Another process has a write lease, which the kernel checks after permissions. */
    return opened >= 0 || opened == -EWOULDBLOCK ? 0 : opened;
}

static errint_t
check_mask(const struct server *server, int fd, int mask, const struct resolve_rules *rules)
{
    errint_t error = 0;

    if (mask == 0)
        return 0;
    if (rules->permits)
        error = rules->permits(rules->arg, fd, mask);
    if (error || !server->assumes)
        return error;
    if (mask & R_OK && server->opener->has_proc)
        error = try_to_open(fd);
    if (error)
        return error;
    return syscall(SYS_faccessat2, fd, "", mask, AT_EMPTY_PATH | AT_EACCESS) == 0 ? 0 : -errno;
}

/* Looks up the paths of one question. Keeps the last directory open, since files of a checkpoint
 * are usually in the same directory. */
struct walk {
    const struct resolve_rules *rules;
    int directory; /* O_PATH; -1: none */
    const char *path; /* its first `length` bytes are the directory's path */
    size_t length;
};

/* As resolve_path_as() of a path below the source. */
static int
walk_open_path(struct walk *walk, int source, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    char directory[PATH_MAX];

    if (!slash || length >= sizeof(directory))
        return resolve_path_as(source, path, walk->rules);
    if (walk->directory < 0 || walk->length != length || memcmp(walk->path, path, length) != 0) {
        if (walk->directory >= 0)
            close(walk->directory);
        memcpy(directory, path, length);
        directory[length] = '\0';
        walk->path = path;
        walk->length = length;
        walk->directory = resolve_path_as(source, directory, walk->rules);
        if (walk->directory < 0)
            return walk->directory;
    }
    return resolve_path_as(walk->directory, slash + 1, walk->rules);
}

/* Checks one path with the thread's credentials, and by walk->rules. */
static errint_t
check_record(const struct server *server, const struct record *record, const char *path,
             struct walk *walk)
{
    errint_t error;
    int fd;

    if (!is_path_below(path))
        return -EACCES;
    fd = walk_open_path(walk, server->opener->source, path);
    if (fd == -ENOENT && record->inode)
        return -ESTALE;
    if (fd < 0)
        return fd;
    error = check_mask(server, fd, record->mask, walk->rules);
    if (!error && !is_expected_file(fd, record))
        error = -ESTALE;
    close(fd);
    return error;
}

/* Reads the record at *at, advances *at and returns the path; NULL: the message is malformed. */
static const char *
read_record(const struct server *server, size_t size, size_t *at, struct record *record)
{
    const char *path;

    if (size - *at < sizeof(*record))
        return NULL;
    memcpy(record, server->message.bytes + *at, sizeof(*record));
    *at += sizeof(*record);
    path = server->message.bytes + *at;
    if (record->length == 0 || size - *at < record->length || path[record->length - 1] != '\0')
        return NULL;
    *at += record->length;
    return path;
}

/* See struct resolve_rules. */
static errint_t
permit_device(void *arg, int fd, dev_t device)
{
    const struct credentials *credentials = arg;

    return mounted_devices_permit(fd, device, credentials->uid, credentials->gid, false);
}

/* The same if the kernel cannot be asked. */
static errint_t
permit_device_by_modes(void *arg, int fd, dev_t device)
{
    const struct credentials *credentials = arg;

    return mounted_devices_permit(fd, device, credentials->uid, credentials->gid, true);
}

static errint_t
check_records(const struct server *server, size_t size, const struct credentials *credentials)
{
    struct resolve_rules rules = {.user = credentials->uid,
                                  .permits_device = permit_device,
                                  .arg = (void *)(uintptr_t)credentials,
                                  .top = server->opener->source};
    struct walk walk = {.rules = &rules, .directory = -1};
    size_t at = sizeof(server->message.question);
    struct record record;
    errint_t error = 0;
    const char *path;

    if (!server->assumes)
        rules.permits_device = permit_device_by_modes;
    if (credentials->overrides)
        rules.permits_device = NULL;
    if (!server->assumes || credentials_have_unknown_groups(credentials))
        rules.permits = credentials_permit;
    for (uint32_t i = 0; !error && i < server->message.question.count; i++) {
        path = read_record(server, size, &at, &record);
        error = path ? check_record(server, &record, path, &walk) : -EACCES;
    }
    if (walk.directory >= 0)
        close(walk.directory);
    return error;
}

static errint_t
answer_check_question(struct server *server, size_t size)
{
    struct credentials credentials;
    errint_t error = credentials_of_caller(&server->message.question.caller, &credentials);

    if (error)
        return error;
    server->assumes = credentials_assume(&credentials, &server->opener->process);
    error = check_records(server, size, &credentials);
    if (error == -EACCES && credentials_may_override(&server->message.question.caller)) {
        credentials.overrides = true;
        server->assumes = credentials_assume(&credentials, &server->opener->process);
        error = check_records(server, size, &credentials);
    }
    credentials_free(&credentials);
    return error;
}

static int
answer_open_question(struct server *server, size_t size)
{
    size_t at = sizeof(server->message.question);
    struct record record;
    const char *path = read_record(server, size, &at, &record);

    if (!path)
        return -EACCES;
    return open_for_daemon(server, path, server->message.question.flags,
                           server->message.question.mount);
}

/* Fills in the answer; *fd: what was opened, or -1. */
static void
answer_question(struct server *server, size_t size, struct answer *answer, int *fd)
{
    *fd = -1;
    if (server->message.question.kind == QUESTION_COMMAND) {
        credentials_command(server->message.question.caller.pid, answer->command);
        return;
    }
    if (server->message.question.kind == QUESTION_OPEN) {
        (void)renewal_renew(server->opener->path, server->opener->source);
        *fd = answer_open_question(server, size);
        answer->result = *fd < 0 ? *fd : 0;
        return;
    }
    answer->result = answer_check_question(server, size);
    if (answer->result == 0)
        return;
    credentials_assume(&server->opener->process, &server->opener->process);
    if (renewal_renew(server->opener->path, server->opener->source) == RENEWAL_DONE)
        answer->result = answer_check_question(server, size);
}

static bool
start_detached(void *(*run)(void *arg), void *arg)
{
    pthread_attr_t attributes;
    pthread_t thread;
    bool started;

    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    started = pthread_create(&thread, &attributes, run, arg) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

static void *
run_close(void *fd)
{
    close((int)(intptr_t)fd);
    return NULL;
}

/* Closes a file that was passed to the daemon. close(2) may hang in the server of a FUSE or network
 * file system, so it then runs in its own thread: the channel's thread must stay available. */
static void
close_passed(int fd, bool is_local)
{
    if (is_local || !start_detached(run_close, (void *)(intptr_t)fd))
        close(fd);
}

/* May wait for the server of the file system. */
static bool
is_on_local_file_system(int fd)
{
    struct statfs fs;

    return fstatfs(fd, &fs) == 0 && file_system_is_local(&fs);
}

static void *
serve_channel(void *arg)
{
    struct server *server = arg;
    bool is_local;
    ssize_t got;
    int fd;

    for (;;) {
        struct answer answer = {0};

        got = receive_with_fd(server->channel, &server->message, sizeof(server->message), &fd);
        if (got < (ssize_t)sizeof(server->message.question))
            break;
        /* Drops the credentials of the last question, which may not permit access to the source or
         * /proc. */
        credentials_assume(&server->opener->process, &server->opener->process);
        answer_question(server, (size_t)got, &answer, &fd);
        is_local = fd >= 0 && is_on_local_file_system(fd);
        send_with_fd(server->channel, &answer, sizeof(answer), fd);
        if (fd >= 0)
            close_passed(fd, is_local);
    }
    close(server->channel);
    free(server);
    return NULL;
}

/* Starts a thread for a channel. If that fails, closes the channel, so that its questions are
 * refused. */
static void
start_server(const struct opener *opener, int channel)
{
    struct server *server = malloc(sizeof(*server));

    if (server) {
        server->channel = channel;
        server->opener = opener;
    }
    if (server && start_detached(serve_channel, server))
        return;
    free(server);
    close(channel);
}

static void
run_opener(int socket, void *arg)
{
    const struct opener *opener = arg;
    int channel;
    char byte = 0;

    mounted_devices_init();
    opener->drop(opener->arg);
    /* Each message is a channel. */
    while (receive_with_fd(socket, &byte, sizeof(byte), &channel) > 0)
        if (channel >= 0)
            start_server(opener, channel);
}

/* ---- in the daemon ---- */

static int opener_socket = -1;
static atomic_uint_fast64_t opened_count;

/* A thread's connection to the opener. */
struct channel {
    int socket;
    union {
        struct question question;
        char bytes[MESSAGE_BYTES];
    } message;
    size_t size;
};

static pthread_once_t channel_once = PTHREAD_ONCE_INIT;
static pthread_key_t channel_key;

static void
channel_free(void *arg)
{
    struct channel *channel = arg;

    close(channel->socket);
    free(channel);
}

static void
channel_make_key(void)
{
    pthread_key_create(&channel_key, channel_free);
}

static struct channel *
channel_new(void)
{
    struct channel *channel = malloc(sizeof(*channel));
    int ends[2];

    if (!channel)
        return NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
        free(channel);
        return NULL;
    }
    send_with_fd(opener_socket, "", 1, ends[1]);
    close(ends[1]);
    channel->socket = ends[0];
    return channel;
}

/* Returns this thread's channel; NULL: no memory or descriptors. */
static struct channel *
channel_of_thread(void)
{
    struct channel *channel;

    pthread_once(&channel_once, channel_make_key);
    channel = pthread_getspecific(channel_key);
    if (channel)
        return channel;
    channel = channel_new();
    if (channel && pthread_setspecific(channel_key, channel) != 0) {
        channel_free(channel);
        channel = NULL;
    }
    return channel;
}

static void
channel_begin_question(struct channel *channel, enum question_kind kind)
{
    channel->message.question = (struct question){.kind = kind};
    channel->size = sizeof(channel->message.question);
}

/* Returns false if the message is full. */
static bool
channel_add_record(struct channel *channel, const struct permission_query *query)
{
    size_t length = strlen(query->path) + 1, padded = (length + 7) & ~(size_t)7;
    struct record record = {.device = query->device,
                            .inode = query->inode,
                            .seconds = query->changed.tv_sec,
                            .nanoseconds = query->changed.tv_nsec,
                            .mask = query->mask,
                            .length = (uint32_t)padded};
    char *at = channel->message.bytes + channel->size;

    if (channel->size + sizeof(record) + padded > sizeof(channel->message))
        return false;
    memcpy(at, &record, sizeof(record));
    memset(at + sizeof(record), 0, padded);
    memcpy(at + sizeof(record), query->path, length);
    channel->size += sizeof(record) + padded;
    channel->message.question.count++;
    return true;
}

/* Frees a channel that the opener has closed because it could not start a thread. The next question
 * creates a new one. */
static void
channel_drop(struct channel *channel)
{
    pthread_setspecific(channel_key, NULL);
    channel_free(channel);
}

/* Sends the message and returns the answer; *fd: the descriptor that came with it, or -1. -EACCES:
 * there was no answer. */
static struct answer
channel_ask(struct channel *channel, int *fd)
{
    struct answer answer = {0};

    *fd = -1;
    if (send_with_fd(channel->socket, &channel->message, channel->size, -1) < 0 ||
        receive_with_fd(channel->socket, &answer, sizeof(answer), fd) != sizeof(answer)) {
        channel_drop(channel);
        return (struct answer){.result = -EACCES};
    }
    return answer;
}

errint_t
opener_start(int source, const struct renewal_path *path, void (*drop)(void *arg), void *arg,
             bool quiet, struct helper *helper)
{
    struct opener opener = {.source = source,
                            .path = path,
                            .has_proc = access("/proc/self/fd", X_OK) == 0,
                            .drop = drop,
                            .arg = arg};
    errint_t error = credentials_of_process(&opener.process);

    if (error)
        return error;
    error = helper_start("fstfs-open", quiet, source, run_opener, &opener, helper);
    opener_socket = helper->socket;
    credentials_free(&opener.process);
    return error;
}

void
opener_end(struct helper *helper)
{
    opener_socket = -1;
    helper_close(helper);
}

int
opener_open(int directory, const char *path, int flags, uint64_t mount)
{
    struct permission_query query = {.path = path};
    struct channel *channel;
    int fd, result;

    (void)directory;
    if (strlen(path) >= PATH_MAX)
        return -ENAMETOOLONG;
    channel = channel_of_thread();
    if (!channel)
        return -EMFILE;
    channel_begin_question(channel, QUESTION_OPEN);
    channel->message.question.flags = flags;
    channel->message.question.mount = mount;
    channel_add_record(channel, &query);
    result = channel_ask(channel, &fd).result;
    if (fd >= 0) {
        atomic_fetch_add_explicit(&opened_count, 1, memory_order_relaxed);
        return fd;
    }
    return result < 0 ? result : -EMFILE; /* opened, but this process has no free descriptor */
}

errint_t
opener_check(const struct caller *caller, const struct permission_query *queries, size_t count)
{
    struct channel *channel;
    errint_t error = 0;
    size_t done = 0;
    int fd;

    /* The daemon runs as this user, and without other rights. Another group may deny access;
     * supplementary groups are not compared (SECURITY.md). */
    if (caller->uid != 0 && caller->uid == geteuid() && caller->gid == getegid())
        return 0;
    channel = channel_of_thread();
    if (!channel)
        return -EMFILE;
    while (!error && done < count) {
        if (strlen(queries[done].path) >= PATH_MAX)
            return -ENAMETOOLONG;
        channel_begin_question(channel, QUESTION_CHECK);
        channel->message.question.caller = *caller;
        while (done < count && strlen(queries[done].path) < PATH_MAX &&
               channel_add_record(channel, &queries[done]))
            done++;
        error = channel_ask(channel, &fd).result;
        if (fd >= 0)
            close(fd);
    }
    return error;
}

void
opener_command(pid_t thread, char name[COMMAND_SIZE])
{
    struct channel *channel;
    struct answer answer;
    int fd;

    if (opener_socket < 0) {
        credentials_command(thread, name);
        return;
    }
    name[0] = '\0';
    channel = channel_of_thread();
    if (!channel)
        return;
    channel_begin_question(channel, QUESTION_COMMAND);
    channel->message.question.caller.pid = thread;
    answer = channel_ask(channel, &fd);
    if (fd >= 0)
        close(fd);
    snprintf(name, COMMAND_SIZE, "%.*s", COMMAND_SIZE - 1, answer.command);
}

uint64_t
opener_opened(void)
{
    return atomic_load(&opened_count);
}
