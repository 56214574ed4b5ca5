/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads in threads, because src/io bypasses the page cache or drops pages that it has read. Each
 * thread reads one part of a file sequentially, with a descriptor of its own, and requests pages in
 * large units (POSIX_FADV_WILLNEED) instead of relying on readahead.
 */
#include "warm.h"

#include "base/array.h"
#include "base/file.h"
#include "base/parallel.h"
#include "common/command.h"
#include "common/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART_BYTES ((uint64_t)16 << 20)
#define READ_BYTES ((uint64_t)1 << 20) /* requested before they are read */
#define STEP_BYTES ((uint64_t)128 << 10) /* the kernel accepts at least this much in one call */

enum { THREADS = 32 };

struct part {
    size_t file;
    struct page_range range;
};

struct warm {
    struct selection *selection;
    struct part *parts;
    size_t part_count;
    struct progress progress;
};

static errint_t
warm_cut_file(struct warm *warm, size_t number)
{
    struct selected_file *file = &warm->selection->files[number];
    uint64_t left = file->wanted;
    struct page_range range;

    file->error = 0;
    for (size_t i = 0; selected_range(file, i, &left, &range); i++) {
        for (uint64_t at = range.begin; at < range.end; at += PART_BYTES) {
            struct part part = {number, {at, range.end}};

            if (range.end - at > PART_BYTES)
                part.range.end = at + PART_BYTES;
            if (!array_add(warm->parts, warm->part_count, part))
                return -ENOMEM;
        }
    }
    return 0;
}

static bool
part_is_cached(int fd, const struct page_range *range)
{
    uint64_t pages = 0;

    return page_cache_count(fd, range, &pages) == 0 && pages == page_range_count(range);
}

static void
part_request(int fd, uint64_t from, uint64_t end)
{
    for (uint64_t at = from; at < end; at += STEP_BYTES) /* the kernel skips pages in flight */
        posix_fadvise(fd, (off_t)at, (off_t)(end - at), POSIX_FADV_WILLNEED);
}

static errint_t
part_read(struct warm *warm, int fd, const struct page_range *range)
{
    errint_t error = 0;

    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* no readahead beyond the request */
    for (uint64_t at = range->begin; !error && at < range->end; at += READ_BYTES) {
        uint64_t end = range->end - at > READ_BYTES ? at + READ_BYTES : range->end;

        part_request(fd, at, end);
        error = file_read_through(fd, at, end);
        atomic_fetch_add_explicit(warm->progress.running, end - at, memory_order_relaxed);
        if (!progress_tick(&warm->progress))
            return -EINTR;
    }
    return error == -ENODATA ? -ESTALE : error; /* it was truncated */
}

static void
warm_part(void *arg, size_t number)
{
    struct warm *warm = arg;
    const struct part *part = &warm->parts[number];
    struct selected_file *file = &warm->selection->files[part->file];
    errint_t none = 0, error = 0;
    int fd;

    if (progress_signal() || file->error)
        return;
    fd = file_identity_open(&file->identity, AT_FDCWD, file->path);
    if (fd < 0)
        error = fd;
    else if (part_is_cached(fd, &part->range))
        atomic_fetch_add_explicit(warm->progress.running, part->range.end - part->range.begin,
                                  memory_order_relaxed);
    else
        error = part_read(warm, fd, &part->range);
    if (fd >= 0)
        close(fd);
    if (error)
        atomic_compare_exchange_strong(&file->error, &none, error);
}

errint_t
warm_run(struct selection *selection)
{
    struct warm warm = {.selection = selection};
    uint64_t bytes = 0;
    errint_t error = 0;

    for (size_t i = 0; !error && i < selection->file_count; i++)
        error = warm_cut_file(&warm, i);
    for (size_t i = 0; i < warm.part_count; i++)
        bytes += warm.parts[i].range.end - warm.parts[i].range.begin;
    if (!error) {
        progress_begin(&warm.progress, bytes);
        warm.progress.has_rate = true;
        progress_start(&warm.progress, "warming");
        if (warm.progress.running)
            parallel_for(warm.part_count, THREADS, warm_part, &warm);
        else
            error = -ENOMEM;
        progress_end(&warm.progress);
    }
    for (size_t i = 0; !error && i < selection->file_count; i++)
        if (selection->files[i].error && selection->files[i].error != -EINTR)
            selection_fail_file(selection, i, selection->files[i].error);
    free(warm.parts);
    return !error && progress_signal() ? -EINTR : error;
}

/* ---- eviction ---- */

static void
evict_file(void *arg, size_t number)
{
    struct selected_file *file = &((struct selection *)arg)->files[number];
    errint_t error = 0;
    bool is_hidden = false; /* evicted, but the kernel does not reveal what is left */
    uint64_t left = 0;
    int fd;

    if (progress_signal() || file->range_count == 0)
        return;
    fd = file_identity_open(&file->identity, AT_FDCWD, file->path);
    if (fd < 0)
        error = fd;
    else if (page_cache_is_storage(fd))
        error = -EOPNOTSUPP;
    for (size_t i = 0; !error && i < file->range_count; i++) {
        error = page_cache_evict(fd, &file->ranges[i], &left);
        if (error == -EPERM) {
            is_hidden = true;
            error = 0;
        }
    }
    if (!error && is_hidden)
        error = -EPERM;
    else if (!error && left > 0)
        error = page_cache_is_passed_through(fd) ? -EXDEV : -EBUSY;
    if (fd >= 0)
        close(fd);
    file->error = error;
}

static void
evict_report_error(struct selection *selection, size_t number)
{
    const char *path = selection->files[number].path;
    errint_t error = selection->files[number].error;
    char name[QUOTED_SIZE];

    if (error == -EPERM)
        return; /* evicted as far as possible; the report has "unknown" */
    if (error == -EOPNOTSUPP)
        complain("%s: cannot be evicted: its file system stores files in memory only",
                 quoted(name, path, strlen(path)));
    else if (error == -EXDEV)
        complain("%s: stays cached: its pages belong to the file of the source (passthrough); "
                 "evict them there",
                 quoted(name, path, strlen(path)));
    else if (error == -EBUSY)
        complain("%s: some pages stay cached because they are mapped, locked or in use",
                 quoted(name, path, strlen(path)));
    else if (error)
        selection_fail_file(selection, number, error);
    selection->failed |= error != 0;
}

errint_t
evict_run(struct selection *selection)
{
    parallel_for(selection->file_count, THREADS, evict_file, selection);
    for (size_t i = 0; i < selection->file_count; i++)
        evict_report_error(selection, i);
    return progress_signal() ? -EINTR : 0;
}
