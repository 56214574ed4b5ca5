/* SPDX-License-Identifier: Apache-2.0 */
/* See readers.h. In the child processes every error is written to the pipe and ends the process. */
#include "readers.h"

#include "base/array.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096u

/* In memory that the processes share. */
struct reader_shared {
    pthread_barrier_t start;
    atomic_size_t next[CHILDREN_MOST]; /* next segment to claim; only [0] without each_all */
    _Atomic uint64_t sum;
    _Atomic uint64_t started; /* monotonic_ns() when the first thread passed the barrier */
    _Atomic uint64_t ended; /* and when the last thread ended */
};

struct reader_file {
    int fd;
    const unsigned char *map;
    size_t size;
};

/* The work of one process. */
struct reader_job {
    const struct reader *reader;
    const struct plan *plan;
    struct reader_shared *shared;
    _Atomic uint64_t *done; /* bytes read, for the progress bar; or NULL */
    struct reader_file *files; /* parallel to plan->files */
    pthread_mutex_t opening; /* guards `opened` */
    bool opened;
    size_t claim_index; /* into shared->next */
    int out;
};

/* ---- plans ---- */

errint_t
plan_add_file(struct plan *plan, const char *path)
{
    char *file = strdup(path);

    if (file && array_add(plan->files, plan->file_count, file))
        return 0; /* cppcheck-suppress memleak ; the array owns it */
    free(file);
    return -ENOMEM;
}

errint_t
plan_add_segment(struct plan *plan, size_t file, uint64_t offset, uint64_t length)
{
    if (length > 0 && !array_add(plan->segments, plan->segment_count,
                                 (struct plan_segment){offset, length, file}))
        return -ENOMEM;
    plan->bytes += length;
    return 0;
}

void
plan_free(struct plan *plan)
{
    for (size_t i = 0; i < plan->file_count; i++)
        free(plan->files[i]);
    free(plan->files);
    free(plan->segments);
    *plan = (struct plan){0};
}

/* ---- readers ---- */

static const char *
segment_path(const struct reader_job *job, const struct plan_segment *s)
{
    return job->plan->files[s->file];
}

static void
reader_count_bytes(const struct reader_job *job, uint64_t bytes)
{
    if (job->done)
        atomic_fetch_add_explicit(job->done, bytes, memory_order_relaxed);
}

static void
reader_open_file(const struct reader_job *job, const char *path, struct reader_file *file)
{
    int direct = job->reader->kind == READER_DIRECT ? O_DIRECT : 0;
    struct stat st;

    file->fd = open(path, O_RDONLY | O_CLOEXEC | direct);
    if (file->fd < 0 && direct && errno == EINVAL)
        child_fail(job->out, CHILD_UNAVAILABLE, "%s: its file system has no O_DIRECT", path);
    if (file->fd < 0 || fstat(file->fd, &st) < 0)
        child_fail(job->out, 1, "%s: %s", path, strerror(errno));
    file->size = (size_t)st.st_size;
    if (job->reader->kind != READER_MMAP && job->reader->kind != READER_COPY)
        return;
    file->map = mmap(NULL, file->size, PROT_READ, MAP_SHARED, file->fd, 0);
    if (file->map == MAP_FAILED)
        child_fail(job->out, 1, "mmap %s: %s", path, strerror(errno));
}

/* Opens all files, in the first thread that gets here. */
static void
reader_open_files(struct reader_job *job)
{
    pthread_mutex_lock(&job->opening);
    for (size_t i = 0; !job->opened && i < job->plan->file_count; i++)
        reader_open_file(job, job->plan->files[i], &job->files[i]);
    job->opened = true;
    pthread_mutex_unlock(&job->opening);
}

/* The checksum of data[0, length), which is at offset `at` of a segment of `whole` bytes. */
static uint64_t
reader_sum(const unsigned char *data, uint64_t at, uint64_t length, uint64_t whole)
{
    uint64_t sum = 0;

    for (uint64_t i = (PAGE - at % PAGE) % PAGE; i < length; i += PAGE)
        sum += data[i];
    if (at + length == whole)
        sum += data[length - 1];
    return sum;
}

/* The address of a segment in its file's mapping. */
static const unsigned char *
segment_mapping(const struct reader_job *job, const struct plan_segment *s)
{
    if (s->offset + s->length > job->files[s->file].size)
        child_fail(job->out, 1, "%s is too short", segment_path(job, s));
    return job->files[s->file].map + s->offset;
}

static uint64_t
reader_touch_segment(const struct reader_job *job, const struct plan_segment *s)
{
    uint64_t sum = reader_sum(segment_mapping(job, s), 0, s->length, s->length);

    reader_count_bytes(job, s->length);
    return sum;
}

/* Reads a segment into `buffer`, block by block: from `fd` or, for READER_COPY, from the file's
 * mapping. Returns the checksum. */
static uint64_t
reader_read_segment(const struct reader_job *job, const struct plan_segment *s, int fd,
                    unsigned char *buffer)
{
    const unsigned char *map = job->reader->kind == READER_COPY ? segment_mapping(job, s) : NULL;
    const size_t block = job->reader->block;
    uint64_t sum = 0, at = 0;

    while (at < s->length) {
        size_t want = s->length - at < block ? (size_t)(s->length - at) : block;
        ssize_t got = (ssize_t)want;

        if (map)
            memcpy(buffer, map + at, want);
        else
            got = pread(fd, buffer, want, (off_t)(s->offset + at));
        if (got <= 0)
            child_fail(job->out, 1, "read %s at %" PRIu64 ": %s", segment_path(job, s),
                       s->offset + at, got < 0 ? strerror(errno) : "end of file");
        sum += reader_sum(buffer, at, (uint64_t)got, s->length);
        at += (uint64_t)got;
        reader_count_bytes(job, (uint64_t)got);
    }
    return sum;
}

static uint64_t
reader_read_whole_file(const struct reader_job *job, const struct plan_segment *s,
                       unsigned char *buffer)
{
    int fd = open(segment_path(job, s), O_RDONLY | O_CLOEXEC);
    uint64_t sum;

    if (fd < 0)
        child_fail(job->out, 1, "%s: %s", segment_path(job, s), strerror(errno));
    sum = reader_read_segment(job, s, fd, buffer);
    close(fd);
    return sum;
}

/* Takes the next segment of the plan; NULL: none is left. */
static const struct plan_segment *
reader_claim_segment(const struct reader_job *job)
{
    size_t i =
        atomic_fetch_add_explicit(&job->shared->next[job->claim_index], 1, memory_order_relaxed);

    return i < job->plan->segment_count ? &job->plan->segments[i] : NULL;
}

/* ---- O_DIRECT ---- */

/* One O_DIRECT read: a part of a segment, rounded out to whole pages. */
struct direct_read {
    const struct plan_segment *segment;
    uint64_t from; /* of the file, aligned */
    size_t length; /* aligned */
    unsigned char *buffer;
};

/* The position in the claimed segment; if there is none, the next segment is claimed. */
struct direct_cursor {
    const struct plan_segment *segment;
    uint64_t at;
};

/* Checks a completed read and returns the checksum of those of its bytes that are in its segment:
 * the first and the last page may also contain bytes of neighboring segments. */
static uint64_t
direct_finish_read(const struct reader_job *job, const struct direct_read *p, int got)
{
    const struct plan_segment *s = p->segment;
    uint64_t from = p->from < s->offset ? s->offset : p->from;
    uint64_t end = s->offset + s->length;
    uint64_t to = p->from + p->length < end ? p->from + p->length : end;

    if (got < 0)
        child_fail(job->out, got == -EINVAL ? CHILD_UNAVAILABLE : 1,
                   "direct read %s at %" PRIu64 ": %s", segment_path(job, s), p->from,
                   strerror(-got));
    if (p->from + (uint64_t)got < to)
        child_fail(job->out, 1, "direct read %s at %" PRIu64 ": short", segment_path(job, s),
                   p->from);
    reader_count_bytes(job, to - from);
    return reader_sum(p->buffer + (from - p->from), from - s->offset, to - from, s->length);
}

/* Returns the next read in *p. False: the whole plan has been claimed. */
static bool
direct_next_read(const struct reader_job *job, struct direct_cursor *cutting, struct direct_read *p)
{
    const size_t block = job->reader->block;
    uint64_t end;

    if (!cutting->segment) {
        cutting->segment = reader_claim_segment(job);
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
direct_submit_read(const struct reader_job *job, struct io_uring *ring, struct direct_read *p)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

    io_uring_prep_read(sqe, job->files[p->segment->file].fd, p->buffer, (unsigned)p->length,
                       p->from);
    io_uring_sqe_set_data(sqe, p);
}

static uint64_t
reader_read_direct(const struct reader_job *job, unsigned char *buffers)
{
    const unsigned depth = job->reader->depth;
    struct direct_read *reads = calloc(depth, sizeof(*reads));
    struct direct_read **idle = calloc(depth, sizeof(struct direct_read *));
    struct direct_cursor cutting = {NULL, 0};
    unsigned idle_count = depth;
    struct io_uring_cqe *cqe;
    struct io_uring ring;
    uint64_t sum = 0;
    int error = io_uring_queue_init(depth, &ring, 0);

    if (error < 0)
        child_fail(job->out, CHILD_UNAVAILABLE, "io_uring: %s", strerror(-error));
    if (!reads || !idle)
        child_fail(job->out, 1, "no memory");
    for (unsigned i = 0; i < depth; i++) {
        reads[i].buffer = buffers + i * job->reader->block;
        idle[i] = &reads[i];
    }
    for (;;) {
        while (idle_count > 0 && direct_next_read(job, &cutting, idle[idle_count - 1]))
            direct_submit_read(job, &ring, idle[--idle_count]);
        if (idle_count == depth)
            break;
        error = io_uring_submit_and_wait(&ring, 1);
        if (error < 0 && error != -EINTR)
            child_fail(job->out, 1, "io_uring: %s", strerror(-error));
        while (io_uring_peek_cqe(&ring, &cqe) == 0) {
            struct direct_read *p = io_uring_cqe_get_data(cqe);

            sum += direct_finish_read(job, p, cqe->res);
            io_uring_cqe_seen(&ring, cqe);
            idle[idle_count++] = p;
        }
    }
    io_uring_queue_exit(&ring);
    free(reads);
    free(idle);
    return sum;
}

/* ---- threads and processes ---- */

static uint64_t
reader_read_segments(const struct reader_job *job, unsigned char *buffer)
{
    const struct plan_segment *s;
    uint64_t sum = 0;

    if (job->reader->kind == READER_DIRECT)
        return reader_read_direct(job, buffer);
    while ((s = reader_claim_segment(job))) {
        if (job->reader->kind == READER_MMAP)
            sum += reader_touch_segment(job, s);
        else if (job->reader->kind == READER_FILE)
            sum += reader_read_whole_file(job, s, buffer);
        else
            sum += reader_read_segment(job, s, job->files[s->file].fd, buffer);
    }
    return sum;
}

static unsigned char *
reader_make_buffer(const struct reader_job *job)
{
    size_t buffers = job->reader->kind == READER_DIRECT ? job->reader->depth : 1;
    unsigned char *buffer = aligned_alloc(PAGE, job->reader->block * buffers);

    if (!buffer)
        child_fail(job->out, 1, "no memory");
    memset(buffer, 0, job->reader->block * buffers);
    return buffer;
}

static void *
reader_thread(void *arg)
{
    struct reader_job *job = arg;
    struct reader_shared *shared = job->shared;
    unsigned char *buffer = reader_make_buffer(job);
    uint64_t time, seen = 0;

    pthread_barrier_wait(&shared->start);
    time = monotonic_ns();
    atomic_compare_exchange_strong(&shared->started, &seen, time);
    if (job->reader->kind != READER_FILE)
        reader_open_files(job);
    atomic_fetch_add(&shared->sum, reader_read_segments(job, buffer));
    time = monotonic_ns();
    seen = atomic_load(&shared->ended);
    while (seen < time && !atomic_compare_exchange_weak(&shared->ended, &seen, time)) {
    }
    free(buffer);
    return NULL;
}

static void __attribute__((noreturn)) reader_process(void *arg, unsigned number, int out)
{
    struct reader_job job = *(const struct reader_job *)arg;
    pthread_t *ids = calloc(job.reader->threads, sizeof(*ids));

    prctl(PR_SET_NAME, "bench-reader");
    pthread_mutex_init(&job.opening, NULL);
    job.out = out;
    job.claim_index = job.reader->each_all ? number : 0;
    job.files = calloc(job.plan->file_count + 1, sizeof(*job.files));
    if (!ids || !job.files)
        child_fail(out, 1, "no memory");
    for (unsigned i = 0; i < job.reader->threads; i++) {
        if (pthread_create(&ids[i], NULL, reader_thread, &job) != 0)
            child_fail(out, 1, "cannot start a thread");
    }
    for (unsigned i = 0; i < job.reader->threads; i++)
        pthread_join(ids[i], NULL);
    _exit(0); /* faster than unmapping and closing */
}

errint_t
reader_run(const struct reader *reader, const struct plan *plan, struct progress *progress,
           struct reader_result *result, struct reason *reason)
{
    struct reader_job job = {
        .reader = reader, .plan = plan, .done = progress ? progress->running : NULL};
    struct buffer output = BUFFER_INIT;
    pthread_barrierattr_t attributes;
    errint_t error;

    job.shared =
        mmap(NULL, sizeof(*job.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job.shared == MAP_FAILED)
        return reason_no_memory(reason);
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&job.shared->start, &attributes, reader->threads * reader->processes);
    error = children_run(reader->processes, reader_process, &job, progress, &output,
                         &result->memory, reason);
    buffer_free(&output);
    result->seconds = (double)(job.shared->ended - job.shared->started) / 1e9;
    result->bytes = plan->bytes * (reader->each_all ? reader->processes : 1);
    result->sum = job.shared->sum;
    munmap(job.shared, sizeof(*job.shared));
    return error;
}
