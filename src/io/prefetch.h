/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides what to prefetch of one backing file. No I/O; guarded by the lock of the chunk cache.
 *
 * The file consists of pieces: byte ranges that programs read as a unit, that is, tensors. Three
 * heuristics observe the requests:
 *
 * - Streams. A stream is one reader's sequential progress, whichever handle or view it comes from.
 *   Its window, the bytes to prefetch, doubles when the reader had to wait and halves when
 *   prefetched bytes were evicted unused. The window ends with the piece, until the reader has
 *   continued into several following pieces.
 * - Piece order. Readers start pieces in file order or in the order of names. Once several pieces
 *   in a row were started in one order, the window continues into the next piece of that order.
 * - Probes. safetensors' load_file() touches the start of each tensor before it reads any. Once
 *   several pieces in a row were only probed, the starts of the next pieces are prefetched instead.
 *
 * Piece order and window sizes are remembered for all shards of a checkpoint (struct
 * access_history), since a program reads the second shard as it read the first.
 */
#ifndef FSTFS_IO_PREFETCH_H
#define FSTFS_IO_PREFETCH_H

#include "base/extent.h"

#include <stdbool.h>
#include <stdint.h>

#define PREFETCH_STREAMS 16

/* Offsets are offsets in the backing file. */
struct stream {
    uint64_t last_used; /* value of prefetch->clock; 0: the slot is free */
    uint64_t id; /* unique in an access_history */
    uint64_t start; /* of the first request */
    uint64_t position; /* end of the furthest request */
    uint64_t skipped; /* bytes before `position` that were not requested */
    uint64_t window; /* bytes to prefetch after `position` */
    uint64_t prefetched_to; /* offset, as of the last plan */
    bool is_cut; /* the window ended there; false: the piece did */
    uint64_t shrunk_at; /* position when the window was last halved */
    uint32_t piece; /* the last piece that the reader, not readahead, has reached */
    uint32_t pieces_crossed; /* ends of pieces that it read past without skipping */
    bool from_top; /* it started at the top of its file, and has not left it */
    bool is_single; /* one request so far */
    const void *file; /* identifies the file of the mount that it reads; only compared */
};

/* Pieces in a row that were started in one order. */
struct order_run {
    uint32_t count;
    uint64_t bytes; /* of those pieces */
};

/* Shared by all streams of all shards of a checkpoint: several threads may share the work, and a
 * program reads the next shard as it read the last. */
struct access_history {
    struct order_run name_order, file_order;
    uint64_t lead_bytes; /* requested before the start of a piece: the kernel's readahead */
    uint64_t proven_window; /* of the stream that last reached the end of a piece */
    uint64_t streams_started;
    uint64_t pieces_started; /* after another piece of the same file */
    uint64_t started_in_file_order, started_by_name; /* of these */
};

struct prefetch {
    struct stream streams[PREFETCH_STREAMS];
    uint64_t clock; /* counts requests */
    uint32_t last_piece; /* the piece started last, by any stream; UINT32_MAX: none */
    uint64_t last_start, last_end; /* of the request that started it */
    uint32_t probes; /* pieces in a row that were only probed */
    struct access_history *history; /* shared, or `own` */
    struct access_history own;
};

/* Settings of the engine, and of the file of the mount. */
struct prefetch_limits {
    uint64_t window_max; /* bytes; 0: no prefetching */
    uint64_t readahead; /* bytes that the kernel may request unasked */
};

/* What to prefetch after a request. */
struct prefetch_plan {
    uint64_t window; /* bytes from the end of the request; 0: none */
    uint64_t stop; /* end of the piece; the window ends there unless one of the next two is set */
    bool is_sequential; /* continue in file order, past `stop` */
    bool in_name_order; /* at `stop`, continue with the next piece by name */
    uint32_t piece; /* the piece of the request */
    uint64_t lead_bytes; /* also prefetch these, before the start of each further piece */
    uint64_t probe_bytes; /* unless 0: prefetch only these, at the start of each further piece */
    uint64_t stream_id;
    bool continues_stream; /* the request starts where the stream ended */
};

/* Where a request begins, compared with its first byte in this backing. */
enum prefetch_origin {
    PREFETCH_ORIGIN_HERE, /* at it */
    PREFETCH_ORIGIN_EARLIER, /* in an earlier extent */
    PREFETCH_ORIGIN_TOP, /* at it, which is the start of the file of the mount or of its data */
};

/* `history`: all zero at first; must outlive the prefetch. NULL: the file has its own. */
void prefetch_init(struct prefetch *prefetch, struct access_history *history);

/*
 * Bytes [offset, end) were requested through `file`, which is only compared. `stalled`: not all of
 * them were cached. `cause`: the plan by which their first chunk was prefetched, if none
 * of its bytes was delivered yet; else NULL. Fills in *plan.
 */
void prefetch_observe(struct prefetch *prefetch, const struct prefetch_limits *limits,
                      const struct layout *layout, const void *file, uint64_t offset, uint64_t end,
                      enum prefetch_origin origin, bool stalled, const struct prefetch_plan *cause,
                      struct prefetch_plan *plan);

/* The offset of the page fault for which the kernel's readahead requests [offset, end), if the
 * range looks like one: the kernel reads as much before the fault as after it. Else UINT64_MAX. */
uint64_t prefetch_fault_offset(const struct prefetch_limits *limits, uint64_t offset, uint64_t end);

/* Bytes prefetched by this plan were evicted, and no reader had requested them. */
void prefetch_note_waste(struct prefetch *prefetch, const struct prefetch_plan *plan);

/* Memory was short for the window of the stream at `position`. */
void prefetch_note_no_memory(struct prefetch *prefetch, uint64_t position);

#endif
