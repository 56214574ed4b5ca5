/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a read wants, sorted by where it lies, and cut into windows across tensors.
 * Guarded by its owner's lock.
 */
#ifndef FSTFS_CLIENT_WINDOWS_H
#define FSTFS_CLIENT_WINDOWS_H

#include "client/box.h"
#include "client/private.h"

/* Rather than leave so little for another window, one is so much longer. */
#define WINDOW_SLACK (56 * 1024)

/* One request. */
struct item {
    struct box box;
    struct tensor_source *source;
    uint64_t offset; /* of the tensor in it */
    uint64_t end; /* in the source, of what is wanted */
    char *to;
    uint64_t room; /* of a device: from `to` to the end of its allocation */
    uint64_t next; /* range to be read */
};

struct window {
    const struct tensor_source *source;
    uint64_t start, end; /* in the source */
    size_t first, last; /* the items that want some of it */
};

struct windows {
    struct item *items; /* by source, then offset */
    size_t count;
    uint64_t size; /* bytes of a window, but for the slack */
    /* The cursor: what has been found and not yet been made a window of... */
    const struct tensor_source *source;
    uint64_t start, end; /* equal: nothing */
    size_t low; /* ...the first item that may want some of it... */
    size_t group; /* ...and the first whose ranges are not all found. */
};

/* Once all items are there. */
void windows_sort(struct windows *windows);

/* False: there are no more. */
bool windows_next(struct windows *windows, struct window *window);

/* The block that a window's reading begins with. */
static inline uint64_t
window_base(const struct window *window)
{
    return block_down(window->start);
}

/*
 * Where the window may be read to as it is: whole blocks of a tensor that only one item
 * wants some of, and that in one piece, in memory whose address is to a block as their
 * offset is. NULL: it is to be copied. Never a part of a window, for then its rest would
 * be a small read more, and disks take those ill.
 */
char *window_memory(const struct windows *windows, const struct window *window);

/* `bytes` lie in the window's source from `offset`: copies them to where they are
 * wanted, in host memory, and gives how many that were. */
uint64_t window_copy(const struct windows *windows, const struct window *window, uint64_t offset,
                     const char *bytes, uint64_t length);

#endif
