/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list is copied in pieces that begin at multiples of PIECE in the new file, with several in
 * flight (io/batch.h): the engine reads them into aligned buffers, and threads write the buffers,
 * with O_DIRECT if the file system supports it. Pieces may complete in any order.
 */
#include "copy.h"

#include "base/file.h"
#include "base/parallel.h"
#include "base/version.h"
#include "io/batch.h"
#include "io/block.h"
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    PIECE = 1 << 20,
    PIECES = 48, /* most in flight */
    WRITERS = 4, /* threads, one of which is the caller's */
};

/* Sharing fewer bytes is no faster than copying them. */
#define SHARE_LEAST ((uint64_t)64 << 10)

/* The engine's own buffers, in bytes. */
#define ENGINE_MEMORY ((uint64_t)64 << 20)

struct copier {
    struct io *io;
    char *buffers; /* PIECES to be written, then PIECES to be compared with them */
};

/* A part of the list that is not copied yet. `begin` is a multiple of BLOCK_SIZE. */
struct range {
    uint64_t begin, end;
};

/* One copy_run() or copy_compare(). */
struct copy_pass {
    struct copier *copier;
    struct extent_list *list;
    int fd;
    bool is_compare; /* copy_compare() */
    bool tried_direct; /* the pass began with O_DIRECT, which a thread may have cleared since */
    struct batch *batch;
    /* What copy_next_read() returns next: the ranges that are left, and the position in the first
     * one. Guarded by the lock of the batch. */
    const struct range *ranges;
    size_t range_count;
    uint64_t at;
    const char *what; /* the operation that stopped the batch */
    struct progress *progress;
};

errint_t
copier_new(struct copier **out)
{
    /* No prefetching: all reads are submitted early. */
    const struct io_options options = {.no_prefetch = true, .memory = ENGINE_MEMORY};
    struct copier *copier = calloc(1, sizeof(*copier));
    errint_t error;

    if (!copier)
        return -ENOMEM;
    copier->buffers = aligned_alloc(BLOCK_SIZE, (size_t)2 * PIECES * PIECE);
    error = copier->buffers ? io_new(&options, &copier->io) : -ENOMEM;
    if (error) {
        copier_free(copier);
        return error;
    }
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

/* ---- writing ---- */

/* Continues without O_DIRECT, which the file system has refused. */
static void
copy_clear_direct(struct copy_pass *pass)
{
    int flags = fcntl(pass->fd, F_GETFL);

    if (flags >= 0)
        fcntl(pass->fd, F_SETFL, flags & ~O_DIRECT);
}

static errint_t
write_piece(struct copy_pass *pass, const struct batch_read *read)
{
    /* O_DIRECT writes whole blocks; the file's length is set at the end. */
    size_t length = block_up(read->length);
    errint_t error;

    memset(read->buffer + read->length, 0, length - read->length);
    error = file_write(pass->fd, read->buffer, length, read->offset);
    if (error == -EINVAL && pass->tried_direct) {
        copy_clear_direct(pass);
        error = file_write(pass->fd, read->buffer, length, read->offset);
    }
    return error;
}

static errint_t
compare_piece(struct copy_pass *pass, const struct batch_read *read)
{
    char *other = read->buffer + (size_t)PIECES * PIECE;
    size_t length = block_up(read->length);
    ssize_t got = file_read(pass->fd, other, length, read->offset);

    if (got == -EINVAL && pass->tried_direct) {
        copy_clear_direct(pass);
        got = file_read(pass->fd, other, length, read->offset);
    }
    if (got < 0)
        return (errint_t)got;
    if ((size_t)got < read->length)
        return -EIO;
    return memcmp(read->buffer, other, read->length) == 0 ? 0 : -EILSEQ;
}

static void
finish_piece(struct copy_pass *pass, struct batch_read *read)
{
    errint_t error = pass->is_compare ? compare_piece(pass, read) : write_piece(pass, read);

    if (!error)
        atomic_fetch_add_explicit(pass->progress->running, read->length, memory_order_relaxed);
    else if (batch_stop(pass->batch, error, read->offset))
        pass->what = pass->is_compare ? "cannot compare it with the input" : "cannot write it";
    batch_release(read);
}

static void
write_pieces(void *arg, size_t writer)
{
    struct copy_pass *pass = arg;
    struct batch_read *read;

    (void)writer;
    while ((read = batch_take(pass->batch))) {
        if (!progress_tick(pass->progress))
            batch_stop(pass->batch, -EINTR, 0);
        finish_piece(pass, read);
    }
}

/* ---- a pass over the list ---- */

/* Describes the next piece; called by the batch. */
static bool
copy_next_read(void *arg, struct batch_read *read)
{
    struct copy_pass *pass = arg;
    uint64_t end;

    if (pass->range_count == 0)
        return false;
    if (pass->at < pass->ranges->begin)
        pass->at = pass->ranges->begin;
    end = pass->at / PIECE * PIECE + PIECE;
    if (end > pass->ranges->end)
        end = pass->ranges->end;
    read->list = pass->list;
    read->offset = pass->at;
    read->length = (size_t)(end - pass->at);
    pass->at = end;
    if (end == pass->ranges->end) {
        pass->ranges++;
        pass->range_count--;
    }
    return true;
}

static errint_t
describe_copy_failure(const struct copy_pass *pass, errint_t error, uint64_t offset,
                      struct reason *reason)
{
    if (progress_signal())
        return reason_set(reason, -EINTR, "Interrupted", "interrupted");
    if (!error)
        return 0;
    if (error == -ESTALE)
        return reason_set(reason, error, "Stale", "the input was changed while it was read");
    return reason_set(reason, error, "IoError", "%s, at byte %" PRIu64 ": %s", pass->what, offset,
                      error == -EILSEQ ? "it differs" : strerror(-error));
}

static errint_t
copy_ranges(struct copy_pass *pass, const struct range *ranges, size_t count,
            struct progress *progress, struct reason *reason)
{
    const struct batch_options options = {
        .io = pass->copier->io,
        .depth = PIECES,
        .buffers = pass->copier->buffers,
        .buffer_bytes = PIECE,
        .next = copy_next_read,
        .arg = pass,
    };
    uint64_t offset;
    errint_t error = batch_new(&options, &pass->batch);

    if (error)
        return reason_no_memory(reason);
    pass->progress = progress;
    pass->ranges = ranges;
    pass->range_count = count;
    pass->what = "cannot read the input";
    extent_list_opened(pass->list);
    parallel_for(WRITERS, WRITERS, write_pieces, pass);
    extent_list_closed(pass->list);
    error = batch_error(pass->batch, &offset);
    batch_free(pass->batch);
    return describe_copy_failure(pass, error, offset, reason);
}

/* ---- sharing ---- */

/* Shares the whole blocks of an extent with the file `to`. `shared` is set to their range, or an
 * empty one. Returns false if the file system does not support it. */
static bool
share_extent(int to, const struct extent *extent, int from, struct range *shared)
{
    uint64_t begin = block_up(extent->start);
    uint64_t end = block_down(extent->start + extent->length);
    struct file_clone_range clone = {.src_fd = from};
    struct file_identity now;

    *shared = (struct range){0, 0};
    if ((extent->start - extent->offset) % BLOCK_SIZE != 0 || end < begin ||
        end - begin < SHARE_LEAST)
        return true;
    clone.src_offset = extent->offset + (begin - extent->start);
    clone.src_length = end - begin;
    clone.dest_offset = begin;
    if (ioctl(to, FICLONERANGE, &clone) < 0)
        return false;
    /* Time stamps reveal a change made before the clone. */
    if (file_identity_from_fd(&now, from) == 0 &&
        file_identity_same_content(&extent->backing->identity, &now))
        *shared = (struct range){begin, end};
    return true;
}

/* Shares the blocks of a list that can be shared, and adds their size to `bytes`. Stores the other
 * ranges in `left`, in order, and returns their number. */
static size_t
share_extents(const struct extent_list *list, int fd, struct range *left, uint64_t *bytes)
{
    const struct backing *before = NULL;
    struct range shared;
    uint64_t at = 0;
    bool can_share = true;
    size_t count = 0;
    int from = -1;

    for (uint32_t i = 0; can_share && i < list->count; i++) {
        const struct extent *extent = &list->extents[i];

        if (!extent->backing)
            continue;
        if (extent->backing != before) {
            if (from >= 0)
                close(from);
            before = extent->backing;
            from = file_identity_open(&before->identity, before->directory, before->path);
        }
        if (from < 0)
            continue;
        can_share = share_extent(fd, extent, from, &shared);
        if (!can_share || shared.begin == shared.end)
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

/* ---- whole files ---- */

/* Allocates all space first, so that a full disk is detected at once. */
static errint_t
allocate_ranges(int fd, const struct range *ranges, size_t count)
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
copy_set_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

/* Where leases work (base/version.h), writes to the inputs are detected from now on. */
static errint_t
open_inputs(struct copy *copy, bool is_side, struct reason *reason)
{
    const struct backing *failed;
    errint_t error = version_open_list(copy->list, &failed);
    char name[QUOTED_SIZE];

    copy->is_open = !error;
    if (!error || (is_side && error == -ETXTBSY))
        return 0;
    quoted(name, failed->path, strlen(failed->path));
    if (error == -ESTALE)
        return reason_set(reason, error, "Stale", "the input %s was changed", name);
    if (error == -ETXTBSY)
        return reason_set(reason, error, "Writer",
                          "another process has the input %s open for writing", name);
    return reason_set(reason, error, "IoError", "cannot open the input %s: %s", name,
                      strerror(-error));
}

errint_t
copy_begin(struct extent_list *list, int fd, bool is_side, struct copy *copy, struct reason *reason)
{
    errint_t error;

    *copy = (struct copy){.list = extent_list_ref(list), .fd = fd};
    error = open_inputs(copy, is_side, reason);
    if (error)
        return error;
    copy->left = malloc(((size_t)list->count + 1) * sizeof(*copy->left));
    if (!copy->left)
        return reason_no_memory(reason);
    if (ftruncate(fd, (off_t)list->size) < 0)
        return reason_errno(reason, -errno, NULL);
    copy->left_count = share_extents(list, fd, copy->left, &copy->shared);
    return 0;
}

uint64_t
copy_remaining(const struct copy *copy)
{
    return copy->list->size - copy->shared;
}

errint_t
copy_run(struct copier *copier, struct copy *copy, struct progress *progress, struct reason *reason)
{
    struct copy_pass pass = {.copier = copier, .list = copy->list, .fd = copy->fd};
    errint_t error = allocate_ranges(copy->fd, copy->left, copy->left_count);

    atomic_fetch_add(progress->running, copy->shared);
    if (error)
        return reason_set(reason, error, "IoError", "cannot allocate %.2f GB: %s",
                          (double)copy_remaining(copy) / 1e9, strerror(-error));
    pass.tried_direct = copy_set_direct(copy->fd);
    error = copy_ranges(&pass, copy->left, copy->left_count, progress, reason);
    /* The last block was written whole. */
    if (!error && ftruncate(copy->fd, (off_t)copy->list->size) < 0)
        return reason_errno(reason, -errno, NULL);
    return error;
}

errint_t
copy_compare(struct copier *copier, struct copy *copy, struct progress *progress,
             struct reason *reason)
{
    const struct range all = {0, copy->list->size};
    struct copy_pass pass = {
        .copier = copier, .list = copy->list, .fd = copy->fd, .is_compare = true};

    posix_fadvise(copy->fd, 0, 0, POSIX_FADV_DONTNEED);
    pass.tried_direct = copy_set_direct(copy->fd);
    return copy_ranges(&pass, &all, copy->list->size > 0, progress, reason);
}

void
copy_end(struct copy *copy)
{
    if (copy->is_open)
        version_close_list(copy->list);
    extent_list_unref(copy->list);
    free(copy->left);
    *copy = (struct copy){0};
}
