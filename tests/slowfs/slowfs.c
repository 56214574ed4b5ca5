/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slowfs: mounts a directory read-only through FUSE, with the latency and faults of remote storage.
 *
 *   slowfs [-f] [-o OPT,...] SOURCE MOUNTPOINT
 *
 *   -o delay=US     latency of each request in microseconds; latencies of concurrent requests
 *                   elapse in parallel
 *   -o jitter=US    maximum of a random latency that is added to it
 *   -o bandwidth=N  the data of all reads shares a link of N million bytes per second (unlimited);
 *                   see link.h
 *   -o threads=N    maximum number of requests in service (256)
 *   -o valid=S      timeout of names and attributes in seconds, as of a network file system (1);
 *                   0: changes are visible at once
 *   -o age=S        seconds that are subtracted from time stamps (0)
 *   -o granularity=S  truncate time stamps to multiples of S seconds (not truncated)
 *   -o faults=FILE  faults to inject, see faults.h
 *   -o only=UID     only this user and root may open files; everyone may look them up, as on a
 *                   server that decides at open (everyone)
 *   -o at=N         a name that begins with @ is shown with N of them (1), as on file systems whose
 *                   names may be longer than 255 bytes
 *
 * Without delay it is a plain FUSE passthrough file system, a baseline without optimizations: the
 * kernel's readahead requests 128 KiB, and each request is a buffered pread(2). Each request is
 * served by one thread.
 */
#include "faults.h"
#include "link.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <search.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define READ_MOST (1u << 20)
#define SECOND_NS UINT64_C(1000000000)

struct slowfs_options {
    unsigned delay, jitter; /* microseconds */
    unsigned bandwidth; /* million bytes per second; 0: unlimited */
    unsigned threads;
    unsigned valid, age; /* seconds */
    unsigned granularity; /* seconds; 0: nanoseconds */
    char *faults; /* file */
    unsigned only; /* user; 0: every user */
    unsigned at; /* 0: as 1 */
};

static struct slowfs_options options = {.threads = 256, .valid = 1};

static const struct fuse_opt option_table[] = {
    {"delay=%u", offsetof(struct slowfs_options, delay), 0},
    {"jitter=%u", offsetof(struct slowfs_options, jitter), 0},
    {"bandwidth=%u", offsetof(struct slowfs_options, bandwidth), 0},
    {"threads=%u", offsetof(struct slowfs_options, threads), 0},
    {"valid=%u", offsetof(struct slowfs_options, valid), 0},
    {"age=%u", offsetof(struct slowfs_options, age), 0},
    {"granularity=%u", offsetof(struct slowfs_options, granularity), 0},
    {"faults=%s", offsetof(struct slowfs_options, faults), 0},
    {"only=%u", offsetof(struct slowfs_options, only), 0},
    {"at=%u", offsetof(struct slowfs_options, at), 0},
    FUSE_OPT_END,
};

/* Every path below the source that was looked up; its address is the inode number. None is freed,
 * and a file that is replaced in the source keeps its inode number. */
static void *paths; /* tsearch() tree; guarded by paths_lock */
static pthread_mutex_t paths_lock = PTHREAD_MUTEX_INITIALIZER;
static int source = -1; /* descriptor of the directory */

static int
compare_paths(const void *a, const void *b)
{
    return strcmp(a, b);
}

static const char *
path_of(fuse_ino_t ino)
{
    return ino == FUSE_ROOT_ID ? "." : (const char *)(uintptr_t)ino;
}

/* The path of `name` in a directory; NULL: out of memory. */
static const char *
path_below(fuse_ino_t directory, const char *name)
{
    char *path, **found;

    if (asprintf(&path, "%s/%s", path_of(directory), name) < 0)
        return NULL;
    pthread_mutex_lock(&paths_lock);
    found = tsearch(path, &paths, compare_paths);
    pthread_mutex_unlock(&paths_lock);
    if (!found || *found != path)
        free(path);
    return found ? *found : NULL;
}

static struct faults *faults; /* NULL: none */
static pthread_key_t buffer_key; /* each thread's read buffer */
static struct link network;

static uint64_t
clock_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static void
wait_until(uint64_t time)
{
    struct timespec t = {(time_t)(time / SECOND_NS), (long)(time % SECOND_NS)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

/* Waits for the latency of a request. Returns the time at which its reply is due. */
static uint64_t
wait_latency(void)
{
    uint64_t due = clock_now() + link_latency(&network);

    if (options.delay || options.jitter)
        wait_until(due);
    return due;
}

/* Waits until `size` bytes that were due at `due` have been transmitted. */
static void
wait_transmission(uint64_t due, size_t size)
{
    if (options.bandwidth && size > 0)
        wait_until(link_transmit(&network, due, size));
}

static void
complement(int fd)
{
    char part[65536];
    off_t at = 0;
    ssize_t got;

    while ((got = pread(fd, part, sizeof(part), at)) > 0) {
        for (ssize_t i = 0; i < got; i++)
            part[i] ^= (char)0xff;
        if (pwrite(fd, part, (size_t)got, at) != got)
            break;
        at += got;
    }
}

static void
change(const char *path, const struct fault *fault)
{
    int fd = -1;

    if (fault->change == CHANGE_REMOVE)
        unlinkat(source, path, 0);
    else if (fault->change == CHANGE_REPLACE)
        renameat(source, fault->other, source, path);
    else
        fd = openat(source, path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fault->change == CHANGE_REWRITE)
        complement(fd);
    else if (ftruncate(fd, fault->size) < 0)
        fprintf(stderr, "slowfs: %s: truncate: %s\n", path, strerror(errno));
    close(fd);
}

/* Returns the faults to inject into a request. Those that change the file have been applied. */
static struct fault
inject_faults(const char *operation, const char *path, off_t offset, size_t length)
{
    struct fault fault = {0};

    if (faults)
        fault = faults_for_request(faults, operation, strncmp(path, "./", 2) == 0 ? path + 2 : path,
                                   offset, length);
    if (fault.change)
        change(path, &fault);
    return fault;
}

static void
on_init(void *arg, struct fuse_conn_info *conn)
{
    conn->max_background = options.threads;
    conn->congestion_threshold = options.threads;
    conn->want |= conn->capable & (FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_ASYNC_DIO);
    conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
}

static void
age_time(struct timespec *t)
{
    t->tv_sec -= options.age;
    if (options.granularity > 0) {
        t->tv_sec -= t->tv_sec % options.granularity;
        t->tv_nsec = 0;
    }
}

static int
stat_aged(const char *path, struct stat *st)
{
    if (fstatat(source, path, st, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    age_time(&st->st_mtim);
    age_time(&st->st_ctim);
    return 0;
}

/* The name of a file of the source as it is shown; malloc'ed. */
static char *
lengthen(const char *name)
{
    const unsigned more = options.at && *name == '@' ? options.at - 1 : 0;
    char *shown = malloc(more + strlen(name) + 1);

    if (shown) {
        memset(shown, '@', more);
        strcpy(shown + more, name);
    }
    return shown;
}

/* Reverses lengthen(). */
static const char *
shorten(const char *shown)
{
    while (options.at && shown[0] == '@' && shown[1] == '@')
        shown++;
    return shown;
}

static void
on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param e = {.attr_timeout = options.valid, .entry_timeout = options.valid};
    const char *path = path_below(parent, shorten(name));
    struct fault fault;

    if (!path) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    wait_latency();
    fault = inject_faults("lookup", path, 0, 0);
    if (fault.error) {
        fuse_reply_err(req, fault.error);
        return;
    }
    if (stat_aged(path, &e.attr) < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    e.ino = (fuse_ino_t)(uintptr_t)path;
    fuse_reply_entry(req, &e);
}

static void
on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fault fault;
    struct stat st;

    wait_latency();
    fault = inject_faults("getattr", path_of(ino), 0, 0);
    if (fault.error)
        fuse_reply_err(req, fault.error);
    else if (stat_aged(path_of(ino), &st) < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_attr(req, &st, options.valid);
}

static void
on_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char target[4096];
    ssize_t length;

    wait_latency();
    length = readlinkat(source, path_of(ino), target, sizeof(target) - 1);
    if (length < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    target[length] = '\0';
    fuse_reply_readlink(req, target);
}

static void
on_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fault fault;
    int fd;

    wait_latency();
    fault = inject_faults(fi->flags & O_DIRECT ? "open-direct" : "open", path_of(ino), 0, 0);
    if (fault.error) {
        fuse_reply_err(req, fault.error);
        return;
    }
    if ((fi->flags & O_ACCMODE) != O_RDONLY) {
        fuse_reply_err(req, EROFS);
        return;
    }
    if (options.only && fuse_req_ctx(req)->uid != 0 && fuse_req_ctx(req)->uid != options.only) {
        fuse_reply_err(req, EACCES);
        return;
    }
    fd = openat(source, path_of(ino), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fuse_reply_err(req, errno);
        return;
    }
    fi->fh = (uint64_t)fd;
    fi->keep_cache = 1; /* AUTO_INVAL_DATA drops it when the file changes */
    if (fuse_reply_open(req, fi) < 0)
        close(fd);
}

/* The kernel sends no further ones after ENOSYS. */
static void
on_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    fuse_reply_err(req, faults ? inject_faults("flush", path_of(ino), 0, 0).error : ENOSYS);
}

static void
on_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    close((int)fi->fh);
    fuse_reply_err(req, 0);
}

/* READ_MOST bytes, freed with the thread; NULL: out of memory. */
static char *
thread_buffer(void)
{
    char *buffer = pthread_getspecific(buffer_key);

    if (!buffer) {
        buffer = aligned_alloc(4096, READ_MOST);
        pthread_setspecific(buffer_key, buffer);
    }
    return buffer;
}

static void
on_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    const char *operation = fi->flags & O_DIRECT ? "read-direct" : "read";
    uint64_t due = wait_latency();
    struct fault fault = inject_faults(operation, path_of(ino), offset, size);
    char *buffer = thread_buffer();
    size_t done = 0;

    if (fault.error) {
        fuse_reply_err(req, fault.error);
        return;
    }
    if (fault.is_short && fault.most < size)
        size = fault.most;
    if (!buffer || size > READ_MOST) {
        fuse_reply_err(req, buffer ? EINVAL : ENOMEM);
        return;
    }
    while (done < size) {
        ssize_t got = pread((int)fi->fh, buffer + done, size - done, offset + (off_t)done);

        if (got < 0) {
            fuse_reply_err(req, errno);
            return;
        }
        if (got == 0)
            break;
        done += (size_t)got;
    }
    if (fault.flips && fault.flip_at < offset + (off_t)done)
        buffer[fault.flip_at - offset] ^= (char)0xff;
    if (fault.zeros)
        memset(buffer, 0, done);
    wait_transmission(due, done);
    fuse_reply_buf(req, buffer, done);
}

static void
on_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fault fault;
    int fd;
    DIR *directory;

    wait_latency();
    fault = inject_faults("opendir", path_of(ino), 0, 0);
    if (fault.error) {
        fuse_reply_err(req, fault.error);
        return;
    }
    fd = openat(source, path_of(ino), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) {
        fuse_reply_err(req, errno);
        if (fd >= 0)
            close(fd);
        return;
    }
    fi->fh = (uint64_t)(uintptr_t)directory;
    if (fuse_reply_open(req, fi) < 0)
        closedir(directory);
}

static void
on_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, struct fuse_file_info *fi)
{
    DIR *directory = (DIR *)(uintptr_t)fi->fh;
    char *buffer = malloc(size);
    size_t used = 0;
    struct fault fault;
    struct dirent *entry;

    wait_latency();
    fault = inject_faults("readdir", path_of(ino), 0, 0);
    if (fault.error || !buffer) {
        fuse_reply_err(req, fault.error ? fault.error : ENOMEM);
        free(buffer);
        return;
    }
    if (offset == 0)
        rewinddir(directory);
    else
        seekdir(directory, offset);
    while ((entry = readdir(directory))) {
        struct stat st = {.st_ino = entry->d_ino, .st_mode = (mode_t)entry->d_type << 12};
        char *name = lengthen(entry->d_name);
        size_t needed = SIZE_MAX;

        if (name)
            needed = fuse_add_direntry(req, buffer + used, size - used, name, &st, entry->d_off);
        free(name);
        if (needed > size - used)
            break;
        used += needed;
    }
    fuse_reply_buf(req, buffer, used);
    free(buffer);
}

static void
on_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    closedir((DIR *)(uintptr_t)fi->fh);
    fuse_reply_err(req, 0);
}

static void
on_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct statvfs st;

    wait_latency();
    if (fstatvfs(source, &st) < 0)
        fuse_reply_err(req, errno);
    else
        fuse_reply_statfs(req, &st);
}

static const struct fuse_lowlevel_ops operations = {
    .init = on_init,
    .lookup = on_lookup,
    .getattr = on_getattr,
    .readlink = on_readlink,
    .open = on_open,
    .flush = on_flush,
    .read = on_read,
    .release = on_release,
    .opendir = on_opendir,
    .readdir = on_readdir,
    .releasedir = on_releasedir,
    .statfs = on_statfs,
};

/* Takes SOURCE, the first argument that is not an option; libfuse gets the others. */
static int
take_source(void *data, const char *arg, int key, struct fuse_args *args)
{
    if (key != FUSE_OPT_KEY_NONOPT || source >= 0)
        return 1;
    source = open(arg, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (source >= 0)
        return 0;
    fprintf(stderr, "slowfs: %s: %s\n", arg, strerror(errno));
    return -1;
}

static int
serve(struct fuse_session *session)
{
    struct fuse_loop_config *config = fuse_loop_cfg_create();
    int result;

    if (!config)
        return 1;
    fuse_loop_cfg_set_max_threads(config, options.threads);
    fuse_loop_cfg_set_idle_threads(config, options.threads);
    result = fuse_session_loop_mt(session, config);
    fuse_loop_cfg_destroy(config);
    return result;
}

int
main(int argc, char **argv)
{
    struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
    struct fuse_cmdline_opts command = {0};
    struct fuse_session *session;
    struct rlimit files;
    int result = -1;

    if (fuse_opt_parse(&args, &options, option_table, take_source) < 0 ||
        fuse_parse_cmdline(&args, &command) < 0)
        return 2;
    if (options.faults) {
        faults = faults_new(options.faults);
        if (!faults)
            return 1;
    }
    if (source < 0 || !command.mountpoint) {
        fprintf(stderr,
                "usage: slowfs [-f] [-o delay=US,bandwidth=N,faults=FILE,...] SOURCE MOUNTPOINT\n");
        return 2;
    }
    link_init(&network, options.delay * UINT64_C(1000), options.jitter * UINT64_C(1000),
              options.bandwidth * UINT64_C(1000000));
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    pthread_key_create(&buffer_key, free);
    prctl(PR_SET_TIMERSLACK, 1000); /* nanoseconds; threads inherit it */
    session = fuse_session_new(&args, &operations, sizeof(operations), NULL);
    if (!session)
        return 1;
    if (fuse_set_signal_handlers(session) == 0 &&
        fuse_session_mount(session, command.mountpoint) == 0) {
        if (fuse_daemonize(command.foreground) == 0)
            result = serve(session);
        fuse_session_unmount(session);
    }
    fuse_remove_signal_handlers(session);
    fuse_session_destroy(session);
    free(command.mountpoint);
    fuse_opt_free_args(&args);
    return result < 0; /* above 0: a signal ended the loop */
}
