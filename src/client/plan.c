/* SPDX-License-Identifier: Apache-2.0 */
#include "client/plan.h"

#include <stdlib.h>

static int
compare_items(const void *a, const void *b)
{
    const struct plan_item *x = a, *y = b;

    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return 0;
}

void
plan_sort(struct read_plan *plan)
{
    qsort(plan->items, plan->count, sizeof(*plan->items), compare_items);
}

static uint64_t
plan_next_start(const struct plan_item *item)
{
    return item->offset + strided_slice_range(&item->slice, item->next);
}

/* The item with the next range. Ranges of requests interleave if they are for the same tensor, or
 * for tensors that overlap, as in a PyTorch file: a group of items. NULL: there are no more. */
static struct plan_item *
plan_next_item(struct read_plan *plan)
{
    struct plan_item *items = plan->items, *best = NULL;

    while (!best && plan->group < plan->count) {
        size_t i = plan->group;
        uint64_t end = items[i].end;

        for (; i < plan->count && items[i].source == items[plan->group].source &&
               (i == plan->group || items[i].offset < end);
             i++) {
            if (items[i].end > end)
                end = items[i].end;
            if (items[i].next < items[i].slice.range_count &&
                (!best || plan_next_start(&items[i]) < plan_next_start(best)))
                best = &items[i];
        }
        if (!best)
            plan->group = i;
    }
    return best;
}

/* Joins ranges until they fill a span or the gap to the next one is longer than a block. */
static void
plan_find_ranges(struct read_plan *plan)
{
    struct plan_item *item;

    while (plan->end - plan->start <= plan->span_bytes + SPAN_SLACK &&
           (item = plan_next_item(plan))) {
        uint64_t start = plan_next_start(item);
        uint64_t end = start + item->slice.range;

        if (plan->start == plan->end) {
            plan->source = item->source;
            plan->start = start;
            plan->end = end;
        } else if (item->source != plan->source ||
                   block_down(start) > block_up(plan->end) + BLOCK_SIZE) {
            return;
        } else if (end > plan->end) {
            plan->end = end;
        }
        item->next++;
    }
}

bool
plan_next_span(struct read_plan *plan, struct span *span)
{
    uint64_t cut;

    plan_find_ranges(plan);
    if (plan->start == plan->end)
        return false;
    cut = plan->end;
    if (cut - block_down(plan->start) > plan->span_bytes + SPAN_SLACK)
        cut = block_down(plan->start) + plan->span_bytes;
    *span = (struct span){.source = plan->source, .start = plan->start, .end = cut};
    while (plan->items[plan->low].source != plan->source ||
           plan->items[plan->low].end <= plan->start)
        plan->low++;
    span->first = span->last = plan->low;
    while (span->last < plan->count && plan->items[span->last].source == plan->source &&
           plan->items[span->last].offset < cut)
        span->last++;
    plan->start = cut;
    return true;
}

/* Whether only the first item of the span may have bytes in it. */
static bool
is_of_one_item(const struct read_plan *plan, const struct span *span)
{
    for (size_t i = span->first + 1; i < span->last; i++)
        if (plan->items[i].end > span->start)
            return false;
    return true;
}

char *
span_memory(const struct read_plan *plan, const struct span *span)
{
    const struct plan_item *item = &plan->items[span->first];
    uint64_t begin = item->offset + item->slice.start;
    uintptr_t to = (uintptr_t)item->to - begin + span->start;

    if (span->start < begin || span->end > item->end || item->slice.level_count > 0 ||
        span->start % BLOCK_SIZE != 0 || span->end % BLOCK_SIZE != 0 || to % BLOCK_SIZE != 0 ||
        !is_of_one_item(plan, span))
        return NULL;
    return (char *)to;
}

uint64_t
span_copy(const struct read_plan *plan, const struct span *span, uint64_t offset, const char *bytes,
          uint64_t length)
{
    uint64_t copied = 0;

    for (size_t i = span->first; i < span->last; i++) {
        const struct plan_item *item = &plan->items[i];
        uint64_t skip = item->offset > offset ? item->offset - offset : 0;

        if (skip < length && item->end > offset)
            copied += strided_slice_copy(&item->slice, offset + skip - item->offset, bytes + skip,
                                         length - skip, item->to);
    }
    return copied;
}
