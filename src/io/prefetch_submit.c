/* SPDX-License-Identifier: Apache-2.0 */
#include "io/prefetch_submit.h"

#include "io/block.h"
#include "io/engine.h"
#include "io/request_cursor.h"

/* Limit of ranges per prefetch. A window in name order may consist of many small tensors. */
#define RANGES_MAX 128

/* Bytes of one file to prefetch. */
struct prefetch_range {
    struct cached_file *file;
    uint64_t start, end;
    bool is_cut; /* shortened to the window */
};

struct prefetch_ranges {
    struct prefetch_range ranges[RANGES_MAX];
    unsigned count;
    uint64_t left; /* bytes of the window not in a range yet */
};

/* ---- decision ---- */

static enum prefetch_origin
part_begins_at(const struct extent_list *list, const struct extent_part *part, bool is_continued)
{
    const struct extent *extent = part->extent;
    bool is_first =
        extent == list->extents || (extent == list->extents + 1 && list->extents[0].blob);

    if (is_continued)
        return PREFETCH_ORIGIN_EARLIER;
    return is_first && part->offset == extent->offset ? PREFETCH_ORIGIN_TOP : PREFETCH_ORIGIN_HERE;
}

bool
prefetch_decide(struct io *io, const struct request *request, struct prefetch_plan *plan)
{
    struct request_cursor cursor = {.request = request};
    struct prefetch_limits limits = io->limits;
    uint64_t readahead = atomic_load_explicit(&request->list->readahead, memory_order_relaxed);
    /* Of the kernel's readahead around a page fault, the program needs the byte in the middle,
     * which may be in another part than the first byte. */
    uint64_t fault;
    bool is_continued = false;

    if (readahead)
        limits.readahead = readahead;
    fault = prefetch_fault_offset(&limits, request->offset, request->offset + request->length);
    *plan = (struct prefetch_plan){0};
    if (io->limits.window_max == 0)
        return false;
    /* The plan of the last part is used. */
    while (request_cursor_next(&cursor)) {
        const struct chunk *first = cursor.count > 0 ? cursor.pins[0].chunk : NULL;
        const struct extent_part *part = &cursor.part;
        enum prefetch_origin from;

        if (!first)
            continue;
        from = part_begins_at(request->list, part,
                              is_continued && (plan->continues_stream ||
                                               cursor.offset / BLOCK_SIZE != fault / BLOCK_SIZE));
        prefetch_observe(&first->file->prefetch, &limits, part->extent->backing->layout,
                         request->list, part->offset, part->offset + part->length, from,
                         request->pending > 0,
                         first->is_prefetched && first->delivered == 0 ? &first->plan : NULL, plan);
        is_continued = true;
    }
    return plan->window > 0;
}

/* ---- ranges: without the lock ---- */

/* Adds bytes [start, end) of an attached backing. False: the window or the array is full. */
static bool
ranges_add(struct io *io, struct prefetch_ranges *ranges, struct backing *backing, uint64_t start,
           uint64_t end)
{
    struct cached_file *file;
    bool is_cut = false;

    if (end > backing->identity.size)
        end = backing->identity.size;
    if (start >= end)
        return true;
    if (end - start > ranges->left) {
        end = start + ranges->left;
        is_cut = true;
    }
    file = chunk_cache_file(&io->cache, backing);
    if (!file || ranges->count == RANGES_MAX)
        return false;
    ranges->ranges[ranges->count++] = (struct prefetch_range){file, start, end, is_cut};
    ranges->left -= end - start;
    return ranges->left > 0;
}

/* Adds bytes [start, end) of the list. Results as above. */
static bool
ranges_add_of_list(struct io *io, struct prefetch_ranges *ranges, const struct extent_list *list,
                   uint64_t start, uint64_t end)
{
    const struct extent *extent = &list->extents[extent_list_find(list, start)];

    for (; start < end; extent++) {
        struct extent_part part = extent_part_at(extent, start, end - start);

        if (extent->backing &&
            (!chunk_cache_attach(&io->cache, extent->backing) ||
             !ranges_add(io, ranges, extent->backing, part.offset, part.offset + part.length)))
            return false;
        start += part.length;
    }
    return true;
}

static uint64_t
piece_prefetch_start(const struct piece *piece, const struct prefetch_plan *plan)
{
    return piece->start > plan->lead_bytes ? piece->start - plan->lead_bytes : 0;
}

/* Adds the tensors that follow, in name order, the one before byte `offset` of the list: tensors of
 * the list if it has a layout, else of the backing. */
static void
ranges_add_by_name(struct io *io, struct prefetch_ranges *ranges, const struct extent_list *list,
                   uint64_t offset, struct backing *backing, const struct prefetch_plan *plan)
{
    const struct layout *layout = list->layout ? list->layout : backing->layout;
    uint32_t piece = list->layout ? layout_find(layout, offset - 1) : plan->piece;
    bool more = true;

    while (more && piece < layout->count && (piece = layout->pieces[piece].next) < layout->count) {
        const struct piece *next = &layout->pieces[piece];
        uint64_t start = piece_prefetch_start(next, plan);
        uint64_t end = plan->probe_bytes ? start + plan->probe_bytes : next->end;

        if (list->layout && end > list->size)
            end = list->size;
        more = list->layout ? ranges_add_of_list(io, ranges, list, start, end)
                            : ranges_add(io, ranges, backing, start, end);
    }
}

/* Adds the starts of the tensors that follow in the file. */
static void
ranges_add_starts(struct io *io, struct prefetch_ranges *ranges, struct backing *backing,
                  const struct prefetch_plan *plan)
{
    const struct layout *layout = backing->layout;
    uint64_t end = 0;
    bool more = true;

    for (uint32_t i = plan->piece + 1; more && i < layout->count; i++) {
        uint64_t start = piece_prefetch_start(&layout->pieces[i], plan);

        if (start < end)
            continue;
        end = start + plan->probe_bytes;
        more = ranges_add(io, ranges, backing, start, end);
    }
}

/* Adds the rest of the list, from `position` in the backing of `extent` on. */
static void
ranges_add_onward(struct io *io, struct prefetch_ranges *ranges, const struct extent_list *list,
                  const struct extent *extent, uint64_t position)
{
    const struct extent *end = &list->extents[list->count];
    struct backing *backing = extent->backing;
    uint64_t stop = extent->offset + extent->length;

    if (!ranges_add(io, ranges, backing, position, stop))
        return;
    for (extent++; extent < end; extent++) {
        if (!extent->backing)
            continue;
        if (!chunk_cache_attach(&io->cache, extent->backing))
            return;
        backing = extent->backing;
        stop = extent->offset + extent->length;
        if (!ranges_add(io, ranges, backing, extent->offset, stop))
            return;
    }
    /* The next file of the mount may be stored after the end of the list, in the same backing. */
    ranges_add(io, ranges, backing, stop, UINT64_MAX);
}

/* Finds the ranges of `plan`, after byte `offset` of the list. */
static void
ranges_find(struct io *io, const struct extent_list *list, uint64_t offset,
            const struct prefetch_plan *plan, struct prefetch_ranges *ranges)
{
    const struct extent *extent = &list->extents[extent_list_find(list, offset - 1)];
    uint64_t position = extent_part_at(extent, offset - 1, 1).offset + 1;
    uint64_t stop = extent->offset + extent->length;

    ranges->count = 0;
    ranges->left = plan->window;
    if (!extent->backing)
        return;
    if (plan->probe_bytes && plan->in_name_order)
        ranges_add_by_name(io, ranges, list, offset, extent->backing, plan);
    else if (plan->probe_bytes)
        ranges_add_starts(io, ranges, extent->backing, plan);
    else if (plan->is_sequential)
        ranges_add_onward(io, ranges, list, extent, position);
    else if (ranges_add(io, ranges, extent->backing, position,
                        stop < plan->stop ? stop : plan->stop) &&
             plan->in_name_order)
        ranges_add_by_name(io, ranges, list, offset, extent->backing, plan);
}

/* ---- background reads: with the lock held ---- */

/* Adds a chunk of bytes [start, end) to the batch. False: memory is short. */
static bool
prefetch_chunk(struct io *io, struct cached_file *file, uint64_t start, uint64_t end,
               const struct prefetch_plan *plan, struct list *batch)
{
    struct chunk_cache *cache = &io->cache;
    struct memory_lane *lane = chunk_cache_lane(cache, backing_lane(file->backing));
    uint64_t cost = memory_cost(end - start);
    struct chunk *chunk;

    if (!lane || lane->queued.first || !memory_lane_allows(cache, lane, cost) ||
        !chunk_cache_make_room(cache, cost, cache->memory.budget / 4 * 3, false))
        return false;
    chunk = chunk_new(file, start, end, false);
    if (!chunk)
        return false;
    chunk_charge(chunk, lane, batch);
    chunk->is_prefetched = true;
    chunk->plan = *plan;
    return true;
}

/* Adds chunks for the uncached bytes of a range to the batch. False: memory is short. */
static bool
prefetch_range(struct io *io, const struct prefetch_range *range, const struct prefetch_plan *plan,
               struct list *batch)
{
    /* A shorter gap at the end of a cut window is left to the next prefetch. */
    uint64_t least = plan->window / 2 < CHUNK_BYTES ? plan->window / 2 : CHUNK_BYTES;
    uint64_t position = block_down(range->start);
    uint64_t stop = block_up(range->end);
    /* In a smaller range, delivered bytes are read again: it may be a gap between them. */
    bool may_be_delivered = stop - position >= SMALL_GAP_BYTES;

    while (position < stop) {
        uint32_t i = cached_file_find(range->file, position);
        struct chunk *chunk = i < range->file->count ? range->file->chunks[i] : NULL;
        uint64_t gap_end = chunk && chunk->read.offset < stop ? chunk->read.offset : stop;
        uint64_t next = position;

        if (may_be_delivered)
            next = cached_file_skip_delivered(range->file, position, &gap_end);
        if (gap_end <= position)
            next = chunk_end(chunk);
        else if (next == position)
            next = cached_file_skip_resident(range->file, position);
        if (next > position) {
            position = next;
            continue;
        }
        if (gap_end == stop && range->is_cut && position + least > gap_end)
            return true;
        if (gap_end - position > CHUNK_BYTES)
            gap_end = position + CHUNK_BYTES;
        if (!prefetch_chunk(io, range->file, position, gap_end, plan, batch))
            return false;
        position = gap_end;
    }
    return true;
}

void
prefetch_submit(struct io *io, const struct extent_list *list, uint64_t offset,
                const struct prefetch_plan *plan)
{
    struct prefetch_ranges ranges;
    struct list batch = LIST_INIT(batch);

    ranges_find(io, list, offset, plan, &ranges);
    if (ranges.count == 0)
        return;
    pthread_mutex_lock(&io->cache.lock);
    for (unsigned i = 0; i < ranges.count; i++) {
        if (!prefetch_range(io, &ranges.ranges[i], plan, &batch)) {
            prefetch_note_no_memory(&ranges.ranges[0].file->prefetch, ranges.ranges[0].start);
            break;
        }
    }
    chunk_cache_unlock(&io->cache);
    chunk_cache_submit_batch(&io->cache, &batch);
}
