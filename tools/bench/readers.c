/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See readers.h. Whoever runs a reader forks its processes; in them whatever goes
 * wrong is written to the pipe and ends the process.
 */
#include "readers.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096u

/* What processes share. */
struct shared {
    pthread_barrier_t start;
    atomic_size_t next[READER_PROCESSES_MOST]; /* only [0] without each_all */
    _Atomic uint64_t sum;
    _Atomic uint64_t ended; /* nanoseconds: when the last thread was done */
    _Atomic uint64_t started; /* when the first thread passed the barrier */
};

struct open_file {
    int fd;
    const unsigned char *map;
    size_t size;
};

/* What one process works on. */
struct job {
    const struct reader *reader;
    const struct plan *plan;
    struct shared *shared;
    _Atomic uint64_t *done;
    struct open_file *files; /* as plan->files */
    pthread_mutex_t opening;
    bool opened;
    size_t turn; /* index into shared->next */
    int out;
};

static void __attribute__((noreturn, format(printf, 3, 4)))
die(const struct job *job, int status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vdprintf(job->out, format, args);
    va_end(args);
    _exit(status);
}

static const char *
path_of(const struct job *job, const struct plan_segment *s)
{
    return job->plan->files[s->file];
}

static void
count(const struct job *job, uint64_t bytes)
{
    if (job->done)
        atomic_fetch_add_explicit(job->done, bytes, memory_order_relaxed);
}

static bool
is_mapped(const struct reader *reader)
{
    return reader->kind == READER_MMAP || reader->kind == READER_COPY;
}

static void
open_file(const struct job *job, const char *path, struct open_file *file)
{
    int direct = job->reader->kind == READER_DIRECT ? O_DIRECT : 0;
    struct stat st;

    file->fd = open(path, O_RDONLY | O_CLOEXEC | direct);
    if (file->fd < 0 && direct && errno == EINVAL)
        die(job, CHILD_UNAVAILABLE, "%s: its file system has no O_DIRECT", path);
    if (file->fd < 0 || fstat(file->fd, &st) < 0)
        die(job, 1, "%s: %s", path, strerror(errno));
    file->size = (size_t)st.st_size;
    if (!is_mapped(job->reader))
        return;
    file->map = mmap(NULL, file->size, PROT_READ, MAP_SHARED, file->fd, 0);
    if (file->map == MAP_FAILED)
        die(job, 1, "mmap %s: %s", path, strerror(errno));
}

/* By the first thread of a process that needs them. */
static void
open_files(struct job *job)
{
    pthread_mutex_lock(&job->opening);
    for (size_t i = 0; !job->opened && i < job->plan->file_count; i++)
        open_file(job, job->plan->files[i], &job->files[i]);
    job->opened = true;
    pthread_mutex_unlock(&job->opening);
}

/* The bytes at data[0, length) lie `at` into a segment of `whole` bytes. */
static uint64_t
sum_of(const unsigned char *data, uint64_t at, uint64_t length, uint64_t whole)
{
    uint64_t sum = 0;

    for (uint64_t i = (PAGE - at % PAGE) % PAGE; i < length; i += PAGE)
        sum += data[i];
    if (at + length == whole)
        sum += data[length - 1];
    return sum;
}

static uint64_t
read_segment(const struct job *job, const struct plan_segment *s, unsigned char *buffer)
{
    const size_t block = job->reader->block;
    uint64_t sum = 0, at = 0;

    while (at < s->length) {
        size_t want = s->length - at < block ? (size_t)(s->length - at) : block;
        ssize_t got = pread(job->files[s->file].fd, buffer, want, (off_t)(s->offset + at));

        if (got <= 0)
            die(job, 1, "read %s at %" PRIu64 ": %s", path_of(job, s), s->offset + at,
                got < 0 ? strerror(errno) : "end of file");
        sum += sum_of(buffer, at, (uint64_t)got, s->length);
        at += (uint64_t)got;
        count(job, (uint64_t)got);
    }
    return sum;
}

static uint64_t
read_file(const struct job *job, const struct plan_segment *s, unsigned char *buffer)
{
    int fd = open(path_of(job, s), O_RDONLY | O_CLOEXEC);
    uint64_t sum = 0, at = 0;
    ssize_t got;

    if (fd < 0)
        die(job, 1, "%s: %s", path_of(job, s), strerror(errno));
    while ((got = read(fd, buffer, job->reader->block)) > 0) {
        sum += sum_of(buffer, at, (uint64_t)got, s->length);
        at += (uint64_t)got;
        count(job, (uint64_t)got);
    }
    if (got < 0 || at != s->length)
        die(job, 1, "read %s: %s", path_of(job, s),
            got < 0 ? strerror(errno) : "not the size it should have");
    close(fd);
    return sum;
}

/* Where a segment begins in its file's mapping. */
static const unsigned char *
mapped(const struct job *job, const struct plan_segment *s)
{
    if (s->offset + s->length > job->files[s->file].size)
        die(job, 1, "%s is too short", path_of(job, s));
    return job->files[s->file].map + s->offset;
}

static uint64_t
touch(const struct job *job, const struct plan_segment *s)
{
    uint64_t sum = sum_of(mapped(job, s), 0, s->length, s->length);

    count(job, s->length);
    return sum;
}

static uint64_t
copy(const struct job *job, const struct plan_segment *s, unsigned char *buffer)
{
    const unsigned char *data = mapped(job, s);
    const size_t block = job->reader->block;
    uint64_t sum = 0, at = 0;

    while (at < s->length) {
        size_t piece = s->length - at < block ? (size_t)(s->length - at) : block;

        memcpy(buffer, data + at, piece);
        sum += sum_of(buffer, at, piece, s->length);
        at += piece;
        count(job, piece);
    }
    return sum;
}

/* The next segment that nobody has; NULL: there is none. */
static const struct plan_segment *
claim(const struct job *job)
{
    size_t i = atomic_fetch_add_explicit(&job->shared->next[job->turn], 1, memory_order_relaxed);

    return i < job->plan->segment_count ? &job->plan->segments[i] : NULL;
}

/* ---- O_DIRECT ---- */

/* One O_DIRECT read: the aligned superset of a piece of a segment. */
struct piece {
    const struct plan_segment *segment;
    uint64_t from; /* of the file, aligned */
    size_t length; /* aligned */
    unsigned char *buffer;
};

/* The segment whose pieces are being handed out; NULL: the next is to be claimed. */
struct cutting {
    const struct plan_segment *segment;
    uint64_t at;
};

/* What is new in a piece for its segment: neighbours share an aligned page. */
static uint64_t
finish_piece(const struct job *job, const struct piece *p, int got)
{
    const struct plan_segment *s = p->segment;
    uint64_t from = p->from < s->offset ? s->offset : p->from;
    uint64_t end = s->offset + s->length;
    uint64_t to = p->from + p->length < end ? p->from + p->length : end;

    if (got < 0)
        die(job, got == -EINVAL ? CHILD_UNAVAILABLE : 1, "direct read %s at %" PRIu64 ": %s",
            path_of(job, s), p->from, strerror(-got));
    if (p->from + (uint64_t)got < to)
        die(job, 1, "direct read %s at %" PRIu64 ": short", path_of(job, s), p->from);
    count(job, to - from);
    return sum_of(p->buffer + (from - p->from), from - s->offset, to - from, s->length);
}

/* The next piece of the plan in *p; false when all of it has been claimed. */
static bool
next_piece(const struct job *job, struct cutting *cutting, struct piece *p)
{
    const size_t block = job->reader->block;
    uint64_t end;

    if (!cutting->segment) {
        cutting->segment = claim(job);
        if (!cutting->segment)
            return false;
        cutting->at = cutting->segment->offset / PAGE * PAGE;
    }
    end = cutting->segment->offset + cutting->segment->length;
    end = (end + PAGE - 1) / PAGE * PAGE;
    p->segment = cutting->segment;
    p->from = cutting->at;
    p->length = end - cutting->at < block ? (size_t)(end - cutting->at) : block;
    cutting->at += p->length;
    if (cutting->at == end)
        cutting->segment = NULL;
    return true;
}

static void
submit_piece(const struct job *job, struct io_uring *ring, struct piece *p)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

    io_uring_prep_read(sqe, job->files[p->segment->file].fd, p->buffer, (unsigned)p->length,
                       p->from);
    io_uring_sqe_set_data(sqe, p);
}

static uint64_t
read_direct(const struct job *job, unsigned char *buffers)
{
    const unsigned depth = job->reader->depth;
    struct piece *pieces = calloc(depth, sizeof(*pieces));
    struct piece **idle = calloc(depth, sizeof(struct piece *));
    struct cutting cutting = {NULL, 0};
    unsigned idle_count = depth;
    struct io_uring_cqe *cqe;
    struct io_uring ring;
    uint64_t sum = 0;
    int error = io_uring_queue_init(depth, &ring, 0);

    if (error < 0)
        die(job, CHILD_UNAVAILABLE, "io_uring: %s", strerror(-error));
    if (!pieces || !idle)
        die(job, 1, "no memory");
    for (unsigned i = 0; i < depth; i++) {
        pieces[i].buffer = buffers + i * job->reader->block;
        idle[i] = &pieces[i];
    }
    for (;;) {
        while (idle_count > 0 && next_piece(job, &cutting, idle[idle_count - 1]))
            submit_piece(job, &ring, idle[--idle_count]);
        if (idle_count == depth)
            break;
        error = io_uring_submit_and_wait(&ring, 1);
        if (error < 0 && error != -EINTR)
            die(job, 1, "io_uring: %s", strerror(-error));
        while (io_uring_peek_cqe(&ring, &cqe) == 0) {
            struct piece *p = io_uring_cqe_get_data(cqe);

            sum += finish_piece(job, p, cqe->res);
            io_uring_cqe_seen(&ring, cqe);
            idle[idle_count++] = p;
        }
    }
    io_uring_queue_exit(&ring);
    free(pieces);
    free(idle);
    return sum;
}

/* ---- threads and processes ---- */

static uint64_t
read_claimed(const struct job *job, unsigned char *buffer)
{
    const struct plan_segment *s;
    uint64_t sum = 0;

    if (job->reader->kind == READER_DIRECT)
        return read_direct(job, buffer);
    while ((s = claim(job))) {
        if (job->reader->kind == READER_MMAP)
            sum += touch(job, s);
        else if (job->reader->kind == READER_COPY)
            sum += copy(job, s, buffer);
        else if (job->reader->kind == READER_FILE)
            sum += read_file(job, s, buffer);
        else
            sum += read_segment(job, s, buffer);
    }
    return sum;
}

static unsigned char *
make_buffer(const struct job *job)
{
    size_t buffers = job->reader->kind == READER_DIRECT ? job->reader->depth : 1;
    unsigned char *buffer = aligned_alloc(PAGE, job->reader->block * buffers);

    if (!buffer)
        die(job, 1, "no memory");
    memset(buffer, 0, job->reader->block * buffers);
    return buffer;
}

static void *
run_thread(void *arg)
{
    struct job *job = arg;
    struct shared *shared = job->shared;
    unsigned char *buffer = make_buffer(job);
    uint64_t time, seen = 0;

    pthread_barrier_wait(&shared->start);
    time = monotonic_ns();
    atomic_compare_exchange_strong(&shared->started, &seen, time);
    if (job->reader->kind != READER_FILE)
        open_files(job);
    atomic_fetch_add(&shared->sum, read_claimed(job, buffer));
    time = monotonic_ns();
    seen = atomic_load(&shared->ended);
    while (seen < time && !atomic_compare_exchange_weak(&shared->ended, &seen, time)) {
    }
    free(buffer);
    return NULL;
}

static void __attribute__((noreturn)) run_process(struct job *job)
{
    pthread_t *ids = calloc(job->reader->threads, sizeof(*ids));

    prctl(PR_SET_NAME, "bench-reader");
    pthread_mutex_init(&job->opening, NULL);
    job->files = calloc(job->plan->file_count + 1, sizeof(*job->files));
    if (!ids || !job->files)
        die(job, 1, "no memory");
    for (unsigned i = 0; i < job->reader->threads; i++) {
        if (pthread_create(&ids[i], NULL, run_thread, job) != 0)
            die(job, 1, "cannot make a thread");
    }
    for (unsigned i = 0; i < job->reader->threads; i++)
        pthread_join(ids[i], NULL);
    _exit(0); /* without unmapping and closing: the time has been taken */
}

static struct shared *
share(unsigned parties)
{
    struct shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;

    if (shared == MAP_FAILED)
        return NULL;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->start, &attributes, parties);
    return shared;
}

/* How many were made; fewer than wanted: errno says why. */
static unsigned
fork_processes(struct job *job, pid_t *pids)
{
    pid_t parent = getpid();

    for (unsigned i = 0; i < job->reader->processes; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            return i;
        if (pids[i] == 0) {
            child_begin(parent);
            job->turn = job->reader->each_all ? i : 0;
            run_process(job);
        }
    }
    return job->reader->processes;
}

/* They wait for the others, which will never come. */
static void
kill_all(const pid_t *pids, unsigned made)
{
    for (unsigned i = 0; i < made; i++)
        kill(pids[i], SIGKILL);
}

static errint_t
run_shared(struct job *job, const struct watch *watch, uint64_t *memory, struct reason *reason)
{
    struct buffer said = BUFFER_INIT;
    pid_t pids[READER_PROCESSES_MOST];
    int ends[2], why = 0;
    errint_t error;
    unsigned made;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return reason_set(reason, -errno, "Pipe", "pipe: %s", strerror(errno));
    job->out = ends[1];
    made = fork_processes(job, pids);
    if (made < job->reader->processes) {
        why = errno;
        kill_all(pids, made);
    }
    close(ends[1]);
    error = child_wait(pids, made, ends[0], watch, &said, memory, reason);
    buffer_free(&said);
    return why ? reason_set(reason, -why, "Fork", "fork: %s", strerror(why)) : error;
}

errint_t
reader_run(const struct reader *reader, const struct plan *plan, const struct watch *watch,
           _Atomic uint64_t *done, struct reader_result *result, struct reason *reason)
{
    struct job job = {.reader = reader, .plan = plan, .done = done};
    errint_t error;

    job.shared = share(reader->threads * reader->processes);
    if (!job.shared)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    error = run_shared(&job, watch, &result->memory, reason);
    result->seconds = (double)(job.shared->ended - job.shared->started) / 1e9;
    result->bytes = plan->bytes * (reader->each_all ? reader->processes : 1);
    result->sum = job.shared->sum;
    munmap(job.shared, sizeof(*job.shared));
    return error;
}
