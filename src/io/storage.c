/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path of a read:
 *
 *   storage_read() -> [the file is open] storage_start_read() -> storage_finish_read()
 *                 `-> [else, or a retry] storage_run_job() of a worker -> storage_start_read()
 *
 * storage_start_read() copies the bytes if all of them are in the page cache, else it submits the
 * read to a ring. After a short read, EINTR, EAGAIN or EIO, a worker repeats the read with blocking
 * calls. A read that is queued for a worker never holds a descriptor, since all workers may be
 * waiting for one.
 *
 * Where fstat(2) may wait for a server, workers verify the version after a read of a ring, once for
 * all reads of the file that have ended: FUSE file systems that revalidate attributes send a
 * request to the server for each fstat(2).
 */
#include "io/storage.h"

#include "base/list.h"
#include "base/system_call.h"
#include "io/block.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_DEPTH 64
#define RINGS_MAX 8
#define THREADS_WITH_RINGS 8
#define THREADS_WITHOUT_RINGS 16
#define ATTEMPTS_MAX 4 /* after EIO, EAGAIN or EINTR */
#define FIRST_PAUSE_MS 10 /* before the second attempt; doubled before each further one */

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80 /* Linux 6.14 */
#endif

struct storage {
    struct descriptors *descriptors;
    struct workers *workers;
    struct ring *rings[RINGS_MAX];
    struct rings all_rings;
    unsigned ring_count;
    atomic_uint next_ring;
    unsigned depth;
    unsigned threads;
    bool direct;
    bool keeps_pages;
    bool ring; /* io_uring was not switched off */
    struct reason no_ring; /* why a ring was not started; text "": all were */
    atomic_bool no_dontcache; /* the kernel or a file system does not support it */
    atomic_bool no_cachestat;
    atomic_uint pending; /* reads not yet completed */
    struct storage_counters counters;
};

static void
counter_add(atomic_uint_fast64_t *counter, uint64_t value)
{
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static void
count_bytes(struct storage *storage, const struct storage_read *read, size_t bytes)
{
    counter_add(&storage->counters.reads, 1);
    counter_add(&storage->counters.bytes, bytes);
    family_count(read->backing->family, FAMILY_STORAGE, bytes);
}

/* Pauses before another attempt, and counts it. `attempts`: made so far. */
static void
begin_retry(struct storage *storage, unsigned *attempts)
{
    unsigned ms = FIRST_PAUSE_MS << (*attempts - 1);
    struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&pause, NULL);
    ++*attempts;
    counter_add(&storage->counters.retries, 1);
}

/* After cachestat(2) failed: the kernel refuses files of other users (EPERM), older ones all files,
 * and a seccomp filter may refuse all, too, also those that are not open. */
static void
note_no_cachestat(struct storage *storage, struct backing *backing)
{
    bool is_refused = errno == EPERM;

    if (errno == ENOSYS ||
        (is_refused && syscall(SYS_cachestat, -1, NULL, NULL, 0) < 0 && errno == EPERM))
        atomic_store(&storage->no_cachestat, true);
    else if (is_refused)
        atomic_store(&backing->hides_pages, true);
}

/* Whether the file's page cache holds all of the read. */
static bool
read_is_cached(struct storage *storage, const struct storage_read *read, int fd)
{
    struct {
        uint64_t offset, length;
    } range = {read->offset, read->valid};
    struct {
        uint64_t cached, dirty, writeback, evicted, recently_evicted;
    } state;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t pages = (read->offset + read->valid - 1) / page - read->offset / page + 1;

    if (atomic_load_explicit(&storage->no_cachestat, memory_order_relaxed) ||
        atomic_load_explicit(&read->backing->hides_pages, memory_order_relaxed))
        return false;
    if (syscall(SYS_cachestat, fd, &range, &state, 0) < 0) {
        note_no_cachestat(storage, read->backing);
        return false;
    }
    return state.cached >= pages;
}

/* Queues the read for a worker, which may block. No descriptor is held. A verification is urgent:
 * reads of any kind may wait for it. */
static void
storage_queue_job(struct storage *storage, struct storage_read *read)
{
    workers_add(storage->workers, &read->job, read->urgent || read->is_read);
}

/* Releases the descriptor, and has a worker read with blocking calls. */
static void
storage_read_alone_later(struct storage *storage, struct storage_read *read)
{
    read->alone = true;
    descriptors_release(storage->descriptors, read->backing, read->access);
    storage_queue_job(storage, read);
}

/* Without a descriptor held. */
static void
storage_complete(struct storage *storage, struct storage_read *read, errint_t result)
{
    /* These errors have other meanings for callers. -EAGAIN: memory is short; -EINPROGRESS: the
     * read has not ended; -EINTR: a signal has interrupted the program. */
    if (result == -EAGAIN || result == -EINPROGRESS || result == -EINTR)
        result = -EIO;
    atomic_fetch_sub_explicit(&storage->pending, 1, memory_order_relaxed);
    read->complete(read, result);
}

/* Leaves nothing of a buffered read in the page cache, unless it is to be kept. */
static void
storage_drop_pages(const struct storage_read *read, int fd)
{
    if (read->access == ACCESS_BUFFERED && !read->was_cached && !read->storage->keeps_pages &&
        !(read->flags & RWF_DONTCACHE))
        posix_fadvise(fd, (off_t)read->offset, (off_t)read->length, POSIX_FADV_DONTNEED);
}

/* Verifies the version after a read, releases `fd` and completes. */
static void
storage_finish_read(struct storage *storage, struct storage_read *read, int fd, errint_t result)
{
    struct backing *backing = read->backing;

    if (result == 0) {
        result = descriptors_verify(backing, fd);
        storage_drop_pages(read, fd);
    } else if (result == -ESTALE) {
        descriptors_stale(backing);
    }
    descriptors_release(storage->descriptors, backing, read->access);
    storage_complete(storage, read, result);
}

/* A ring has read all bytes. The ring's thread must not wait for a server to verify the version. */
static void
read_succeeded(struct storage *storage, struct storage_read *read, int fd)
{
    if (!descriptors_may_wait(storage->descriptors, read->backing)) {
        storage_finish_read(storage, read, fd, 0);
        return;
    }
    read->is_read = true;
    descriptors_release(storage->descriptors, read->backing, read->access);
    if (descriptors_may_verify(read->backing, read->access, &read->job))
        storage_queue_job(storage, read);
}

/* Whether an error of an open or a verification means that the file refuses O_DIRECT. A server may
 * answer EOPNOTSUPP as well: then the buffered attempt fails with it, and the read ends. */
static bool
must_read_buffered(const struct storage_read *read, int error)
{
    return error == -EOPNOTSUPP && read->access == ACCESS_DIRECT;
}

/* Ends the verification of a read. */
static void
storage_end_verified(struct storage *storage, struct storage_read *read, errint_t result)
{
    if (must_read_buffered(read, result)) {
        read->access = ACCESS_BUFFERED;
        storage_queue_job(storage, read);
        return;
    }
    storage_complete(storage, read, result);
}

/* By a worker: verifies the version for this read and for those that wait. `fd`: the held
 * descriptor, or a negative errno. */
static void
storage_verify_reads(struct storage *storage, struct storage_read *read, int fd)
{
    struct fifo others = descriptors_begin_verify(read->backing, read->access);
    errint_t result = fd < 0 ? (errint_t)fd : descriptors_verify(read->backing, fd);
    struct job *job = descriptors_end_verify(read->backing, read->access);

    if (job)
        storage_queue_job(storage, container_of(job, struct storage_read, job));
    while ((job = fifo_take(&others))) {
        struct storage_read *other = container_of(job, struct storage_read, job);

        if (fd >= 0)
            storage_drop_pages(other, fd);
        storage_end_verified(storage, other, result);
    }
    if (fd >= 0) {
        storage_drop_pages(read, fd);
        descriptors_release(storage->descriptors, read->backing, read->access);
    }
    storage_end_verified(storage, read, result);
}

/* Copies from the page cache. Returns false if a call fails or reaches the end of the file, for
 * example since pages were evicted meanwhile. */
static bool
copy_cached(struct storage *storage, struct storage_read *read, int fd)
{
    size_t got = 0;
    int flags = RWF_NOWAIT;

    while (got < read->valid) {
        struct iovec vector = {read->buffer + got, read->valid - got};
        ssize_t result = preadv2(fd, &vector, 1, (off_t)(read->offset + got), flags);

        if (result < 0 && errno == EOPNOTSUPP && flags) {
            /* tmpfs, for example. The pages are cached, so it does not block. */
            flags = 0;
            continue;
        }
        if (result <= 0)
            return false;
        got += (size_t)result;
    }
    count_bytes(storage, read, got);
    counter_add(&storage->counters.cached_bytes, got);
    family_count(read->backing->family, FAMILY_PAGE_CACHE, got);
    read->copied = true;
    return true;
}

/* Takes the next step of the fallback chain if the error means that O_DIRECT or RWF_DONTCACHE is
 * not supported. Returns false for all other errors. */
static bool
storage_fall_back(struct storage *storage, struct storage_read *read, errint_t error)
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
    struct storage_read *read = container_of(ring_read, struct storage_read, ring_read);
    struct storage *storage = read->storage;
    bool unread = result == -ECANCELED;
    bool again = result >= 0 || unread || result == -EINTR || result == -EAGAIN || result == -EIO;

    if (!unread)
        histogram_add(&storage->counters.duration, ring_read->duration);
    if (result > 0)
        count_bytes(storage, read, (size_t)result);
    if (result > 0 && (size_t)result >= read->valid) {
        read_succeeded(storage, read, ring_read->fd);
        return;
    }
    if (!again && !storage_fall_back(storage, read, result)) {
        storage_finish_read(storage, read, ring_read->fd, result);
        return;
    }
    counter_add(&storage->counters.retries, !unread);
    storage_read_alone_later(storage, read);
}

/* The offset in the buffer to continue at: direct reads start at a block. */
static size_t
resume_at(const struct storage_read *read, size_t got)
{
    return read->access == ACCESS_DIRECT && got < read->valid ? (size_t)block_down(got) : got;
}

/* One blocking call, after `got` bytes were read. */
static ssize_t
read_with_pread(struct storage *storage, struct storage_read *read, int fd, size_t got)
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

/* Reads with blocking calls until all bytes are there. */
static errint_t
read_until_done(struct storage *storage, struct storage_read *read, int fd)
{
    size_t got = 0;
    unsigned attempts = 1;

    while (got < read->valid) {
        ssize_t result = read_with_pread(storage, read, fd, got);

        if (result > 0) {
            size_t next = resume_at(read, got + (size_t)result);

            count_bytes(storage, read, (size_t)result);
            /* Less than a block, although the file should go on: it was truncated. */
            if (next == got)
                return -ESTALE;
            got = next;
            continue;
        }
        if (result == 0)
            return -ESTALE; /* truncated */
        if ((result != -EIO && result != -EAGAIN && result != -EINTR) || attempts == ATTEMPTS_MAX)
            return (errint_t)result;
        begin_retry(storage, &attempts);
    }
    return 0;
}

/* By a worker, with the descriptor held. */
static void
storage_read_alone(struct storage *storage, struct storage_read *read, int fd)
{
    errint_t result = read_until_done(storage, read, fd);

    if (result < 0 && storage_fall_back(storage, read, result)) {
        descriptors_release(storage->descriptors, read->backing, read->access);
        storage_queue_job(storage, read);
        return;
    }
    storage_finish_read(storage, read, fd, result);
}

/* If all bytes are in the page cache, completes the read or queues it for a worker, and returns
 * true; the descriptor is released. Otherwise, and if the copy fails, returns false with a
 * descriptor of read->access held in *fd. */
static bool
use_page_cache(struct storage *storage, struct storage_read *read, int *fd, bool worker)
{
    read->was_cached = read_is_cached(storage, read, *fd);
    if (!read->was_cached)
        return false;
    if (!read->urgent) {
        /* A copy in the engine's memory would not be faster. */
        descriptors_release(storage->descriptors, read->backing, read->access);
        storage_complete(storage, read, -ECANCELED);
        return true;
    }
    if (!worker && descriptors_may_wait(storage->descriptors, read->backing)) {
        descriptors_release(storage->descriptors, read->backing, read->access);
        storage_queue_job(storage, read);
        return true;
    }
    if (read->access == ACCESS_DIRECT) {
        descriptors_release(storage->descriptors, read->backing, ACCESS_DIRECT);
        read->access = ACCESS_BUFFERED;
        *fd = descriptors_try(storage->descriptors, read->backing, ACCESS_BUFFERED);
        if (*fd < 0) {
            storage_queue_job(storage, read);
            return true;
        }
    }
    if (!copy_cached(storage, read, *fd))
        return false;
    storage_finish_read(storage, read, *fd, 0);
    return true;
}

/* With the descriptor held. Returns false if there is no ring, or the rings have failed. */
static bool
storage_submit_to_ring(struct storage *storage, struct storage_read *read, int fd)
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
    read->ring_read.may_wait = descriptors_may_wait(storage->descriptors, read->backing);
    return ring_submit(storage->rings[ring % storage->ring_count], &read->ring_read, read->urgent);
}

/* With the descriptor held. `worker`: the thread may block. */
static void
storage_start_read(struct storage *storage, struct storage_read *read, int fd, bool worker)
{
    if (use_page_cache(storage, read, &fd, worker))
        return;
    read->flags = read->access == ACCESS_BUFFERED && !read->was_cached && !storage->keeps_pages &&
                          !atomic_load_explicit(&storage->no_dontcache, memory_order_relaxed)
                      ? RWF_DONTCACHE
                      : 0;
    if (storage_submit_to_ring(storage, read, fd))
        return;
    if (worker)
        storage_read_alone(storage, read, fd);
    else
        storage_read_alone_later(storage, read);
}

/* Opens the file, in a worker, with as many attempts as a read has. */
static int
acquire_descriptor(struct storage *storage, const struct storage_read *read)
{
    unsigned attempts = 1;
    int fd = descriptors_acquire(storage->descriptors, read->backing, read->access);

    while (fd == -EIO && attempts < ATTEMPTS_MAX) {
        begin_retry(storage, &attempts);
        fd = descriptors_acquire(storage->descriptors, read->backing, read->access);
    }
    return fd;
}

/* Continues the reads that waited for the same open, which returned `fd`. It may have begun before
 * them, so after an error each of them tries once more. */
static void
storage_pass_on(struct storage *storage, struct fifo kept, int fd)
{
    struct job *job;

    while ((job = fifo_take(&kept))) {
        struct storage_read *read = container_of(job, struct storage_read, job);

        if (fd >= 0 || must_read_buffered(read, fd) || !read->has_waited) {
            read->has_waited = true;
            storage_queue_job(storage, read);
        } else if (read->is_read) {
            storage_verify_reads(storage, read, fd);
        } else {
            storage_complete(storage, read, fd);
        }
    }
}

static void
storage_run_job(struct job *job)
{
    struct storage_read *read = container_of(job, struct storage_read, job);
    struct storage *storage = read->storage;
    int fd;

    if (!descriptors_may_acquire(storage->descriptors, read->backing, read->access, job))
        return;
    fd = acquire_descriptor(storage, read);
    storage_pass_on(storage,
                    descriptors_acquired(storage->descriptors, read->backing, read->access), fd);
    if (read->is_read) {
        storage_verify_reads(storage, read, fd);
    } else if (must_read_buffered(read, fd)) {
        read->access = ACCESS_BUFFERED;
        storage_queue_job(storage, read);
    } else if (fd < 0) {
        storage_complete(storage, read, fd);
    } else if (read->alone) {
        storage_read_alone(storage, read, fd);
    } else {
        storage_start_read(storage, read, fd, true);
    }
}

void
storage_read(struct storage *storage, struct storage_read *read)
{
    int fd;

    atomic_fetch_add_explicit(&storage->pending, 1, memory_order_relaxed);
    read->storage = storage;
    read->job.run = storage_run_job;
    read->job.lane_key = read->ring_read.lane_key = backing_lane(read->backing);
    read->alone = false;
    read->is_read = false;
    read->was_cached = false;
    read->copied = false;
    read->has_waited = false;
    read->flags = 0;
    read->access = storage->keeps_pages ? ACCESS_BUFFERED
                                        : descriptors_access(storage->descriptors, read->backing);
    fd = descriptors_try(storage->descriptors, read->backing, read->access);
    if (fd >= 0)
        storage_start_read(storage, read, fd, false);
    else if (fd == -EAGAIN || fd == -EOPNOTSUPP)
        storage_queue_job(storage, read);
    else
        storage_complete(storage, read, fd);
}

static unsigned
default_rings(void)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned rings = processors > 0 ? (unsigned)processors / 4 : 0;

    if (rings < 1)
        return 1;
    return rings > RINGS_MAX ? RINGS_MAX : rings;
}

/* Starts as many rings as the system allows; it is no error if there are none. */
static void
storage_start_rings(struct storage *storage, unsigned wanted)
{
    while (storage->ring_count < wanted &&
           ring_new(storage->depth, &storage->all_rings, &storage->rings[storage->ring_count],
                    &storage->no_ring) == 0)
        storage->ring_count++;
}

errint_t
storage_new(const struct io_options *options, struct storage **storage)
{
    struct storage *made = calloc(1, sizeof(*made));
    unsigned rings = options->rings ? options->rings : default_rings();
    errint_t result;

    if (!made)
        return -ENOMEM;
    made->direct = !options->no_direct;
    made->keeps_pages = options->keeps_pages;
    made->ring = !options->no_ring;
    made->depth = options->queue_depth ? options->queue_depth : DEFAULT_DEPTH;
    if (made->ring)
        storage_start_rings(made, rings > RINGS_MAX ? RINGS_MAX : rings);
    else
        reason_fill(&made->no_ring, "Options", "not wanted");
    made->threads = options->threads
                        ? options->threads
                        : (made->ring_count ? THREADS_WITH_RINGS : THREADS_WITHOUT_RINGS);
    result = descriptors_new(options->descriptors, made->direct, &made->descriptors);
    if (result == 0)
        result = workers_new(made->threads, &made->workers);
    if (result < 0) {
        storage_stop(made);
        storage_free(made);
        return result;
    }
    descriptors_use_workers(made->descriptors, made->workers);
    *storage = made;
    return 0;
}

void
storage_stop(struct storage *storage)
{
    if (storage->descriptors)
        descriptors_use_workers(storage->descriptors, NULL);
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
    /* The two were not read at the same time. */
    *waiting = pending > *in_flight ? pending - *in_flight : 0;
}

static enum io_fallback
fallback_state(bool wanted, bool refused)
{
    if (!wanted)
        return IO_FALLBACK_NOT_WANTED;
    return refused ? IO_FALLBACK_REFUSED : IO_FALLBACK_NONE;
}

void
storage_fallbacks(struct storage *storage, enum io_fallback fallbacks[IO_MECHANISMS])
{
    bool direct_refused = descriptors_state(storage->descriptors).direct_refused != NULL;
    bool ring_refused = storage->ring_count == 0 || atomic_load(&storage->all_rings.error) != 0;

    fallbacks[IO_MECHANISM_URING] = fallback_state(storage->ring, ring_refused);
    fallbacks[IO_MECHANISM_DIRECT] = fallback_state(storage->direct, direct_refused);
    fallbacks[IO_MECHANISM_DONTCACHE] = fallback_state(true, atomic_load(&storage->no_dontcache));
    fallbacks[IO_MECHANISM_CACHESTAT] = fallback_state(true, atomic_load(&storage->no_cachestat));
}

static void
status_add_ring(struct storage *storage, struct buffer *out)
{
    int error = atomic_load(&storage->all_rings.error);
    struct reason why = storage->no_ring;

    if (storage->ring_count > 0 && error)
        reason_fill(&why, "IoUring", "io_uring failed: %s", strerror(-error));
    buffer_add_json_switch(out, "io_uring", storage->ring_count > 0 && !error ? NULL : why.text);
}

void
storage_status(struct storage *storage, struct buffer *out)
{
    const struct descriptors_state descriptors = descriptors_state(storage->descriptors);
    unsigned ahead = 0;

    status_add_ring(storage, out);
    buffer_add_json_switch(out, "direct", storage->direct ? NULL : "not wanted");
    if (descriptors.direct_refused) {
        buffer_add_text(out, "\"direct_refused\":");
        buffer_add_json_string(out, descriptors.direct_refused, strlen(descriptors.direct_refused));
        buffer_add_char(out, ',');
    }
    buffer_add_json_switch(out, "cachestat",
                           atomic_load(&storage->no_cachestat) ? "the kernel does not support it"
                                                               : NULL);
    buffer_add_json_switch(out, "dontcache",
                           atomic_load(&storage->no_dontcache)
                               ? "the kernel or a file system does not support it"
                               : NULL);
    for (unsigned i = 0; i < storage->ring_count; i++)
        ahead += ring_background_limit(storage->rings[i]);
    buffer_addf(out, "\"rings\":%u,\"queue_depth\":%u,\"queue_depth_ahead\":%u,\"threads\":%u,",
                storage->ring_count, storage->depth, ahead, storage->threads);
    buffer_addf(out, "\"descriptors\":%u,\"descriptors_most\":%u", descriptors.open,
                descriptors.most);
}
