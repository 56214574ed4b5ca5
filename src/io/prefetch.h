/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to read ahead of the readers of one backing file.
 *
 * Watches the ranges that are asked for, finds the streams in them (a stream is
 * one reader's way through the file, whatever handle or view it comes by), and
 * says how far to read ahead of each. Reads nothing itself: pure bookkeeping,
 * guarded by its owner's lock.
 *
 * A stream's window grows when its reader had to wait and shrinks when what was
 * fetched for it was not used. It ends where the piece ends, until the reader
 * has shown that it goes on: into what follows in the file, or in the order of
 * names. Of pieces that are only looked at, one after another, the starts are
 * fetched: safetensors' load_file() touches each tensor before it reads any.
 */
#ifndef FSTFS_IO_PREFETCH_H
#define FSTFS_IO_PREFETCH_H

#include "base/extent.h"

#include <stdbool.h>
#include <stdint.h>

#define PREFETCH_STREAMS 16

struct stream {
    uint64_t used; /* when, by the prefetch's clock; 0: free */
    uint64_t id; /* never used twice in a family */
    uint64_t start; /* where it began */
    uint64_t position; /* end of the furthest range asked for */
    uint64_t holes; /* bytes before position that were passed over */
    uint64_t window; /* bytes to be ahead of position */
    uint64_t granted; /* end of what was to be fetched when it last asked */
    bool cut; /* that end is the window's, not the piece's */
    uint64_t shrunk_at; /* position when the window was last shrunk for want of use */
    uint32_t landed; /* the piece that its reader surely wants: the first, or one it went on into */
    uint32_t crossings; /* ends of pieces that it went over, in a row */
    bool from_top; /* it began where its file does, and has not left that */
    bool is_lone; /* one range, and nobody went on from it */
    const void *file; /* which one it reads now: only compared */
};

/* An order in which pieces are begun. */
struct order {
    uint32_t count; /* pieces in a row */
    uint64_t bytes; /* of those */
};

/* What readers have shown: of any stream, for several threads may share the work, and
 * of any file of a family, for who reads one shard by name reads the next so, too. */
struct habits {
    struct order by_name, by_file;
    uint64_t before; /* bytes before the piece that is begun that the kernel asks for, too */
    uint64_t proven; /* the window that last brought a reader to the end of a piece */
    uint64_t streams; /* that there have been */
};

struct prefetch {
    struct stream streams[PREFETCH_STREAMS];
    uint64_t clock;
    uint32_t last_landed; /* the piece begun last, by any stream */
    uint64_t landed_start, landed_end; /* what was asked for when it was */
    uint32_t glances; /* pieces in a row that were begun, and no more than begun */
    struct habits *habits; /* those of the family, or its own */
    struct habits own;
};

/* Constants of the engine. */
struct prefetch_limits {
    uint64_t most; /* bytes: the largest window; 0: no reading ahead */
    uint64_t overshoot; /* bytes that the kernel may ask for and no program did */
};

/* How far to read ahead now. */
struct ahead {
    uint64_t window; /* bytes from the end of the range; 0: nothing */
    uint64_t stop; /* end of the piece in the backing: not to be passed, unless onward */
    bool onward; /* on to what follows the piece */
    bool by_name; /* at `stop`, on to the next piece by name... */
    uint32_t piece; /* ...which follows this one */
    uint64_t before; /* bytes before the start of that that the kernel will ask for, too */
    uint64_t glance; /* unless 0: not the rest, but so much of the start of each that follows */
    uint64_t stream; /* whose intention it is */
    bool follows; /* the range begins where that ended */
};

/* Where what was asked for begins. */
enum prefetch_from {
    PREFETCH_HERE, /* with this range */
    PREFETCH_BEFORE, /* elsewhere: it came to this range by going on */
    PREFETCH_TOP, /* with this range, which is the first of its file, or follows its header */
};

/* `habits`: of the family, all zero at first, to outlive the prefetch; NULL: it has none. */
void prefetch_init(struct prefetch *prefetch, struct habits *habits);

/*
 * Bytes [offset, end) were asked for by way of `file`; `stalled`: they were not there yet.
 * `fetched`: what a stream of another backing intended when it had these bytes fetched, or NULL.
 */
void prefetch_note(struct prefetch *prefetch, const struct prefetch_limits *limits,
                   const struct layout *layout, const void *file, uint64_t offset, uint64_t end,
                   enum prefetch_from from, bool stalled, const struct ahead *fetched,
                   struct ahead *ahead);

/* The byte whose page fault [offset, end) was asked for, when that is what it looks
 * like: the kernel asks for as much before it as behind. Else UINT64_MAX. */
uint64_t prefetch_fault(const struct prefetch_limits *limits, uint64_t offset, uint64_t end);

/* What was fetched because of `ahead` was let go, and nobody had asked for it. */
void prefetch_unused(struct prefetch *prefetch, const struct ahead *ahead);

/* There was no memory for the window of the stream that is at `position`. */
void prefetch_short(struct prefetch *prefetch, uint64_t position);

#endif
