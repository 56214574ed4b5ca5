/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine as a pool of threads: a read that lies in memory is answered at
 * once; one that touches backing files waits in a queue for a worker, which
 * reads it with pread into its own buffer and answers it.
 *
 * The queue is guarded by `lock`; counters are atomics of their own; no lock is
 * held over a system call that reads or over `done`.
 */
#include "io/io.h"

#include "io/descriptors.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FEWEST_THREADS 8
#define MOST_THREADS 64
#define BUFFER_ALIGNMENT 4096
/* Runs of memory shorter than this are copied beside what was read: it costs
 * less than a vector, and bounds the vectors of one answer. */
#define COPY_BELOW 4096
/* A read of up to so many runs, all in memory, is answered from the stack. */
#define MOST_VECTORS_AT_ONCE 16
/* How often a read is tried again, a millisecond apart, that the storage
 * cannot do at the moment. */
#define MOST_RETRIES 1000

struct task {
    struct task *next;
    struct extent_list *list;
    uint64_t offset;
    size_t length;
    io_done done;
    void *arg;
};

struct counters {
    atomic_uint_fast64_t reads, bytes, storage_reads, storage_bytes, errors, stale, in_flight;
};

struct io {
    struct descriptors *descriptors;
    struct counters counters;
    pthread_mutex_t lock;
    pthread_cond_t work; /* the queue has a task, or stopping */
    struct task *first, **last; /* the queue; by lock */
    bool stopping; /* by lock */
    unsigned threads;
    pthread_t workers[MOST_THREADS];
};

/* What a worker has for itself. */
struct worker {
    struct io *io;
    char *buffer;
    size_t buffer_size;
    struct iovec *vectors;
    size_t vectors_size;
};

/* One run of a read: where it lies and how much of it is asked for. */
struct run {
    const struct extent *extent;
    uint64_t offset; /* in the backing or blob */
    size_t length;
};

/* The run at byte `offset` of the list, at most `length` bytes of it. */
static struct run
run_at(const struct extent *extent, uint64_t offset, size_t length)
{
    uint64_t skipped = offset - extent->start;
    uint64_t rest = extent->length - skipped;

    return (struct run){extent, extent->offset + skipped, rest < length ? (size_t)rest : length};
}

static void
add(atomic_uint_fast64_t *counter, uint64_t value)
{
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static uint64_t
get(atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void
answer(struct io *io, const struct task *task, errint_t result, const struct iovec *vectors,
       int count)
{
    struct counters *counters = &io->counters;

    add(&counters->reads, 1);
    if (result == 0)
        add(&counters->bytes, task->length);
    else
        add(&counters->errors, 1);
    if (result == -ESTALE)
        add(&counters->stale, 1);
    task->done(task->arg, result, vectors, result == 0 ? count : 0);
    atomic_fetch_sub(&counters->in_flight, 1);
}

static void
pause_a_little(void)
{
    struct timespec millisecond = {0, 1000000};

    nanosleep(&millisecond, NULL);
}

/* Reads all of the run; a short read at the end of the file means that the file
 * is no longer the one it was. */
static errint_t
read_fully(struct io *io, int fd, const struct run *run, char *to)
{
    size_t got = 0;
    unsigned retries = 0;

    while (got < run->length) {
        ssize_t result = pread(fd, to + got, run->length - got, (off_t)(run->offset + got));

        add(&io->counters.storage_reads, 1);
        if (result > 0) {
            add(&io->counters.storage_bytes, (uint64_t)result);
            got += (size_t)result;
        } else if (result == 0) {
            return descriptors_stale(run->extent->backing);
        } else if (errno == EAGAIN && retries++ < MOST_RETRIES) {
            pause_a_little();
        } else if (errno == ESTALE) {
            return descriptors_stale(run->extent->backing);
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

static errint_t
read_run(struct io *io, const struct run *run, char *to)
{
    struct backing *backing = run->extent->backing;
    int fd = descriptors_acquire(io->descriptors, backing);
    errint_t result;

    if (fd >= 0) {
        result = read_fully(io, fd, run, to);
        /* Only now is it known which version these bytes are of. */
        if (result == 0)
            result = descriptors_verify(backing, fd);
        descriptors_release(io->descriptors, backing);
    } else {
        result = fd;
    }
    if (result < 0 && result != -ESTALE)
        descriptors_failed(backing, run->offset, result);
    return result;
}

static bool
is_vector_of_its_own(const struct run *run)
{
    return run->extent->blob && run->length >= COPY_BELOW;
}

/* What of the buffer and how many vectors the task needs, at most. */
static void
measure(const struct task *task, size_t *bytes, size_t *vectors)
{
    const struct extent *extent = &task->list->extents[extent_list_find(task->list, task->offset)];
    uint64_t offset = task->offset;
    size_t left = task->length;

    *bytes = 0;
    *vectors = 1;
    for (; left > 0; extent++) {
        struct run run = run_at(extent, offset, left);

        if (is_vector_of_its_own(&run))
            *vectors += 2;
        else
            *bytes += run.length;
        offset += run.length;
        left -= run.length;
    }
}

static errint_t
reserve(struct worker *worker, size_t bytes, size_t vectors)
{
    if (worker->buffer_size < bytes) {
        free(worker->buffer);
        worker->buffer_size = 0;
        worker->buffer = aligned_alloc(BUFFER_ALIGNMENT, (bytes + BUFFER_ALIGNMENT - 1) /
                                                             BUFFER_ALIGNMENT * BUFFER_ALIGNMENT);
        if (!worker->buffer)
            return -ENOMEM;
        worker->buffer_size = bytes;
    }
    if (worker->vectors_size < vectors) {
        free(worker->vectors);
        worker->vectors_size = 0;
        worker->vectors = malloc(vectors * sizeof(worker->vectors[0]));
        if (!worker->vectors)
            return -ENOMEM;
        worker->vectors_size = vectors;
    }
    return 0;
}

static void
append(struct iovec *vectors, int *count, void *base, size_t length)
{
    struct iovec *last = *count ? &vectors[*count - 1] : NULL;

    if (last && (char *)last->iov_base + last->iov_len == base)
        last->iov_len += length;
    else
        vectors[(*count)++] = (struct iovec){base, length};
}

static errint_t
gather(struct worker *worker, const struct task *task, int *count)
{
    const struct extent *extent = &task->list->extents[extent_list_find(task->list, task->offset)];
    uint64_t offset = task->offset;
    size_t left = task->length;
    char *to = worker->buffer;
    errint_t result;

    for (; left > 0; extent++) {
        struct run run = run_at(extent, offset, left);

        if (is_vector_of_its_own(&run)) {
            append(worker->vectors, count, extent->blob->data + run.offset, run.length);
        } else {
            if (extent->blob)
                /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): reserved before */
                memcpy(to, extent->blob->data + run.offset, run.length);
            else if ((result = read_run(worker->io, &run, to)) < 0)
                return result;
            append(worker->vectors, count, to, run.length);
            to += run.length;
        }
        offset += run.length;
        left -= run.length;
    }
    return 0;
}

static void
run_task(struct worker *worker, struct task *task)
{
    size_t bytes, vectors;
    errint_t result;
    int count = 0;

    measure(task, &bytes, &vectors);
    result = reserve(worker, bytes, vectors);
    if (result == 0)
        result = gather(worker, task, &count);
    answer(worker->io, task, result, worker->vectors, count);
    extent_list_unref(task->list);
    free(task);
}

/* The next task, or NULL when the queue is empty for good. */
static struct task *
take(struct io *io)
{
    struct task *task;

    pthread_mutex_lock(&io->lock);
    while (!io->first && !io->stopping)
        pthread_cond_wait(&io->work, &io->lock);
    task = io->first;
    if (task) {
        io->first = task->next;
        if (!io->first)
            io->last = &io->first;
    }
    pthread_mutex_unlock(&io->lock);
    return task;
}

static void *
work(void *arg)
{
    struct worker worker = {.io = arg};
    struct task *task;

    pthread_setname_np(pthread_self(), "fstfs-io");
    while ((task = take(worker.io)))
        run_task(&worker, task);
    free(worker.buffer);
    free(worker.vectors);
    return NULL;
}

static unsigned
default_threads(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned threads = processors > 0 ? (unsigned)processors * 2 : 0;

    return threads < FEWEST_THREADS ? FEWEST_THREADS : threads;
}

static unsigned
start_workers(struct io *io, unsigned wanted)
{
    sigset_t all, before;
    unsigned made = 0;

    if (wanted > MOST_THREADS)
        wanted = MOST_THREADS;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (made < wanted && pthread_create(&io->workers[made], NULL, work, io) == 0)
        made++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return made;
}

errint_t
io_new(const struct io_options *options, struct io **io)
{
    struct io *made = calloc(1, sizeof(*made));
    errint_t result;

    if (!made)
        return -ENOMEM;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->work, NULL);
    made->last = &made->first;
    result = descriptors_new(options->descriptors, &made->descriptors);
    if (result < 0)
        goto fail;
    made->threads = start_workers(made, options->threads ? options->threads : default_threads());
    if (made->threads == 0) {
        result = -EAGAIN;
        goto fail;
    }
    *io = made;
    return 0;
fail:
    io_free(made);
    return result;
}

void
io_free(struct io *io)
{
    if (!io)
        return;
    pthread_mutex_lock(&io->lock);
    io->stopping = true;
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->lock);
    /* Workers leave when the queue is empty, so all is answered after this. */
    for (unsigned i = 0; i < io->threads; i++)
        pthread_join(io->workers[i], NULL);
    descriptors_free(io->descriptors);
    pthread_cond_destroy(&io->work);
    pthread_mutex_destroy(&io->lock);
    free(io);
}

/* Vectors for a range that is all in memory; 0 when it is not, or in too many
 * pieces for `most`. */
static int
vectors_in_memory(const struct extent_list *list, uint64_t offset, size_t length,
                  struct iovec *vectors, int most)
{
    const struct extent *extent = &list->extents[extent_list_find(list, offset)];
    int count = 0;

    for (; length > 0; extent++) {
        struct run run = run_at(extent, offset, length);

        if (!extent->blob || count == most)
            return 0;
        vectors[count++] = (struct iovec){extent->blob->data + run.offset, run.length};
        offset += run.length;
        length -= run.length;
    }
    return count;
}

static void
submit(struct io *io, struct task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&io->lock);
    *io->last = task;
    io->last = &task->next;
    pthread_cond_signal(&io->work);
    pthread_mutex_unlock(&io->lock);
}

void
io_read(struct io *io, struct extent_list *list, uint64_t offset, size_t length, io_done done,
        void *arg)
{
    struct task read = {NULL, list, offset, length, done, arg};
    struct iovec vectors[MOST_VECTORS_AT_ONCE];
    struct task *task;
    int count;

    atomic_fetch_add(&io->counters.in_flight, 1);
    count = vectors_in_memory(list, offset, length, vectors, MOST_VECTORS_AT_ONCE);
    if (count > 0) {
        extent_list_ref(list);
        answer(io, &read, 0, vectors, count);
        extent_list_unref(list);
        return;
    }
    task = malloc(sizeof(*task));
    if (!task) {
        answer(io, &read, -ENOMEM, NULL, 0);
        return;
    }
    *task = read;
    extent_list_ref(list);
    submit(io, task);
}

void
io_counters(struct io *io, struct io_counters *counters)
{
    counters->reads = get(&io->counters.reads);
    counters->bytes = get(&io->counters.bytes);
    counters->storage_reads = get(&io->counters.storage_reads);
    counters->storage_bytes = get(&io->counters.storage_bytes);
    counters->errors = get(&io->counters.errors);
    counters->stale = get(&io->counters.stale);
    counters->descriptors = descriptors_open(io->descriptors);
    counters->in_flight = get(&io->counters.in_flight);
}

void
io_status(struct io *io, struct buffer *out)
{
    buffer_addf(out,
                "{\"engine\":\"pread\",\"threads\":%u,\"descriptors\":%u,"
                "\"descriptors_most\":%u}",
                io->threads, descriptors_open(io->descriptors), descriptors_most(io->descriptors));
}
