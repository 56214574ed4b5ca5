/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads: what limited the reads of a checkpoint, for .fstfs/loads and the metrics.
 *
 * A load is a burst of reads of one checkpoint in one view, through files that one process group
 * has opened. It ends when no read is in flight for LOAD_PAUSE_SECONDS; a later read begins another
 * load. Its time, from the first read to the last, has three parts:
 *
 * - reader: no read is in flight. This includes the reader's opens and lookups.
 * - storage and daemon: reads are in flight. This time is divided in the ratio of the time that the
 *   reads waited for storage to the rest of their duration, in which the daemon waited for a
 *   processor or for memory, or copied data. A read that has not ended counts as waiting for
 *   storage so far.
 *
 * A read is in flight from the time when a thread of the daemon became runnable to receive it, even
 * if the thread then waited for a processor (run_delay.h), until it is answered. For that, threads
 * call run_delay_restart() after they have submitted a read. The delay also includes waits before
 * lookups and opens that the thread received since its last read.
 *
 * The kernel's readahead counts as reads, so a reader appears to wait while readahead for it is in
 * flight. Reads through passthrough are not counted.
 *
 * Any thread may call any function. No function waits for storage.
 */
#ifndef FSTFS_FUSE_LOADS_H
#define FSTFS_FUSE_LOADS_H

#include "base/buffer.h"
#include "base/extent.h"
#include "fuse/credentials.h"
#include "io/io.h"
#include "view/view.h"

#include <stdbool.h>
#include <sys/types.h>

enum { LOADS_MOST = 100, LOAD_PAUSE_SECONDS = 2 };

struct load;
struct loads;

/* `are_names_public`: metrics may contain names of checkpoints. `command` finds the name of the
 * program that a thread runs; "" if it is not known. NULL: out of memory. */
struct loads *loads_new(struct io *io, bool are_names_public,
                        void (*command)(pid_t thread, char name[COMMAND_SIZE]));
/* May be called after the engine is freed. NULL is allowed. */
void loads_free(struct loads *loads);

/* Returns a reference to the load to which reads of a file belong that `thread` has opened (0: the
 * thread is not visible to the daemon). NULL: none, because the file is not of a checkpoint, or
 * memory is exhausted. */
struct load *loads_open(struct loads *loads, const struct extent_list *list, enum view_kind view,
                        pid_t thread);
void loads_close(struct loads *loads, struct load *load); /* NULL is allowed */

/* A read in flight. */
struct load_read {
    struct load *load; /* a reference; NULL: the read belongs to no load */
    uint64_t started; /* monotonic_ns(); earlier by the thread's run delay, if there was a pause */
};

/* Begins a read by `thread`. `*load`: the result of loads_open(), which is replaced if that load
 * has ended. */
struct load_read loads_begin_read(struct loads *loads, struct load **load, pid_t thread);
/* Ends a read that has been answered, and drops its reference. */
void loads_end_read(struct loads *loads, const struct load_read *read,
                    const struct io_answer *answer, uint64_t bytes);

/* Appends a line of JSON for each of the last LOADS_MOST loads, oldest first. */
void loads_write(struct loads *loads, struct buffer *out);
/* Appends metrics of the loads that have ended. */
void loads_write_metrics(struct loads *loads, struct buffer *out);

#endif
