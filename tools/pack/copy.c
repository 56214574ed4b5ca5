/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list is copied in pieces that begin at multiples of PIECE in the new file. A
 * few dozen of them are under way: the engine reads them, its threads copy them into
 * aligned buffers, and threads of our own write the buffers, past the page cache
 * where the file system can. Which piece is done first does not matter.
 */
#include "copy.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/thread.h"
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    PIECE = 1 << 20,
    PIECES = 48, /* under way at most */
    WRITERS = 4,
};

/* Least worth sharing: below it a copy is as fast. */
#define SHARE_LEAST ((uint64_t)64 << 10)

/* What the engine may have in buffers of its own. */
#define ENGINE_MEMORY ((uint64_t)64 << 20)

struct slot {
    struct slot *next; /* in the list it is in */
    struct run *run;
    uint64_t offset; /* of the new file */
    size_t length;
    char *buffer;
    char *other; /* when comparing: what the file has; else NULL */
};

struct copier {
    struct io *io;
    char *buffers;
    struct slot slots[PIECES];
};

/* One copy_run() or copy_compare(). */
struct run {
    struct copier *copier;
    struct extent_list *list;
    int fd;
    bool compares;
    _Atomic bool direct; /* the file is written past the page cache */
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct slot *idle, *filled;
    bool ended; /* there will be no more to write */
    unsigned under_way; /* slots not idle */
    errint_t error; /* the first one */
    uint64_t error_at;
    const char *what; /* was being done then */
    _Atomic uint64_t *done; /* bytes */
};

errint_t
copier_new(struct copier **out)
{
    /* No reading ahead: what will be read is known and asked for. */
    const struct io_options options = {.no_prefetch = true, .memory = ENGINE_MEMORY};
    struct copier *copier = calloc(1, sizeof(*copier));
    errint_t error;

    if (!copier)
        return -ENOMEM;
    copier->buffers = aligned_alloc(PAGE, (size_t)2 * PIECES * PIECE);
    error = copier->buffers ? io_new(&options, &copier->io) : -ENOMEM;
    if (error) {
        copier_free(copier);
        return error;
    }
    for (size_t i = 0; i < PIECES; i++)
        copier->slots[i].buffer = copier->buffers + i * PIECE;
    *out = copier;
    return 0;
}

void
copier_free(struct copier *copier)
{
    if (!copier)
        return;
    io_free(copier->io);
    free(copier->buffers);
    free(copier);
}

/* ---- slots ---- */

static void
fail_locked(struct run *run, errint_t error, uint64_t at, const char *what)
{
    if (run->error)
        return;
    run->error = error;
    run->error_at = at;
    run->what = what;
}

static void
make_idle(struct run *run, struct slot *slot, errint_t error, const char *what)
{
    if (!error)
        atomic_fetch_add_explicit(run->done, slot->length, memory_order_relaxed);
    pthread_mutex_lock(&run->lock);
    if (error)
        fail_locked(run, error, slot->offset, what);
    slot->next = run->idle;
    run->idle = slot;
    run->under_way--;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->lock);
}

/* From the engine. */
static void
piece_read(void *arg, errint_t result, const struct iovec *vectors, int count)
{
    struct slot *slot = arg;
    struct run *run = slot->run;
    char *to = slot->buffer;

    if (result) {
        make_idle(run, slot, result, "reading the input");
        return;
    }
    for (int i = 0; i < count; i++) {
        memcpy(to, vectors[i].iov_base, vectors[i].iov_len);
        to += vectors[i].iov_len;
    }
    pthread_mutex_lock(&run->lock);
    slot->next = run->filled;
    run->filled = slot;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->lock);
}

/* ---- writing ---- */

/* The file system refuses writes past the page cache. */
static void
use_page_cache(struct run *run)
{
    int flags = fcntl(run->fd, F_GETFL);

    if (flags >= 0)
        fcntl(run->fd, F_SETFL, flags & ~O_DIRECT);
    atomic_store(&run->direct, false);
}

static errint_t
write_piece(struct run *run, const struct slot *slot)
{
    /* Past the page cache whole pages only; the file's length is set at the end. */
    size_t length = (slot->length + PAGE - 1) / PAGE * PAGE;
    errint_t error;

    memset(slot->buffer + slot->length, 0, length - slot->length);
    error = file_write(run->fd, slot->buffer, length, slot->offset);
    if (error == -EINVAL && atomic_load(&run->direct)) {
        use_page_cache(run);
        error = file_write(run->fd, slot->buffer, length, slot->offset);
    }
    return error;
}

static errint_t
compare_piece(struct run *run, const struct slot *slot)
{
    size_t length = (slot->length + PAGE - 1) / PAGE * PAGE;
    ssize_t got = file_read(run->fd, slot->other, length, slot->offset);

    if (got == -EINVAL && atomic_load(&run->direct)) {
        use_page_cache(run);
        got = file_read(run->fd, slot->other, length, slot->offset);
    }
    if (got < 0)
        return (errint_t)got;
    if ((size_t)got < slot->length)
        return -EIO;
    return memcmp(slot->buffer, slot->other, slot->length) == 0 ? 0 : -EILSEQ;
}

static void *
run_writer(void *arg)
{
    struct run *run = arg;

    for (;;) {
        struct slot *slot;
        errint_t error;

        pthread_mutex_lock(&run->lock);
        while (!run->filled && !run->ended)
            pthread_cond_wait(&run->changed, &run->lock);
        slot = run->filled;
        if (slot)
            run->filled = slot->next;
        pthread_mutex_unlock(&run->lock);
        if (!slot)
            return NULL;
        error = run->compares ? compare_piece(run, slot) : write_piece(run, slot);
        make_idle(run, slot, error, run->compares ? "comparing it with the input" : "writing it");
    }
}

/* ---- submitting ---- */

/* An idle slot; NULL: it is to end. Draws progress meanwhile. */
static struct slot *
await_slot(struct run *run, struct progress *progress)
{
    struct slot *slot = NULL;

    pthread_mutex_lock(&run->lock);
    while (!slot && !run->error) {
        slot = run->idle;
        if (slot) {
            run->idle = slot->next;
            run->under_way++;
            break;
        }
        condition_wait(&run->changed, &run->lock, monotonic_ns() + 1000000000);
        if (!progress_tick(progress))
            break;
    }
    pthread_mutex_unlock(&run->lock);
    return slot;
}

/* Bytes [begin, end) of the list, `begin` being a multiple of PAGE. */
static bool
submit_range(struct run *run, uint64_t begin, uint64_t end, struct progress *progress)
{
    while (begin < end) {
        uint64_t next = begin / PIECE * PIECE + PIECE;
        struct slot *slot = progress_tick(progress) ? await_slot(run, progress) : NULL;

        if (!slot)
            return false;
        slot->run = run;
        slot->offset = begin;
        slot->length = (size_t)((next < end ? next : end) - begin);
        io_read(run->copier->io, run->list, begin, slot->length, piece_read, slot);
        begin += slot->length;
    }
    return true;
}

static void
await_all(struct run *run, struct progress *progress)
{
    pthread_mutex_lock(&run->lock);
    while (run->under_way > 0) {
        condition_wait(&run->changed, &run->lock, monotonic_ns() + 1000000000);
        progress_tick(progress);
    }
    run->ended = true;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->lock);
}

/* A part of the list that is yet to be copied. */
struct range {
    uint64_t begin, end;
};

static errint_t
run_ranges(struct run *run, const struct range *ranges, size_t count, struct progress *progress,
           struct reason *reason)
{
    pthread_t writers[WRITERS];
    unsigned made = 0;

    pthread_mutex_init(&run->lock, NULL);
    condition_init(&run->changed);
    run->done = progress->running;
    for (size_t i = 0; i < PIECES; i++) {
        run->copier->slots[i].other =
            run->compares ? run->copier->buffers + (PIECES + i) * PIECE : NULL;
        run->copier->slots[i].next = run->idle;
        run->idle = &run->copier->slots[i];
    }
    while (made < WRITERS && thread_start(&writers[made], run_writer, run) == 0)
        made++;
    if (made == 0)
        return reason_set(reason, -EAGAIN, "Threads", "no thread can be made");
    extent_list_opened(run->list);
    for (size_t i = 0; i < count; i++)
        if (!submit_range(run, ranges[i].begin, ranges[i].end, progress))
            break;
    await_all(run, progress);
    extent_list_closed(run->list);
    while (made > 0)
        pthread_join(writers[--made], NULL);
    pthread_cond_destroy(&run->changed);
    pthread_mutex_destroy(&run->lock);
    if (progress_signal())
        return reason_set(reason, -EINTR, "Interrupted", "interrupted");
    if (!run->error)
        return 0;
    if (run->error == -ESTALE)
        return reason_set(reason, run->error, "Stale", "the input was changed while it was read");
    return reason_set(reason, run->error, "IoError", "%s, at byte %" PRIu64 ": %s", run->what,
                      run->error_at, run->error == -EILSEQ ? "they differ" : strerror(-run->error));
}

/* ---- sharing ---- */

static int
open_backing(const struct backing *backing)
{
    struct file_identity now;
    int fd = openat(backing->directory, backing->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd >= 0 && (file_identity_from_fd(&now, fd) != 0 ||
                    !file_identity_same_content(&backing->identity, &now))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Shares what lies on whole pages in both; what it was is in `shared`, else empty. */
static bool
share_extent(int to, const struct extent *extent, int from, struct range *shared)
{
    uint64_t begin = (extent->start + PAGE - 1) / PAGE * PAGE;
    uint64_t end = (extent->start + extent->length) / PAGE * PAGE;
    struct file_clone_range clone = {.src_fd = from};
    struct file_identity now;

    *shared = (struct range){0, 0};
    if ((extent->start - extent->offset) % PAGE != 0 || end < begin || end - begin < SHARE_LEAST)
        return true;
    clone.src_offset = extent->offset + (begin - extent->start);
    clone.src_length = end - begin;
    clone.dest_offset = begin;
    if (ioctl(to, FICLONERANGE, &clone) < 0)
        return false;
    /* A change since then is told by the times. */
    if (file_identity_from_fd(&now, from) == 0 &&
        file_identity_same_content(&extent->backing->identity, &now))
        *shared = (struct range){begin, end};
    return true;
}

/* Shares what it can of a list; gives what is left, in order, and how much that is not. */
static size_t
share_list(const struct extent_list *list, int fd, struct range *left, uint64_t *bytes)
{
    const struct backing *before = NULL;
    struct range shared;
    uint64_t at = 0;
    bool can = true;
    size_t count = 0;
    int from = -1;

    for (uint32_t i = 0; can && i < list->count; i++) {
        const struct extent *extent = &list->extents[i];

        if (!extent->backing)
            continue;
        if (extent->backing != before) {
            if (from >= 0)
                close(from);
            from = open_backing(extent->backing);
            before = extent->backing;
        }
        if (from < 0)
            continue;
        can = share_extent(fd, extent, from, &shared);
        if (!can || shared.begin == shared.end)
            continue;
        if (at < shared.begin)
            left[count++] = (struct range){at, shared.begin};
        at = shared.end;
        *bytes += shared.end - shared.begin;
    }
    if (from >= 0)
        close(from);
    if (at < list->size)
        left[count++] = (struct range){at, list->size};
    return count;
}

/* ---- all of it ---- */

/* Takes the room that is needed now, so that a full disk shows at once. */
static errint_t
allocate(int fd, const struct range *ranges, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct range *range = &ranges[i];

        if (fallocate(fd, 0, (off_t)range->begin, (off_t)(range->end - range->begin)) < 0 &&
            errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
            return -errno;
    }
    return 0;
}

static bool
set_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

errint_t
copy_begin(struct extent_list *list, int fd, struct copy *copy, struct reason *reason)
{
    *copy = (struct copy){.list = extent_list_ref(list), .fd = fd};
    copy->left = malloc(((size_t)list->count + 1) * sizeof(*copy->left));
    if (!copy->left)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    if (ftruncate(fd, (off_t)list->size) < 0)
        return reason_set(reason, -errno, "IoError", "%s", strerror(errno));
    copy->left_count = share_list(list, fd, copy->left, &copy->shared);
    return 0;
}

uint64_t
copy_room(const struct copy *copy)
{
    return copy->list->size - copy->shared;
}

errint_t
copy_run(struct copier *copier, struct copy *copy, struct progress *progress, struct reason *reason)
{
    struct run run = {.copier = copier, .list = copy->list, .fd = copy->fd};
    errint_t error = allocate(copy->fd, copy->left, copy->left_count);

    atomic_fetch_add(progress->running, copy->shared);
    if (error)
        return reason_set(reason, error, "IoError", "%.2f GB are needed: %s",
                          (double)copy_room(copy) / 1e9, strerror(-error));
    atomic_init(&run.direct, set_direct(copy->fd));
    error = run_ranges(&run, copy->left, copy->left_count, progress, reason);
    /* Past the page cache the last page was written whole. */
    if (!error && ftruncate(copy->fd, (off_t)copy->list->size) < 0)
        return reason_set(reason, -errno, "IoError", "%s", strerror(errno));
    return error;
}

errint_t
copy_compare(struct copier *copier, struct copy *copy, struct progress *progress,
             struct reason *reason)
{
    const struct range all = {0, copy->list->size};
    struct run run = {.copier = copier, .list = copy->list, .fd = copy->fd, .compares = true};

    posix_fadvise(copy->fd, 0, 0, POSIX_FADV_DONTNEED);
    atomic_init(&run.direct, set_direct(copy->fd));
    return run_ranges(&run, &all, copy->list->size > 0, progress, reason);
}

void
copy_end(struct copy *copy)
{
    extent_list_unref(copy->list);
    free(copy->left);
    *copy = (struct copy){0};
}
