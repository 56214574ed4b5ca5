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
/* A reader that went over so many ends of pieces goes on; of those who pick a
 * tenth of the pieces one in a thousand looks like that. Who came from the top of
 * the file need go over one: that a few pieces are read so happens once a file. */
#define CROSSINGS_FOR_ONWARD 3
#define LANDINGS_FOR_ORDER 3 /* likewise */
/* A byte passed over is forgotten for so many in a row that were not. */
#define HOLES_FORGIVEN 4
#define GLANCES 3 /* likewise */
#define GLANCES_AHEAD 16 /* pieces whose starts are fetched then */
/* So many pieces that were not asked for may come between two that were; of this size
 * at most, but for those whose start came with another's. */
#define MOST_UNSEEN 8
#define UNSEEN (256 * KIB)

static uint64_t
lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t
greater(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void
prefetch_init(struct prefetch *prefetch, struct habits *habits)
{
    memset(prefetch, 0, sizeof(*prefetch));
    prefetch->habits = habits ? habits : &prefetch->own;
    prefetch->last_landed = UINT32_MAX;
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
is_onward(const struct stream *stream)
{
    return stream->crossings >= CROSSINGS_FOR_ONWARD;
}

/* Whether a range of the stream that begins at `offset`, behind the piece that
 * it is in, can be the kernel's doing alone: when a program comes to one run of
 * the readahead the kernel asks for the next, and that may begin behind the end. */
static bool
may_be_the_kernels(const struct prefetch_limits *limits, const struct layout *layout,
                   const struct stream *stream, uint64_t offset)
{
    return offset < piece_end(layout, stream->landed) + limits->overshoot;
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
 * right there, else the one of those near that was used last. A range from which
 * nobody went on is not to catch who passes by, and had only to jump over it. */
static struct stream *
find(struct prefetch *prefetch, uint64_t offset, uint64_t far)
{
    struct stream *best = NULL, *ends_here = NULL;

    for (int i = 0; i < PREFETCH_STREAMS; i++) {
        struct stream *stream = &prefetch->streams[i];

        if (stream->used > 0 && stream->position == offset && (!ends_here || ends_here->is_lone))
            ends_here = stream;
        else if (is_near(stream, offset, far) && (!best || stream->used > best->used))
            best = stream;
    }
    if (ends_here && !(ends_here->is_lone && best && is_onward(best)))
        return ends_here;
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

/* Whether the piece may have been wanted without a request of its own: small ones
 * come with their neighbours, and of others the start may lie in the page cache. */
static bool
may_be_unseen(const struct prefetch *prefetch, const struct piece *piece)
{
    return piece->end - piece->start <= UNSEEN ||
           (piece->start >= prefetch->landed_start && piece->start < prefetch->landed_end);
}

/* Whether `piece` comes by name after that begun last. */
static bool
is_next_by_name(const struct prefetch *prefetch, const struct layout *layout, uint32_t piece)
{
    uint32_t last = prefetch->last_landed;

    for (int i = 0; i < MOST_UNSEEN && last < layout->count; i++) {
        last = layout->pieces[last].next;
        if (last == piece)
            return true;
        if (last < layout->count && !may_be_unseen(prefetch, &layout->pieces[last]))
            return false;
    }
    return false;
}

/* The same for the order of the file. */
static bool
is_next_in_file(const struct prefetch *prefetch, const struct layout *layout, uint32_t piece)
{
    uint32_t last = prefetch->last_landed;

    if (last >= piece || piece - last > MOST_UNSEEN)
        return false;
    while (++last < piece)
        if (!may_be_unseen(prefetch, &layout->pieces[last]))
            return false;
    return true;
}

static void
note_order(struct order *order, bool kept, const struct piece *piece)
{
    if (kept) {
        order->count++;
        order->bytes += piece->end - piece->start;
    } else {
        /* Requests that overtook others look like that, too. */
        order->count /= 2;
        order->bytes /= 2;
    }
}

/* A reader went to a piece: is it the one that comes next? */
static void
note_landing(struct prefetch *prefetch, const struct layout *layout, uint32_t piece,
             uint64_t offset, uint64_t end)
{
    struct habits *habits = prefetch->habits;

    if (piece == prefetch->last_landed || piece == UINT32_MAX)
        return;
    /* The first follows nothing. */
    if (prefetch->last_landed != UINT32_MAX) {
        note_order(&habits->by_name, is_next_by_name(prefetch, layout, piece),
                   &layout->pieces[piece]);
        note_order(&habits->by_file, is_next_in_file(prefetch, layout, piece),
                   &layout->pieces[piece]);
    }
    prefetch->last_landed = piece;
    prefetch->landed_start = offset;
    prefetch->landed_end = end;
}

/* The first piece that starts in [offset, end); UINT32_MAX: none does. */
static uint32_t
piece_begun(const struct layout *layout, uint64_t offset, uint64_t end)
{
    uint32_t piece = layout_find(layout, offset);

    if (piece == UINT32_MAX || layout->pieces[piece].start < offset)
        piece = piece == UINT32_MAX ? 0 : piece + 1;
    if (!layout || piece >= layout->count || layout->pieces[piece].start >= end)
        return UINT32_MAX;
    return piece;
}

uint64_t
prefetch_fault(const struct prefetch_limits *limits, uint64_t offset, uint64_t end)
{
    uint64_t length = end - offset;

    /* Twice as much after POSIX_FADV_SEQUENTIAL, which safetensors gives. */
    if (length != limits->overshoot && length != 2 * limits->overshoot)
        return UINT64_MAX;
    return offset + length / 2;
}

/* The piece that a range from a new place is after. */
static uint32_t
piece_wanted(const struct prefetch_limits *limits, const struct layout *layout, uint64_t offset,
             uint64_t end)
{
    uint64_t fault = prefetch_fault(limits, offset, end);
    uint32_t piece = UINT32_MAX;

    if (fault != UINT64_MAX)
        piece = piece_begun(layout, fault, fault + PAGE);
    return piece != UINT32_MAX ? piece : piece_begun(layout, offset, end);
}

static bool
is_glancing(const struct prefetch *prefetch)
{
    return prefetch->glances >= GLANCES;
}

/* Is more wanted of pieces than their starts? Of large ones, others do not tell. */
static void
note_glance(struct prefetch *prefetch, const struct prefetch_limits *limits,
            const struct layout *layout, uint64_t offset, uint64_t end)
{
    uint32_t piece = piece_wanted(limits, layout, offset, end);
    uint32_t around = layout_find(layout, offset);
    uint64_t touch = 2 * limits->overshoot;

    if (end - offset > touch ||
        (piece == UINT32_MAX && offset >= piece_start(layout, around) + touch))
        prefetch->glances = 0;
    else if (piece != UINT32_MAX && piece != prefetch->last_landed &&
             piece_end(layout, piece) - piece_start(layout, piece) > 2 * touch)
        prefetch->glances++;
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

/* For a new one: that used least of late, or, if it is a glance, the glance before. */
static struct stream *
spare(struct prefetch *prefetch)
{
    for (int i = 0; i < PREFETCH_STREAMS && is_glancing(prefetch); i++) {
        struct stream *stream = &prefetch->streams[i];

        if (stream->used == prefetch->clock && stream->is_lone)
            return stream;
    }
    return oldest(prefetch);
}

/* A stream begins. */
static struct stream *
begin(struct prefetch *prefetch, const struct prefetch_limits *limits, const struct layout *layout,
      const void *file, uint64_t offset, uint64_t end, enum prefetch_from from,
      const struct ahead *fetched)
{
    struct stream *stream = spare(prefetch);
    uint32_t piece = piece_wanted(limits, layout, offset, end);
    uint64_t window;

    if (piece != UINT32_MAX) {
        note_landing(prefetch, layout, piece, offset, end);
        prefetch->habits->before = 0;
        if (offset + PAGE <= piece_start(layout, piece))
            prefetch->habits->before =
                (piece_start(layout, piece) - offset + PAGE - 1) / PAGE * PAGE;
    } else {
        piece = layout_find(layout, end - 1);
    }
    window = from == PREFETCH_BEFORE ? 0 : first_window(layout, piece, offset, end);
    if (window > 0 && prefetch->habits->proven > window)
        window = prefetch->habits->proven;
    *stream = (struct stream){
        .id = ++prefetch->habits->streams,
        .start = offset,
        .position = end,
        .window = window,
        .landed = piece,
        .from_top = from == PREFETCH_TOP,
        .is_lone = true,
        .file = file,
    };
    if (prefetch->habits->by_file.count >= LANDINGS_FOR_ORDER && !is_glancing(prefetch))
        stream->crossings = CROSSINGS_FOR_ONWARD;
    if (fetched && !fetched->glance) {
        /* Foreseen: it is the reader for whom these bytes were fetched. */
        if (fetched->onward)
            stream->crossings = CROSSINGS_FOR_ONWARD;
        if (fetched->window > stream->window)
            stream->window = fetched->window;
    }
    return stream;
}

/* Whether the range begins a piece, and does not just go on where the stream is
 * that asked last. */
static bool
lands(const struct prefetch *prefetch, const struct prefetch_limits *limits,
      const struct stream *stream, const struct layout *layout, uint64_t offset, uint64_t end)
{
    uint64_t fault = prefetch_fault(limits, offset, end);

    if (offset == stream->position && stream->used == prefetch->clock)
        return false;
    if (is_glancing(prefetch))
        return piece_wanted(limits, layout, offset, end) != UINT32_MAX;
    if (is_onward(stream))
        return false;
    if (offset != stream->position && fault != UINT64_MAX &&
        piece_begun(layout, fault, fault + PAGE) != UINT32_MAX)
        return true;
    return piece_begun(layout, offset, offset + PAGE) != UINT32_MAX;
}

/* Counts what was passed over, and takes off what came late, and some for each time
 * that the reader just goes on: it may have been here before, and pass over what
 * the page cache has. */
static void
advance(struct stream *stream, uint64_t offset, uint64_t end)
{
    if (offset > stream->position)
        stream->holes += offset - stream->position;
    else if (offset == stream->position)
        stream->holes -= lesser(stream->holes, (end - offset) / HOLES_FORGIVEN);
    else if (end <= stream->position)
        stream->holes -= lesser(stream->holes, end - offset);
    if (end > stream->position)
        stream->position = end;
    if (offset < stream->start)
        stream->start = offset;
}

/* What a range that begins at `offset` says of where the stream's reader goes. */
static void
learn_onward(struct prefetch *prefetch, struct stream *stream, const struct prefetch_limits *limits,
             const struct layout *layout, const void *file, uint64_t offset, bool handed_over)
{
    uint32_t piece = layout_find(layout, stream->position - 1);

    stream->from_top &= file == stream->file;
    stream->file = file;
    if (stream->holes > reach(limits)) {
        /* It picks here and there. */
        stream->from_top = false;
        stream->crossings = 0;
        stream->holes = 0;
        stream->start = stream->position;
        stream->landed = piece;
    } else if (handed_over ||
               (piece != stream->landed && !may_be_the_kernels(limits, layout, stream, offset))) {
        /* The kernel does not go so far by itself, nor on to a new file of the
         * mount that begins where the last one ended. But only a reader that came
         * a good way to the end of a piece says anything by going over it. */
        if (handed_over || piece_end(layout, stream->landed) > stream->start + limits->overshoot)
            stream->crossings += stream->from_top ? CROSSINGS_FOR_ONWARD : 1;
        stream->landed = piece;
        note_landing(prefetch, layout, piece, offset, stream->position);
    }
}

static void
follow(struct prefetch *prefetch, struct stream *stream, const struct prefetch_limits *limits,
       const struct layout *layout, const void *file, uint64_t offset, uint64_t end, bool stalled)
{
    uint64_t before = stream->position;
    bool handed_over = file != stream->file && offset == before;

    stream->is_lone = false;
    advance(stream, offset, end);
    learn_onward(prefetch, stream, limits, layout, file, offset, handed_over);
    /* Not for what came late, nor for one that picks here and there. */
    if (end <= before || (offset > before && stream->holes > (end - stream->start) / 4))
        return;
    /* It was to be there, or would have been with a larger window. */
    if (stalled && (stream->cut || offset < stream->granted))
        stream->window *= 2;
    if (end >= piece_end(layout, stream->landed) && before < piece_end(layout, stream->landed))
        prefetch->habits->proven = stream->window;
    if (stream->window < FIRST_WINDOW)
        stream->window = FIRST_WINDOW;
}

/* How far to be ahead of the stream, which is in this piece. Over ends of pieces
 * no further than it came. */
static void
grant(const struct prefetch *prefetch, struct stream *stream, const struct layout *layout,
      uint32_t piece, struct ahead *ahead)
{
    uint64_t rest = piece_end(layout, piece) - stream->position;

    ahead->stream = stream->id;
    ahead->piece = piece;
    ahead->stop = piece_end(layout, piece);
    ahead->onward = is_onward(stream);
    ahead->by_name = !ahead->onward && prefetch->habits->by_name.count >= LANDINGS_FOR_ORDER &&
                     piece != UINT32_MAX;
    ahead->before = prefetch->habits->before;
    ahead->glance = 0;
    ahead->window = stream->window;
    if (ahead->onward)
        ahead->window = lesser(ahead->window, greater(stream->position - stream->start,
                                                      prefetch->habits->by_file.bytes));
    else if (ahead->by_name)
        ahead->window = lesser(ahead->window, rest + prefetch->habits->by_name.bytes);
    else if (piece != stream->landed)
        /* It may only have been carried over the start of this piece by the kernel. */
        ahead->window = 0;
    stream->cut = ahead->onward || ahead->by_name || ahead->window < rest;
    stream->granted = stream->position + (stream->cut ? ahead->window : rest);
}

/* The same for one that only looks at the starts of pieces, in a known order. */
static void
grant_glances(const struct prefetch *prefetch, uint64_t length, struct ahead *ahead)
{
    const struct habits *habits = prefetch->habits;

    if (habits->by_name.count < LANDINGS_FOR_ORDER && habits->by_file.count < LANDINGS_FOR_ORDER)
        return;
    ahead->onward = false;
    ahead->by_name = habits->by_name.count > habits->by_file.count;
    ahead->glance = length + PAGE;
    ahead->window = GLANCES_AHEAD * ahead->glance;
}

void
prefetch_note(struct prefetch *prefetch, const struct prefetch_limits *limits,
              const struct layout *layout, const void *file, uint64_t offset, uint64_t end,
              enum prefetch_from from, bool stalled, const struct ahead *fetched,
              struct ahead *ahead)
{
    struct stream *stream = find(prefetch, offset, reach(limits));
    bool begins = false;
    uint32_t piece;

    note_glance(prefetch, limits, layout, offset, end);
    ahead->follows = stream && stream->position == offset;
    if (stream && !lands(prefetch, limits, stream, layout, offset, end))
        follow(prefetch, stream, limits, layout, file, offset, end, stalled);
    else {
        stream = begin(prefetch, limits, layout, file, offset, end, from, fetched);
        begins = true;
    }
    stream->used = ++prefetch->clock;
    if (stream->window > limits->most)
        stream->window = limits->most;

    piece = layout_find(layout, stream->position - 1);
    grant(prefetch, stream, layout, piece, ahead);
    if (begins && is_glancing(prefetch))
        grant_glances(prefetch, end - offset, ahead);
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
        prefetch->habits->proven /= 2;
        stream->crossings = 0;
        prefetch->habits->by_file = (struct order){0};
        prefetch->glances = 0;
        if (ahead->by_name)
            prefetch->habits->by_name = (struct order){0};
    }
}

void
prefetch_short(struct prefetch *prefetch, uint64_t position)
{
    struct stream *stream = find(prefetch, position, DISORDER);

    if (stream && stream->window > FIRST_WINDOW)
        stream->window /= 2;
}
