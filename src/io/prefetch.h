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
 * names.
 */
#ifndef FSTFS_IO_PREFETCH_H
#define FSTFS_IO_PREFETCH_H

#include "base/extent.h"

#include <stdbool.h>
#include <stdint.h>

#define PREFETCH_STREAMS 16

struct stream {
    uint64_t used; /* when, by the prefetch's clock; 0: free */
    uint64_t id; /* never used twice */
    uint64_t start; /* where it began */
    uint64_t position; /* end of the furthest range asked for */
    uint64_t holes; /* bytes before position that were passed over */
    uint64_t window; /* bytes to be ahead of position */
    uint64_t boundary; /* that end; 0: it has not yet */
    uint64_t shrunk_at; /* position when the window was last shrunk for want of use */
    uint32_t landed; /* the piece that it began with */
    uint32_t handovers; /* times it went on with the next file of the mount */
    const void *file; /* which one it reads now: only compared */
    bool onward; /* it reads on over ends of pieces */
};

struct prefetch {
    struct stream streams[PREFETCH_STREAMS];
    uint64_t clock;
    uint32_t last_landed; /* the piece begun last, by any stream */
    uint32_t named; /* pieces in a row that were begun in the order of names */
};

/* Constants of the engine. */
struct prefetch_limits {
    uint64_t most; /* bytes: the largest window; 0: no reading ahead */
    uint64_t overshoot; /* bytes that the kernel may ask for and no program did */
};

/* How far to read ahead now. */
struct ahead {
    uint64_t window; /* bytes from the end of the range; 0: nothing */
    uint64_t stop; /* offset in the backing not to be passed, unless onward */
    bool onward; /* on to what follows the piece */
    bool by_name; /* at `stop`, on to the next piece by name... */
    uint32_t piece; /* ...which follows this one */
    uint64_t stream; /* whose intention it is */
};

void prefetch_init(struct prefetch *prefetch);

/*
 * Bytes [offset, end) were asked for by way of `file`; `carried`: by a range that
 * began before, elsewhere; `stalled`: they were not there yet. `fetched`: what a stream of another
 * backing intended when it had these bytes fetched, or NULL.
 */
void prefetch_note(struct prefetch *prefetch, const struct prefetch_limits *limits,
                   const struct layout *layout, const void *file, uint64_t offset, uint64_t end,
                   bool carried, bool stalled, const struct ahead *fetched, struct ahead *ahead);

/* What was fetched because of `ahead` was let go, and nobody had asked for it. */
void prefetch_unused(struct prefetch *prefetch, const struct ahead *ahead);

/* There was no memory for the window of the stream that is at `position`. */
void prefetch_short(struct prefetch *prefetch, uint64_t position);

#endif
