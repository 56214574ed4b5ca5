/* SPDX-License-Identifier: Apache-2.0 */
#include "client/windows.h"

#include <stdlib.h>

static int
compare_items(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return 0;
}

void
windows_sort(struct windows *windows)
{
    qsort(windows->items, windows->count, sizeof(*windows->items), compare_items);
}

static bool
same_tensor(const struct item *a, const struct item *b)
{
    return a->source == b->source && a->offset == b->offset;
}

static uint64_t
next_start(const struct item *item)
{
    return item->offset + box_range(&item->box, item->next);
}

/* The item whose next range is the first of all that are not found yet. Requests of
 * one tensor may interleave; those of two cannot. NULL: all are found. */
static struct item *
next_item(struct windows *windows)
{
    struct item *items = windows->items, *best = NULL;

    while (!best && windows->group < windows->count) {
        size_t i = windows->group;

        for (; i < windows->count && same_tensor(&items[i], &items[windows->group]); i++)
            if (items[i].next < items[i].box.range_count &&
                (!best || next_start(&items[i]) < next_start(best)))
                best = &items[i];
        if (!best)
            windows->group = i;
    }
    return best;
}

/* Finds ranges until they fill a window, or a hole follows that is not to be read. */
static void
find_ranges(struct windows *windows)
{
    struct item *item;

    while (windows->end - windows->start < windows->size + WINDOW_SLACK &&
           (item = next_item(windows))) {
        uint64_t start = next_start(item);
        uint64_t end = start + item->box.range;

        if (windows->start == windows->end) {
            windows->source = item->source;
            windows->start = start;
            windows->end = end;
        } else if (item->source != windows->source ||
                   block_down(start) > block_up(windows->end) + BLOCK_SIZE) {
            return;
        } else if (end > windows->end) {
            windows->end = end;
        }
        item->next++;
    }
}

bool
windows_next(struct windows *windows, struct window *window)
{
    uint64_t cut;

    find_ranges(windows);
    if (windows->start == windows->end)
        return false;
    cut = windows->end;
    if (cut - block_down(windows->start) > windows->size + WINDOW_SLACK)
        cut = block_down(windows->start) + windows->size;
    *window = (struct window){.source = windows->source, .start = windows->start, .end = cut};
    while (windows->items[windows->low].source != windows->source ||
           windows->items[windows->low].end <= windows->start)
        windows->low++;
    window->first = window->last = windows->low;
    while (window->last < windows->count &&
           windows->items[window->last].source == windows->source &&
           windows->items[window->last].offset < cut)
        window->last++;
    windows->start = cut;
    return true;
}

/* Tensors of one source never overlap. */
static bool
is_alone(const struct windows *windows, size_t i)
{
    const struct item *items = windows->items;

    return !(i > 0 && same_tensor(&items[i - 1], &items[i])) &&
           !(i + 1 < windows->count && same_tensor(&items[i + 1], &items[i]));
}

char *
window_memory(const struct windows *windows, const struct window *window)
{
    const struct item *item = &windows->items[window->first];
    uint64_t begin = item->offset + item->box.start;
    uintptr_t to = (uintptr_t)item->to - begin + window->start;

    if (window->start < begin || window->end > item->end || item->box.level_count > 0 ||
        window->start % BLOCK_SIZE != 0 || window->end % BLOCK_SIZE != 0 || to % BLOCK_SIZE != 0 ||
        !is_alone(windows, window->first))
        return NULL;
    return (char *)to;
}

uint64_t
window_copy(const struct windows *windows, const struct window *window, uint64_t offset,
            const char *bytes, uint64_t length)
{
    uint64_t copied = 0;

    for (size_t i = window->first; i < window->last; i++) {
        const struct item *item = &windows->items[i];
        uint64_t skip = item->offset > offset ? item->offset - offset : 0;

        if (skip < length && item->end > offset)
            copied += box_copy(&item->box, offset + skip - item->offset, bytes + skip,
                               length - skip, item->to);
    }
    return copied;
}
