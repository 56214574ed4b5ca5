/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a read:
 *
 *   storage_read -> (a descriptor is open) start -> finish
 *                `-> (must be opened, waited for, tried again) run_job -> start
 *
 * start() takes it from the page cache when it all lies there, else gives it to
 * a ring. What a ring could not do in one go - a short read, EINTR, EAGAIN, EIO -
 * a worker does over, waiting as long as it needs. A read that waits for a worker
 * never holds a descriptor: workers may all be waiting for one.
 */
#include "io/storage.h"

#include "io/block.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_DEPTH 64
#define MOST_RINGS 8
#define THREADS_BESIDE_RINGS 8
#define THREADS_ALONE 16
#define MOST_RETRIES 1000 /* of EAGAIN, a millisecond apart */
#define MOST_ATTEMPTS 4 /* in the face of EIO */
#define FIRST_PAUSE_MS 5 /* doubled before each further attempt */

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80 /* Linux 6.14 */
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5, the same on all machines */
#endif

struct storage {
    struct descriptors *descriptors;
    struct workers *workers;
    struct ring *rings[MOST_RINGS];
    struct rings all_rings;
    unsigned ring_count;
    atomic_uint next_ring;
    unsigned depth;
    unsigned threads;
    bool direct;
    bool ring; /* wanted */
    struct reason no_ring; /* why not; text "" when there is one */
    atomic_bool no_dontcache; /* the kernel or a file system does not know it */
    atomic_bool no_cachestat;
    atomic_uint pending; /* reads not yet completed */
    struct storage_counters counters;
};

static struct storage_read *
read_of_ring(struct ring_read *ring_read)
{
    return (struct storage_read *)((char *)ring_read - offsetof(struct storage_read, ring_read));
}

static struct storage_read *
read_of_job(struct job *job)
{
    return (struct storage_read *)((char *)job - offsetof(struct storage_read, job));
}

static void
add(atomic_uint_fast64_t *counter, uint64_t value)
{
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static void
count_bytes(struct storage *storage, size_t bytes)
{
    add(&storage->counters.reads, 1);
    add(&storage->counters.bytes, bytes);
}

static void
pause_ms(unsigned ms)
{
    struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&pause, NULL);
}

/* Whether the file's page cache holds all of the read. */
static bool
lies_in_page_cache(struct storage *storage, const struct storage_read *read, int fd)
{
    struct {
        uint64_t offset, length;
    } range = {read->offset, read->valid};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } state;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t pages = (read->offset + read->valid - 1) / page - read->offset / page + 1;

    if (atomic_load_explicit(&storage->no_cachestat, memory_order_relaxed))
        return false;
    if (syscall(SYS_cachestat, fd, &range, &state, 0) < 0) {
        if (errno == ENOSYS || errno == EPERM)
            atomic_store(&storage->no_cachestat, true);
        return false;
    }
    return state.cached >= pages;
}

/* Hands the read to a worker, which may block. Holds no descriptor. */
static void
give_to_worker(struct storage *storage, struct storage_read *read)
{
    workers_add(storage->workers, &read->job, read->urgent);
}

/* With the descriptor held: has a worker read it all, step by step. */
static void
read_by_worker(struct storage *storage, struct storage_read *read)
{
    read->alone = true;
    descriptors_release(storage->descriptors, read->backing, read->access);
    give_to_worker(storage, read);
}

/* No descriptor is held any more. */
static void
complete(struct storage *storage, struct storage_read *read, errint_t result)
{
    atomic_fetch_sub_explicit(&storage->pending, 1, memory_order_relaxed);
    read->complete(read, result);
}

/* The read has ended one way or the other; `fd` is held. */
static void
finish(struct storage *storage, struct storage_read *read, int fd, errint_t result)
{
    struct backing *backing = read->backing;

    if (result == 0) {
        /* Only now is it known which version these bytes are of. */
        result = descriptors_verify(backing, fd);
        if (read->access == ACCESS_BUFFERED && !read->was_cached && !(read->flags & RWF_DONTCACHE))
            posix_fadvise(fd, (off_t)read->offset, (off_t)read->length, POSIX_FADV_DONTNEED);
    } else if (result == -ESTALE) {
        descriptors_stale(backing);
    }
    descriptors_release(storage->descriptors, backing, read->access);
    complete(storage, read, result);
}

/* From a ring: all of it is there. The ring's thread must not wait for a server. */
static void
read_succeeded(struct storage *storage, struct storage_read *read, int fd)
{
    if (!descriptors_may_wait(storage->descriptors, read->backing)) {
        finish(storage, read, fd, 0);
        return;
    }
    read->is_read = true;
    descriptors_release(storage->descriptors, read->backing, read->access);
    give_to_worker(storage, read);
}

/* Copies from the page cache; false when some of it has gone meanwhile. */
static bool
copy_cached(struct storage *storage, struct storage_read *read, int fd)
{
    size_t got = 0;
    int flags = RWF_NOWAIT;

    while (got < read->valid) {
        struct iovec vector = {read->buffer + got, read->valid - got};
        ssize_t result = preadv2(fd, &vector, 1, (off_t)(read->offset + got), flags);

        if (result < 0 && errno == EINTR)
            continue;
        if (result < 0 && errno == EOPNOTSUPP && flags) {
            /* As tmpfs: but it is there, so it will not wait. */
            flags = 0;
            continue;
        }
        if (result <= 0)
            return false;
        got += (size_t)result;
    }
    count_bytes(storage, got);
    add(&storage->counters.cached_bytes, got);
    read->copied = true;
    return true;
}

/* What a refused flag or way of reading means for the next attempt; false when
 * the error is an error. */
static bool
step_down(struct storage *storage, struct storage_read *read, errint_t error)
{
    if (read->access == ACCESS_DIRECT && error == -EINVAL) {
        descriptors_refuse_direct(storage->descriptors, read->backing,
                                  "the file system refuses direct reads");
        return true;
    }
    if ((read->flags & RWF_DONTCACHE) && error == -EOPNOTSUPP) {
        atomic_store(&storage->no_dontcache, true);
        read->flags &= ~RWF_DONTCACHE;
        return true;
    }
    return false;
}

static void
ring_ended(struct ring_read *ring_read, int result)
{
    struct storage_read *read = read_of_ring(ring_read);
    struct storage *storage = read->storage;
    bool unread = result == -ECANCELED;
    bool again = result >= 0 || unread || result == -EINTR || result == -EAGAIN || result == -EIO;

    if (!unread)
        histogram_add(&storage->counters.duration, ring_read->duration);
    if (result > 0)
        count_bytes(storage, (size_t)result);
    if (result > 0 && (size_t)result >= read->valid) {
        read_succeeded(storage, read, ring_read->fd);
        return;
    }
    if (!again && !step_down(storage, read, result)) {
        finish(storage, read, ring_read->fd, result);
        return;
    }
    /* All of it again, without haste. */
    add(&storage->counters.retries, !unread);
    read_by_worker(storage, read);
}

/* A direct read can go on only where a block starts. */
static size_t
resume_at(const struct storage_read *read, size_t got)
{
    return read->access == ACCESS_DIRECT && got < read->valid ? (size_t)block_down(got) : got;
}

/* One call, from a worker; `got` bytes are there already. */
static ssize_t
read_once(struct storage *storage, struct storage_read *read, int fd, size_t got)
{
    struct iovec vector = {read->buffer + got, read->length - got};
    uint64_t started = monotonic_ns();
    ssize_t result;

    atomic_fetch_add_explicit(&storage->all_rings.in_flight, 1, memory_order_relaxed);
    result = preadv2(fd, &vector, 1, (off_t)(read->offset + got), read->flags);
    if (result < 0)
        result = -errno;
    atomic_fetch_sub_explicit(&storage->all_rings.in_flight, 1, memory_order_relaxed);
    histogram_add_since(&storage->counters.duration, started);
    return result;
}

/* Reads it all from a worker, with as many calls as it takes. */
static errint_t
read_alone(struct storage *storage, struct storage_read *read, int fd)
{
    size_t got = 0;
    unsigned retries = 0, attempts = 1;

    while (got < read->valid) {
        ssize_t result = read_once(storage, read, fd, got);

        if (result > 0) {
            size_t next = resume_at(read, got + (size_t)result);

            count_bytes(storage, (size_t)result);
            /* Less than a block, of a file that goes on: as good as its end. */
            if (next == got)
                return -ESTALE;
            got = next;
            continue;
        }
        if (result == 0)
            return -ESTALE; /* it ends before it should */
        if (result == -EAGAIN && retries++ < MOST_RETRIES)
            pause_ms(1);
        else if (result == -EIO && attempts < MOST_ATTEMPTS)
            pause_ms(FIRST_PAUSE_MS << attempts++);
        else if (result != -EINTR)
            return (errint_t)result;
        add(&storage->counters.retries, 1);
    }
    return 0;
}

/* From a worker, with the descriptor held. */
static void
run_alone(struct storage *storage, struct storage_read *read, int fd)
{
    errint_t result = read_alone(storage, read, fd);

    if (result < 0 && step_down(storage, read, result)) {
        descriptors_release(storage->descriptors, read->backing, read->access);
        give_to_worker(storage, read);
        return;
    }
    finish(storage, read, fd, result);
}

/* Where all of it lies in the page cache, answers it from there, and is true. */
static bool
use_page_cache(struct storage *storage, struct storage_read *read, int *fd, bool worker)
{
    read->was_cached = lies_in_page_cache(storage, read, *fd);
    if (!read->was_cached)
        return false;
    if (!read->urgent) {
        /* Nobody waits for it yet, and it is near enough where it is. */
        descriptors_release(storage->descriptors, read->backing, read->access);
        complete(storage, read, -ECANCELED);
        return true;
    }
    if (!worker && descriptors_may_wait(storage->descriptors, read->backing)) {
        descriptors_release(storage->descriptors, read->backing, read->access);
        give_to_worker(storage, read);
        return true;
    }
    if (read->access == ACCESS_DIRECT) {
        descriptors_release(storage->descriptors, read->backing, ACCESS_DIRECT);
        read->access = ACCESS_BUFFERED;
        *fd = descriptors_try(storage->descriptors, read->backing, ACCESS_BUFFERED);
        if (*fd < 0) {
            give_to_worker(storage, read);
            return true;
        }
    }
    if (!copy_cached(storage, read, *fd))
        return false;
    finish(storage, read, *fd, 0);
    return true;
}

/* With the descriptor held; false: there is no ring, or none takes reads any more. */
static bool
give_to_ring(struct storage *storage, struct storage_read *read, int fd)
{
    unsigned ring;

    if (storage->ring_count == 0)
        return false;
    ring = atomic_fetch_add_explicit(&storage->next_ring, 1, memory_order_relaxed);
    read->ring_read.fd = fd;
    read->ring_read.flags = read->flags;
    read->ring_read.buffer = read->buffer;
    read->ring_read.length = (uint32_t)read->length;
    read->ring_read.offset = read->offset;
    read->ring_read.complete = ring_ended;
    return ring_submit(storage->rings[ring % storage->ring_count], &read->ring_read, read->urgent);
}

/* With the descriptor held, from any thread: `worker` says whether it may block. */
static void
start(struct storage *storage, struct storage_read *read, int fd, bool worker)
{
    if (use_page_cache(storage, read, &fd, worker))
        return;
    read->flags = read->access == ACCESS_BUFFERED && !read->was_cached &&
                          !atomic_load_explicit(&storage->no_dontcache, memory_order_relaxed)
                      ? RWF_DONTCACHE
                      : 0;
    if (give_to_ring(storage, read, fd))
        return;
    if (worker)
        run_alone(storage, read, fd);
    else
        read_by_worker(storage, read);
}

/* From a worker: a descriptor, with as many attempts as a read has. */
static int
acquire(struct storage *storage, const struct storage_read *read)
{
    unsigned attempts = 1;
    int fd = descriptors_acquire(storage->descriptors, read->backing, read->access);

    while (fd == -EIO && attempts < MOST_ATTEMPTS) {
        pause_ms(FIRST_PAUSE_MS << attempts++);
        add(&storage->counters.retries, 1);
        fd = descriptors_acquire(storage->descriptors, read->backing, read->access);
    }
    return fd;
}

/* Those that waited for the same open: it gave them a descriptor too, or a reason. */
static void
pass_on(struct storage *storage, struct fifo kept, int fd)
{
    struct job *job;

    while ((job = fifo_take(&kept))) {
        struct storage_read *read = read_of_job(job);

        if (fd >= 0 || fd == -EOPNOTSUPP)
            give_to_worker(storage, read);
        else
            complete(storage, read, fd);
    }
}

static void
run_job(struct job *job)
{
    struct storage_read *read = read_of_job(job);
    struct storage *storage = read->storage;
    int fd;

    if (!descriptors_may_acquire(storage->descriptors, read->backing, read->access, job))
        return;
    fd = acquire(storage, read);
    pass_on(storage, descriptors_acquired(storage->descriptors, read->backing, read->access), fd);
    if (fd == -EOPNOTSUPP) {
        read->access = ACCESS_BUFFERED;
        give_to_worker(storage, read);
    } else if (fd < 0) {
        complete(storage, read, fd);
    } else if (read->is_read) {
        finish(storage, read, fd, 0);
    } else if (read->alone) {
        run_alone(storage, read, fd);
    } else {
        start(storage, read, fd, true);
    }
}

void
storage_read(struct storage *storage, struct storage_read *read)
{
    int fd;

    atomic_fetch_add_explicit(&storage->pending, 1, memory_order_relaxed);
    read->storage = storage;
    read->job.run = run_job;
    read->job.device = read->backing->identity.device;
    read->ring_read.device = read->backing->identity.device;
    read->alone = false;
    read->is_read = false;
    read->was_cached = false;
    read->copied = false;
    read->flags = 0;
    read->access = descriptors_access(storage->descriptors, read->backing);
    fd = descriptors_try(storage->descriptors, read->backing, read->access);
    if (fd >= 0)
        start(storage, read, fd, false);
    else if (fd == -EAGAIN || fd == -EOPNOTSUPP)
        give_to_worker(storage, read);
    else
        complete(storage, read, fd);
}

static unsigned
default_rings(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned rings = processors > 0 ? (unsigned)processors / 4 : 0;

    if (rings < 1)
        return 1;
    return rings > MOST_RINGS ? MOST_RINGS : rings;
}

/* As many rings as can be had; none is no error. */
static void
make_rings(struct storage *storage, unsigned wanted)
{
    while (storage->ring_count < wanted &&
           ring_new(storage->depth, &storage->all_rings, &storage->rings[storage->ring_count],
                    &storage->no_ring) == 0)
        storage->ring_count++;
}

errint_t
storage_new(const struct storage_options *options, struct storage **storage)
{
    struct storage *made = calloc(1, sizeof(*made));
    unsigned rings = options->rings ? options->rings : default_rings();
    errint_t result;

    if (!made)
        return -ENOMEM;
    made->direct = options->direct;
    made->ring = options->ring;
    made->depth = options->depth ? options->depth : DEFAULT_DEPTH;
    if (options->ring)
        make_rings(made, rings > MOST_RINGS ? MOST_RINGS : rings);
    else
        reason_fill(&made->no_ring, "Options", "not wanted");
    made->threads = options->threads ? options->threads
                                     : (made->ring_count ? THREADS_BESIDE_RINGS : THREADS_ALONE);
    result = descriptors_new(options->descriptors, options->direct, &made->descriptors);
    if (result == 0)
        result = workers_new(made->threads, &made->workers);
    if (result < 0) {
        storage_stop(made);
        storage_free(made);
        return result;
    }
    *storage = made;
    return 0;
}

void
storage_stop(struct storage *storage)
{
    workers_free(storage->workers);
    storage->workers = NULL;
    for (unsigned i = 0; i < storage->ring_count; i++)
        ring_free(storage->rings[i]);
    storage->ring_count = 0;
}

void
storage_free(struct storage *storage)
{
    descriptors_free(storage->descriptors);
    free(storage);
}

struct descriptors *
storage_descriptors(struct storage *storage)
{
    return storage->descriptors;
}

struct storage_counters *
storage_counters(struct storage *storage)
{
    return &storage->counters;
}

void
storage_queue(struct storage *storage, uint64_t *in_flight, uint64_t *waiting)
{
    uint64_t pending = atomic_load(&storage->pending);

    *in_flight = atomic_load(&storage->all_rings.in_flight);
    /* They are not of the same moment. */
    *waiting = pending > *in_flight ? pending - *in_flight : 0;
}

static enum io_fallback
fallback_of(bool wanted, bool refused)
{
    if (!wanted)
        return IO_FALLBACK_NOT_WANTED;
    return refused ? IO_FALLBACK_REFUSED : IO_FALLBACK_NONE;
}

void
storage_fallbacks(struct storage *storage, enum io_fallback fallbacks[IO_WAYS])
{
    bool direct_refused = descriptors_direct_refused(storage->descriptors) != NULL;

    bool ring_refused = storage->ring_count == 0 || atomic_load(&storage->all_rings.error) != 0;

    fallbacks[IO_WAY_URING] = fallback_of(storage->ring, ring_refused);
    fallbacks[IO_WAY_DIRECT] = fallback_of(storage->direct, direct_refused);
    fallbacks[IO_WAY_DONTCACHE] = fallback_of(true, atomic_load(&storage->no_dontcache));
    fallbacks[IO_WAY_CACHESTAT] = fallback_of(true, atomic_load(&storage->no_cachestat));
}

static void
add_switch(struct buffer *out, const char *name, const char *why_not)
{
    buffer_addf(out, "\"%s\":{\"on\":%s", name, why_not ? "false" : "true");
    if (why_not) {
        buffer_add_text(out, ",\"why\":");
        buffer_add_json_string(out, why_not, strlen(why_not));
    }
    buffer_add_text(out, "},");
}

static void
add_ring_switch(struct storage *storage, struct buffer *out)
{
    int error = atomic_load(&storage->all_rings.error);
    struct reason why = storage->no_ring;

    if (storage->ring_count > 0 && error)
        reason_fill(&why, "IoUring", "io_uring took no more reads: %s", strerror(-error));
    add_switch(out, "io_uring", storage->ring_count > 0 && !error ? NULL : why.text);
}

void
storage_status(struct storage *storage, struct buffer *out)
{
    const char *refused = descriptors_direct_refused(storage->descriptors);
    unsigned ahead = 0;

    add_ring_switch(storage, out);
    add_switch(out, "direct", storage->direct ? NULL : "not wanted");
    if (refused) {
        buffer_add_text(out, "\"direct_refused\":");
        buffer_add_json_string(out, refused, strlen(refused));
        buffer_add_char(out, ',');
    }
    add_switch(out, "cachestat",
               atomic_load(&storage->no_cachestat) ? "the kernel has it not" : NULL);
    add_switch(out, "dontcache",
               atomic_load(&storage->no_dontcache) ? "the kernel or a file system has it not"
                                                   : NULL);
    for (unsigned i = 0; i < storage->ring_count; i++)
        ahead += ring_most_ahead(storage->rings[i]);
    buffer_addf(out, "\"rings\":%u,\"queue_depth\":%u,\"queue_depth_ahead\":%u,\"threads\":%u,",
                storage->ring_count, storage->depth, ahead, storage->threads);
    buffer_addf(out, "\"descriptors\":%u,\"descriptors_most\":%u",
                descriptors_open(storage->descriptors), descriptors_most(storage->descriptors));
}
