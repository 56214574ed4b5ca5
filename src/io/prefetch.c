/* SPDX-License-Identifier: Apache-2.0 */
#include "io/prefetch.h"

#include <string.h>

#define KIB 1024
#define MIB (1024 * KIB)

/* The window of a reader of whom little is known, and of one that begins a
 * piece with a read worth the name: most such readers want all of it. */
#define FIRST_WINDOW (256 * KIB)
#define PIECE_WINDOW (2 * MIB)
#define EARNEST_READ (64 * KIB)
/* A piece up to this size is fetched whole with its first byte. */
#define SMALL_PIECE (1 * MIB)
/* Requests of one reader come out of order by so much: the kernel asks for
 * several at a time, from several threads. */
#define DISORDER (2 * MIB)
/* The kernel asks for whole pages, so a piece may begin so far into a range. */
#define PAGE 4096
#define HANDOVERS_FOR_ONWARD 3
#define NAMED_FOR_ORDER 2

void
prefetch_init(struct prefetch *prefetch)
{
    memset(prefetch, 0, sizeof(*prefetch));
    prefetch->last_landed = UINT32_MAX;
}

/* The last piece that starts at or before `offset`; UINT32_MAX: none does. */
static uint32_t
piece_at(const struct layout *layout, uint64_t offset)
{
    uint32_t low = 0, high = layout ? layout->count : 0;

    if (high == 0 || layout->pieces[0].start > offset)
        return UINT32_MAX;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (layout->pieces[middle].start <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
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

static uint64_t
reach(const struct prefetch_limits *limits)
{
    return limits->overshoot > DISORDER ? limits->overshoot : DISORDER;
}

/* Whether the stream has come so near the offset that it may be its next. */
static bool
is_near(const struct stream *stream, uint64_t offset, uint64_t far)
{
    return stream->used > 0 && offset + DISORDER >= stream->start &&
           offset <= stream->position + far && stream->position <= offset + far;
}

/* The stream that asked for what lies just before, or NULL: the one that ends
 * right there, else the one of those near that was used last. */
static struct stream *
find(struct prefetch *prefetch, uint64_t offset, uint64_t far)
{
    struct stream *best = NULL;

    for (int i = 0; i < PREFETCH_STREAMS; i++) {
        struct stream *stream = &prefetch->streams[i];

        if (stream->used > 0 && stream->position == offset)
            return stream;
        if (is_near(stream, offset, far) && (!best || stream->used > best->used))
            best = stream;
    }
    return best;
}

static struct stream *
oldest(struct prefetch *prefetch)
{
    struct stream *found = &prefetch->streams[0];

    for (int i = 1; i < PREFETCH_STREAMS; i++)
        if (prefetch->streams[i].used < found->used)
            found = &prefetch->streams[i];
    return found;
}

/* A piece was begun: is it the one that comes next by name? */
static void
note_landing(struct prefetch *prefetch, const struct layout *layout, uint32_t piece)
{
    uint32_t last = prefetch->last_landed;

    if (piece == last || piece == UINT32_MAX)
        return;
    if (last < layout->count && layout->pieces[last].next == piece)
        prefetch->named++;
    else
        prefetch->named = 0;
    prefetch->last_landed = piece;
}

/* The first piece that starts in [offset, end); UINT32_MAX: none does. */
static uint32_t
piece_begun(const struct layout *layout, uint64_t offset, uint64_t end)
{
    uint32_t piece = piece_at(layout, offset);

    if (piece == UINT32_MAX || layout->pieces[piece].start < offset)
        piece = piece == UINT32_MAX ? 0 : piece + 1;
    if (!layout || piece >= layout->count || layout->pieces[piece].start >= end)
        return UINT32_MAX;
    return piece;
}

static uint64_t
first_window(const struct layout *layout, uint32_t piece, uint64_t offset, uint64_t end)
{
    uint64_t start = piece_start(layout, piece);

    /* In the middle of something: it may want these bytes and no more. */
    if (offset > start)
        return 0;
    if (layout && layout->count > 0 && piece_end(layout, piece) - start <= SMALL_PIECE)
        return SMALL_PIECE;
    return end - offset >= EARNEST_READ ? PIECE_WINDOW : FIRST_WINDOW;
}

/* A stream begins; `before` is the one that came near this place, or NULL. */
static struct stream *
begin(struct prefetch *prefetch, const struct layout *layout, const void *file, uint64_t offset,
      uint64_t end, bool carried, const struct stream *before, const struct ahead *fetched)
{
    struct stream *stream = oldest(prefetch);
    uint32_t piece = piece_begun(layout, offset, end);
    uint64_t window;

    if (piece != UINT32_MAX)
        note_landing(prefetch, layout, piece);
    else
        piece = piece_at(layout, end - 1);
    window = carried ? 0 : first_window(layout, piece, offset, end);
    if (before && window > 0 && before->window > window)
        window = before->window;
    *stream = (struct stream){
        .id = prefetch->clock,
        .start = offset,
        .position = end,
        .window = window,
        .landed = piece,
        .file = file,
    };
    if (fetched) {
        /* Foreseen: it is the reader for whom these bytes were fetched. */
        stream->onward = fetched->onward;
        if (fetched->window > stream->window)
            stream->window = fetched->window;
    }
    return stream;
}

/* Whether the range begins a piece, and does not just go on where the stream is
 * that asked last. */
static bool
lands(const struct prefetch *prefetch, const struct stream *stream, const struct layout *layout,
      uint64_t offset)
{
    if (offset == stream->position && stream->used == prefetch->clock)
        return false;
    return !stream->onward && piece_begun(layout, offset, offset + PAGE) != UINT32_MAX;
}

/* Counts what was passed over, and takes off what came late. */
static void
advance(struct stream *stream, uint64_t offset, uint64_t end)
{
    if (offset > stream->position)
        stream->holes += offset - stream->position;
    else if (end <= stream->position)
        stream->holes -= stream->holes < end - offset ? stream->holes : end - offset;
    if (end > stream->position)
        stream->position = end;
    if (offset < stream->start)
        stream->start = offset;
}

static void
learn_onward(struct stream *stream, const struct prefetch_limits *limits,
             const struct layout *layout, const void *file, uint64_t offset, uint64_t before)
{
    uint32_t piece = piece_at(layout, stream->position - 1);
    bool handed_over = file != stream->file && offset == before;

    stream->file = file;
    if (stream->holes > reach(limits)) {
        /* It picks here and there. */
        stream->onward = false;
        stream->handovers = 0;
        stream->holes = 0;
        stream->boundary = stream->position;
        stream->landed = piece;
        return;
    }
    if (handed_over) {
        /* A new file of the mount that begins where the last one ended: the
         * kernel's own readahead does not do that, so the reader did. */
        stream->landed = piece;
        if (++stream->handovers >= HANDOVERS_FOR_ONWARD)
            stream->onward = true;
    }
    if (stream->boundary == 0 && piece != stream->landed) {
        /* Only a reader that came a good way to the end of a piece says anything
         * by going over it: the kernel asks for what lies before and behind. */
        uint64_t start = piece_start(layout, piece);

        if (start - stream->start > 2 * limits->overshoot)
            stream->boundary = start;
        else if (stream->position - start > 2 * limits->overshoot)
            stream->landed = piece;
    }
    /* Further over the end of a piece than the kernel would go by itself. */
    if (stream->boundary && stream->position >= stream->boundary + 2 * limits->overshoot + MIB)
        stream->onward = true;
}

static void
follow(struct prefetch *prefetch, struct stream *stream, const struct prefetch_limits *limits,
       const struct layout *layout, const void *file, uint64_t offset, uint64_t end, bool stalled)
{
    uint64_t before = stream->position;
    bool handed_over = file != stream->file && offset == before;

    advance(stream, offset, end);
    learn_onward(stream, limits, layout, file, offset, before);
    if (handed_over)
        note_landing(prefetch, layout, stream->landed);
    /* Not for what came late, nor for one that picks here and there. */
    if (end <= before || (offset > before && stream->holes > (end - stream->start) / 4))
        return;
    if (stalled)
        stream->window *= 2;
    if (stream->window < FIRST_WINDOW)
        stream->window = FIRST_WINDOW;
}

/* Whether the stream may only have been carried over the start of this piece
 * by the kernel's readahead. */
static bool
may_be_overshoot(const struct stream *stream, const struct prefetch_limits *limits,
                 const struct layout *layout, uint32_t piece)
{
    return layout && piece != stream->landed && !stream->onward &&
           stream->position - piece_start(layout, piece) <= 2 * limits->overshoot;
}

void
prefetch_note(struct prefetch *prefetch, const struct prefetch_limits *limits,
              const struct layout *layout, const void *file, uint64_t offset, uint64_t end,
              bool carried, bool stalled, const struct ahead *fetched, struct ahead *ahead)
{
    struct stream *stream = find(prefetch, offset, reach(limits));
    uint32_t piece;

    if (stream && !lands(prefetch, stream, layout, offset))
        follow(prefetch, stream, limits, layout, file, offset, end, stalled);
    else
        stream = begin(prefetch, layout, file, offset, end, carried, stream, fetched);
    stream->used = ++prefetch->clock;
    if (stream->window > limits->most)
        stream->window = limits->most;

    piece = piece_at(layout, stream->position - 1);
    ahead->window = may_be_overshoot(stream, limits, layout, piece) ? 0 : stream->window;
    ahead->stop = piece_end(layout, piece);
    ahead->onward = stream->onward;
    ahead->stream = stream->id;
    ahead->piece = piece;
    ahead->by_name = !stream->onward && prefetch->named >= NAMED_FOR_ORDER && piece != UINT32_MAX;
    /* A range that came late: its stream is already ahead of it. */
    if (end < stream->position)
        ahead->window = 0;
}

void
prefetch_unused(struct prefetch *prefetch, const struct ahead *ahead)
{
    for (int i = 0; i < PREFETCH_STREAMS; i++) {
        struct stream *stream = &prefetch->streams[i];

        /* Once for each place where it was: a window is many chunks. */
        if (stream->used == 0 || stream->id != ahead->stream ||
            stream->shrunk_at == stream->position)
            continue;
        stream->shrunk_at = stream->position;
        stream->window /= 2;
        stream->onward = false;
        stream->handovers = 0;
        stream->boundary = stream->position;
        if (ahead->by_name)
            prefetch->named = 0;
    }
}

void
prefetch_short(struct prefetch *prefetch, uint64_t position)
{
    struct stream *stream = find(prefetch, position, DISORDER);

    if (stream && stream->window > FIRST_WINDOW)
        stream->window /= 2;
}
