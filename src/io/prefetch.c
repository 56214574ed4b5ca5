/* SPDX-License-Identifier: Apache-2.0 */
#include "io/prefetch.h"

#include <string.h>

#define KIB 1024
#define MIB (1024 * KIB)

#define PAGE_BYTES 4096

/* ---- streams ---- */
/* The first window of a stream that starts a piece with a small request, and with a large one. Most
 * readers that start with a large request read all of the piece. */
#define WINDOW_MIN (256 * KIB)
#define PIECE_WINDOW_BYTES (2 * MIB)
#define LARGE_REQUEST (64 * KIB)
/* A piece up to this size is prefetched whole with its first byte. */
#define SMALL_PIECE_BYTES (1 * MIB)
/* Requests of one reader may arrive out of order by up to this distance, since the kernel has
 * several in flight. */
#define REORDER_BYTES (2 * MIB)
/* A stream that read past this many ends of pieces is sequential. One in a thousand readers of a
 * random tenth of the pieces does so by chance. */
#define CROSSED_FOR_SEQUENTIAL 3
/* Each byte read in sequence offsets 1/SKIPPED_DECAY skipped bytes. */
#define SKIPPED_DECAY 4

/* ---- piece order ---- */
#define PIECES_FOR_ORDER 3 /* started in a row */
/* Up to PIECES_BETWEEN_MAX - 1 pieces between two started ones may have been read from a cache:
 * those of up to CACHED_PIECE_BYTES, and those whose start was part of another request. */
#define PIECES_BETWEEN_MAX 8
#define CACHED_PIECE_BYTES (256 * KIB)

/* ---- probes ---- */
#define PROBES_FOR_PROBING 3 /* in a row */
#define PROBES_AHEAD 16 /* pieces whose starts are then prefetched */

static uint64_t
min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t
max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void
prefetch_init(struct prefetch *prefetch, struct access_history *history)
{
    memset(prefetch, 0, sizeof(*prefetch));
    prefetch->history = history ? history : &prefetch->own;
    prefetch->last_piece = UINT32_MAX;
}

static uint64_t
piece_start(const struct layout *layout, uint32_t piece)
{
    return piece == UINT32_MAX ? 0 : layout->pieces[piece].start;
}

static uint64_t
piece_end(const struct layout *layout, uint32_t piece)
{
    if (!layout || layout->count == 0)
        return UINT64_MAX;
    return piece == UINT32_MAX ? layout->pieces[0].start : layout->pieces[piece].end;
}

static bool
stream_is_sequential(const struct stream *stream)
{
    return stream->pieces_crossed >= CROSSED_FOR_SEQUENTIAL;
}

/* Whether a request at `offset`, after the end of the stream's piece, may be readahead only: the
 * kernel requests its next window early, so it may start after the end. */
static bool
may_be_kernel_readahead(const struct prefetch_limits *limits, const struct layout *layout,
                        const struct stream *stream, uint64_t offset)
{
    return offset < piece_end(layout, stream->piece) + limits->readahead;
}

static uint64_t
near_bytes(const struct prefetch_limits *limits)
{
    return limits->readahead > REORDER_BYTES ? limits->readahead : REORDER_BYTES;
}

/* Whether a request at `offset` may belong to the stream. */
static bool
stream_is_near(const struct stream *stream, uint64_t offset, uint64_t far)
{
    return stream->last_used > 0 && offset + REORDER_BYTES >= stream->start &&
           offset <= stream->position + far && stream->position <= offset + far;
}

/* The stream that a request at `offset` belongs to, or NULL: the one at this position, else the
 * most recently used one near it. A sequential stream near it is preferred to a single request that
 * ends at `offset`. */
static struct stream *
stream_find(struct prefetch *prefetch, uint64_t offset, uint64_t far)
{
    struct stream *best = NULL, *ends_here = NULL;

    for (int i = 0; i < PREFETCH_STREAMS; i++) {
        struct stream *stream = &prefetch->streams[i];

        if (stream->last_used > 0 && stream->position == offset &&
            (!ends_here || ends_here->is_single))
            ends_here = stream;
        else if (stream_is_near(stream, offset, far) &&
                 (!best || stream->last_used > best->last_used))
            best = stream;
    }
    if (ends_here && !(ends_here->is_single && best && stream_is_sequential(best)))
        return ends_here;
    return best;
}

static struct stream *
stream_oldest(struct prefetch *prefetch)
{
    struct stream *found = &prefetch->streams[0];

    for (int i = 1; i < PREFETCH_STREAMS; i++)
        if (prefetch->streams[i].last_used < found->last_used)
            found = &prefetch->streams[i];
    return found;
}

/* Whether a reader may have read the start of the piece from a cache: small pieces are cached with
 * their neighbors, and the start of a large one may be part of the last request. */
static bool
piece_may_be_cached(const struct prefetch *prefetch, const struct piece *piece)
{
    return piece->end - piece->start <= CACHED_PIECE_BYTES ||
           (piece->start >= prefetch->last_start && piece->start < prefetch->last_end);
}

/* Whether `piece` follows the piece started last in name order. */
static bool
is_next_by_name(const struct prefetch *prefetch, const struct layout *layout, uint32_t piece)
{
    uint32_t last = prefetch->last_piece;

    for (int i = 0; i < PIECES_BETWEEN_MAX && last < layout->count; i++) {
        last = layout->pieces[last].next;
        if (last == piece)
            return true;
        if (last < layout->count && !piece_may_be_cached(prefetch, &layout->pieces[last]))
            return false;
    }
    return false;
}

/* Whether it follows in file order. */
static bool
is_next_in_file(const struct prefetch *prefetch, const struct layout *layout, uint32_t piece)
{
    uint32_t last = prefetch->last_piece;

    if (last >= piece || piece - last > PIECES_BETWEEN_MAX)
        return false;
    while (++last < piece)
        if (!piece_may_be_cached(prefetch, &layout->pieces[last]))
            return false;
    return true;
}

static void
note_order(struct order_run *order, bool kept, const struct piece *piece)
{
    if (kept) {
        order->count++;
        order->bytes += piece->end - piece->start;
    } else {
        /* Not reset: requests may arrive out of order. */
        order->count /= 2;
        order->bytes /= 2;
    }
}

/* Updates the piece order: a reader started a piece. */
static void
note_piece_start(struct prefetch *prefetch, const struct layout *layout, uint32_t piece,
                 uint64_t offset, uint64_t end)
{
    struct access_history *history = prefetch->history;

    if (piece == prefetch->last_piece || piece == UINT32_MAX)
        return;
    if (prefetch->last_piece != UINT32_MAX) {
        bool by_name = is_next_by_name(prefetch, layout, piece);
        bool in_file = is_next_in_file(prefetch, layout, piece);

        note_order(&history->name_order, by_name, &layout->pieces[piece]);
        note_order(&history->file_order, in_file, &layout->pieces[piece]);
        history->pieces_started++;
        history->started_by_name += by_name;
        history->started_in_file_order += in_file;
    }
    prefetch->last_piece = piece;
    prefetch->last_start = offset;
    prefetch->last_end = end;
}

/* The first piece that starts in [offset, end); UINT32_MAX: there is none. */
static uint32_t
first_piece_starting_in(const struct layout *layout, uint64_t offset, uint64_t end)
{
    uint32_t piece = layout_find(layout, offset);

    if (piece == UINT32_MAX || layout->pieces[piece].start < offset)
        piece = piece == UINT32_MAX ? 0 : piece + 1;
    if (!layout || piece >= layout->count || layout->pieces[piece].start >= end)
        return UINT32_MAX;
    return piece;
}

uint64_t
prefetch_fault_offset(const struct prefetch_limits *limits, uint64_t offset, uint64_t end)
{
    uint64_t length = end - offset;

    /* POSIX_FADV_SEQUENTIAL, which safetensors uses, doubles the readahead. */
    if (length != limits->readahead && length != 2 * limits->readahead)
        return UINT64_MAX;
    return offset + length / 2;
}

/* The piece that a request starts if it continues no stream; UINT32_MAX: none. */
static uint32_t
piece_wanted(const struct prefetch_limits *limits, const struct layout *layout, uint64_t offset,
             uint64_t end)
{
    uint64_t fault = prefetch_fault_offset(limits, offset, end);
    uint32_t piece = UINT32_MAX;

    if (fault != UINT64_MAX)
        piece = first_piece_starting_in(layout, fault, fault + PAGE_BYTES);
    return piece != UINT32_MAX ? piece : first_piece_starting_in(layout, offset, end);
}

static bool
is_probing(const struct prefetch *prefetch)
{
    return prefetch->probes >= PROBES_FOR_PROBING;
}

/* Counts probes, of large pieces only: a request for a small piece may contain all of it. */
static void
note_probe(struct prefetch *prefetch, const struct prefetch_limits *limits,
           const struct layout *layout, uint64_t offset, uint64_t end)
{
    uint32_t piece = piece_wanted(limits, layout, offset, end);
    uint32_t around = layout_find(layout, offset);
    uint64_t touch = 2 * limits->readahead;

    if (end - offset > touch ||
        (piece == UINT32_MAX && offset >= piece_start(layout, around) + touch))
        prefetch->probes = 0;
    else if (piece != UINT32_MAX && piece != prefetch->last_piece &&
             piece_end(layout, piece) - piece_start(layout, piece) > 2 * touch)
        prefetch->probes++;
}

static uint64_t
first_window(const struct layout *layout, uint32_t piece, uint64_t offset, uint64_t end)
{
    uint64_t start = piece_start(layout, piece);

    /* Inside of a piece: the reader may need these bytes only. */
    if (offset > start)
        return 0;
    if (layout && layout->count > 0 && piece_end(layout, piece) - start <= SMALL_PIECE_BYTES)
        return SMALL_PIECE_BYTES;
    return end - offset >= LARGE_REQUEST ? PIECE_WINDOW_BYTES : WINDOW_MIN;
}

/* The slot for a new stream: that of the previous probe while probing, else the least recently
 * used. */
static struct stream *
stream_slot(struct prefetch *prefetch)
{
    for (int i = 0; i < PREFETCH_STREAMS && is_probing(prefetch); i++) {
        struct stream *stream = &prefetch->streams[i];

        if (stream->last_used == prefetch->clock && stream->is_single)
            return stream;
    }
    return stream_oldest(prefetch);
}

static struct stream *
stream_begin(struct prefetch *prefetch, const struct prefetch_limits *limits,
             const struct layout *layout, const void *file, uint64_t offset, uint64_t end,
             enum prefetch_origin origin, const struct prefetch_plan *cause)
{
    struct stream *stream = stream_slot(prefetch);
    uint32_t piece = piece_wanted(limits, layout, offset, end);
    uint64_t window;

    if (piece != UINT32_MAX) {
        note_piece_start(prefetch, layout, piece, offset, end);
        prefetch->history->lead_bytes = 0;
        if (offset + PAGE_BYTES <= piece_start(layout, piece))
            prefetch->history->lead_bytes =
                (piece_start(layout, piece) - offset + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    } else {
        piece = layout_find(layout, end - 1);
    }
    window = origin == PREFETCH_ORIGIN_EARLIER ? 0 : first_window(layout, piece, offset, end);
    if (window > 0 && prefetch->history->proven_window > window)
        window = prefetch->history->proven_window;
    *stream = (struct stream){
        .id = ++prefetch->history->streams_started,
        .start = offset,
        .position = end,
        .window = window,
        .piece = piece,
        .from_top = origin == PREFETCH_ORIGIN_TOP,
        .is_single = true,
        .file = file,
    };
    if (prefetch->history->file_order.count >= PIECES_FOR_ORDER && !is_probing(prefetch))
        stream->pieces_crossed = CROSSED_FOR_SEQUENTIAL;
    if (cause && !cause->probe_bytes) {
        /* The stream that had these bytes prefetched, maybe of another backing, continues here. */
        if (cause->is_sequential)
            stream->pieces_crossed = CROSSED_FOR_SEQUENTIAL;
        if (cause->window > stream->window)
            stream->window = cause->window;
    }
    return stream;
}

/* Whether the request starts a piece, instead of continuing the stream. */
static bool
starts_piece(const struct prefetch *prefetch, const struct prefetch_limits *limits,
             const struct stream *stream, const struct layout *layout, uint64_t offset,
             uint64_t end)
{
    uint64_t fault = prefetch_fault_offset(limits, offset, end);

    if (offset == stream->position && stream->last_used == prefetch->clock)
        return false;
    if (is_probing(prefetch))
        return piece_wanted(limits, layout, offset, end) != UINT32_MAX;
    if (stream_is_sequential(stream))
        return false;
    if (offset != stream->position && fault != UINT64_MAX &&
        first_piece_starting_in(layout, fault, fault + PAGE_BYTES) != UINT32_MAX)
        return true;
    return first_piece_starting_in(layout, offset, offset + PAGE_BYTES) != UINT32_MAX;
}

/* Moves the stream and counts skipped bytes. Late requests and requests in sequence reduce the
 * count: a reader skips the bytes that the page cache still has from an earlier pass. */
static void
stream_advance(struct stream *stream, uint64_t offset, uint64_t end)
{
    if (offset > stream->position)
        stream->skipped += offset - stream->position;
    else if (offset == stream->position)
        stream->skipped -= min_u64(stream->skipped, (end - offset) / SKIPPED_DECAY);
    else if (end <= stream->position)
        stream->skipped -= min_u64(stream->skipped, end - offset);
    if (end > stream->position)
        stream->position = end;
    if (offset < stream->start)
        stream->start = offset;
}

/* Updates pieces_crossed after a request at `offset`. */
static void
stream_note_crossing(struct prefetch *prefetch, struct stream *stream,
                     const struct prefetch_limits *limits, const struct layout *layout,
                     const void *file, uint64_t offset, bool handed_over)
{
    uint32_t piece = layout_find(layout, stream->position - 1);

    stream->from_top &= file == stream->file;
    stream->file = file;
    if (stream->skipped > near_bytes(limits)) {
        /* Not sequential. */
        stream->from_top = false;
        stream->pieces_crossed = 0;
        stream->skipped = 0;
        stream->start = stream->position;
        stream->piece = piece;
    } else if (handed_over || (piece != stream->piece &&
                               !may_be_kernel_readahead(limits, layout, stream, offset))) {
        /* The kernel's readahead reaches neither this offset nor another file of the mount, so the
         * reader itself has crossed the end of the piece. This counts if the stream read more of
         * the piece than readahead alone would. */
        if (handed_over || piece_end(layout, stream->piece) > stream->start + limits->readahead)
            stream->pieces_crossed += stream->from_top ? CROSSED_FOR_SEQUENTIAL : 1;
        stream->piece = piece;
        note_piece_start(prefetch, layout, piece, offset, stream->position);
    }
}

static void
stream_follow(struct prefetch *prefetch, struct stream *stream,
              const struct prefetch_limits *limits, const struct layout *layout, const void *file,
              uint64_t offset, uint64_t end, bool stalled)
{
    uint64_t before = stream->position;
    bool handed_over = file != stream->file && offset == before;

    stream->is_single = false;
    stream_advance(stream, offset, end);
    stream_note_crossing(prefetch, stream, limits, layout, file, offset, handed_over);
    /* A late request, or a stream that is not sequential, does not change the window. */
    if (end <= before || (offset > before && stream->skipped > (end - stream->start) / 4))
        return;
    /* A larger window would have prefetched the bytes earlier. */
    if (stalled && (stream->is_cut || offset < stream->prefetched_to))
        stream->window *= 2;
    if (end >= piece_end(layout, stream->piece) && before < piece_end(layout, stream->piece))
        prefetch->history->proven_window = stream->window;
    if (stream->window < WINDOW_MIN)
        stream->window = WINDOW_MIN;
}

/* Plans the window of a stream whose position is in `piece`. A sequential window is at most as long
 * as the bytes read in file order so far. */
static void
plan_window(const struct prefetch *prefetch, struct stream *stream, const struct layout *layout,
            uint32_t piece, struct prefetch_plan *plan)
{
    uint64_t rest = piece_end(layout, piece) - stream->position;

    plan->stream_id = stream->id;
    plan->piece = piece;
    plan->stop = piece_end(layout, piece);
    plan->is_sequential = stream_is_sequential(stream);
    plan->in_name_order = !plan->is_sequential &&
                          prefetch->history->name_order.count >= PIECES_FOR_ORDER &&
                          piece != UINT32_MAX;
    plan->lead_bytes = prefetch->history->lead_bytes;
    plan->probe_bytes = 0;
    plan->window = stream->window;
    if (plan->is_sequential)
        plan->window = min_u64(plan->window, max_u64(stream->position - stream->start,
                                                     prefetch->history->file_order.bytes));
    else if (plan->in_name_order)
        plan->window = min_u64(plan->window, rest + prefetch->history->name_order.bytes);
    else if (piece != stream->piece)
        /* Readahead alone may have reached the start of this piece. */
        plan->window = 0;
    stream->is_cut = plan->is_sequential || plan->in_name_order || plan->window < rest;
    stream->prefetched_to = stream->position + (stream->is_cut ? plan->window : rest);
}

/* Plans to prefetch the starts of the next pieces, if their order is known. */
static void
plan_probes(const struct prefetch *prefetch, uint64_t length, struct prefetch_plan *plan)
{
    const struct access_history *history = prefetch->history;

    if (history->name_order.count < PIECES_FOR_ORDER &&
        history->file_order.count < PIECES_FOR_ORDER)
        return;
    plan->is_sequential = false;
    plan->in_name_order = history->name_order.count > history->file_order.count;
    plan->probe_bytes = length + PAGE_BYTES;
    plan->window = PROBES_AHEAD * plan->probe_bytes;
}

void
prefetch_observe(struct prefetch *prefetch, const struct prefetch_limits *limits,
                 const struct layout *layout, const void *file, uint64_t offset, uint64_t end,
                 enum prefetch_origin origin, bool stalled, const struct prefetch_plan *cause,
                 struct prefetch_plan *plan)
{
    struct stream *stream = stream_find(prefetch, offset, near_bytes(limits));
    bool begins = false;
    uint32_t piece;

    note_probe(prefetch, limits, layout, offset, end);
    plan->continues_stream = stream && stream->position == offset;
    if (stream && !starts_piece(prefetch, limits, stream, layout, offset, end))
        stream_follow(prefetch, stream, limits, layout, file, offset, end, stalled);
    else {
        stream = stream_begin(prefetch, limits, layout, file, offset, end, origin, cause);
        begins = true;
    }
    stream->last_used = ++prefetch->clock;
    if (stream->window > limits->window_max)
        stream->window = limits->window_max;

    piece = layout_find(layout, stream->position - 1);
    plan_window(prefetch, stream, layout, piece, plan);
    if (begins && is_probing(prefetch))
        plan_probes(prefetch, end - offset, plan);
    /* A late request: its stream is further already. */
    if (end < stream->position)
        plan->window = 0;
}

void
prefetch_note_waste(struct prefetch *prefetch, const struct prefetch_plan *plan)
{
    for (int i = 0; i < PREFETCH_STREAMS; i++) {
        struct stream *stream = &prefetch->streams[i];

        /* Halve once per position, since a window has many chunks. */
        if (stream->last_used == 0 || stream->id != plan->stream_id ||
            stream->shrunk_at == stream->position)
            continue;
        stream->shrunk_at = stream->position;
        stream->window /= 2;
        prefetch->history->proven_window /= 2;
        stream->pieces_crossed = 0;
        prefetch->history->file_order = (struct order_run){0};
        prefetch->probes = 0;
        if (plan->in_name_order)
            prefetch->history->name_order = (struct order_run){0};
    }
}

void
prefetch_note_no_memory(struct prefetch *prefetch, uint64_t position)
{
    struct stream *stream = stream_find(prefetch, position, REORDER_BYTES);

    if (stream && stream->window > WINDOW_MIN)
        stream->window /= 2;
}
