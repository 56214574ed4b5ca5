/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/readahead.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

/* The size of the largest FUSE request. Larger values measured no faster. */
#define READAHEAD_MAX (1024 * 1024)
#define READAHEAD_STEP (64 * 1024)
/* A page fault in a tensor makes the kernel read half the readahead before the page, and on average
 * one and a half times the readahead after the end of the tensor. */
#define TENSOR_FRACTION 40
/* A page fault in a file of one tensor reads no more than this part of it. */
#define FILE_FRACTION 8
/* How long the value must not change after the answer to an open, until the kernel has copied it;
 * long enough for a busy machine. */
#define SETTLE_NS 1000000

errint_t
readahead_init(struct readahead *readahead, dev_t device)
{
    char path[80];

    pthread_mutex_init(&readahead->turn, NULL);
    snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(device),
             minor(device));
    readahead->fd = open(path, O_WRONLY | O_CLOEXEC);
    return readahead->fd < 0 ? -errno : 0;
}

void
readahead_destroy(struct readahead *readahead)
{
    if (readahead->fd >= 0)
        close(readahead->fd);
    pthread_mutex_destroy(&readahead->turn);
}

/* With `turn` held. */
static void
readahead_wait_for_opens(struct readahead *readahead)
{
    const struct timespec pause = {.tv_nsec = SETTLE_NS / 8};

    while (atomic_load(&readahead->answering) > 0 ||
           monotonic_ns() - atomic_load(&readahead->answered_at) < SETTLE_NS)
        nanosleep(&pause, NULL);
}

errint_t
readahead_begin_open(struct readahead *readahead, uint64_t bytes)
{
    errint_t error = 0;
    char text[32];

    pthread_mutex_lock(&readahead->turn);
    if (bytes && readahead->bytes != bytes) {
        readahead_wait_for_opens(readahead);
        snprintf(text, sizeof(text), "%" PRIu64 "\n", bytes / 1024);
        if (write(readahead->fd, text, strlen(text)) < 0)
            error = -errno;
        else
            readahead->bytes = bytes;
    }
    atomic_fetch_add(&readahead->answering, 1);
    pthread_mutex_unlock(&readahead->turn);
    return error;
}

void
readahead_end_open(struct readahead *readahead)
{
    atomic_store(&readahead->answered_at, monotonic_ns());
    atomic_fetch_sub(&readahead->answering, 1);
}

/* The number of pieces (tensors) of its backing that an extent overlaps. */
static uint32_t
count_pieces_of_extent(const struct extent *extent)
{
    const struct layout *layout = extent->backing ? extent->backing->layout : NULL;
    uint32_t first = layout_find(layout, extent->offset);
    uint32_t last = layout_find(layout, extent->offset + extent->length - 1);

    if (last == UINT32_MAX)
        return 0;
    return first == UINT32_MAX ? last + 1 : last - first + 1;
}

uint64_t
readahead_for_file(const struct extent_list *list, uint64_t normal)
{
    uint64_t pieces = list->layout ? list->layout->count : 0, bytes;

    for (uint32_t i = 0; !list->layout && i < list->count; i++)
        pieces += count_pieces_of_extent(&list->extents[i]);
    if (pieces == 0)
        return 0;
    bytes = list->size / pieces / (pieces == 1 ? FILE_FRACTION : TENSOR_FRACTION);
    bytes = bytes / READAHEAD_STEP * READAHEAD_STEP;
    if (bytes > READAHEAD_MAX)
        bytes = READAHEAD_MAX;
    return bytes > normal ? bytes : normal;
}
