/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One look at a mount: what its .fstfs/status says, and when.
 */
#ifndef FSTFS_TOP_SAMPLE_H
#define FSTFS_TOP_SAMPLE_H

#include "base/buffer.h"
#include "base/error.h"

struct sample {
    double at; /* seconds of the monotonic clock */
    uint64_t pid, uptime, problems, checkpoints;
    /* The engine's counters; see docs/metrics.md. */
    uint64_t reads, read_bytes, cached_bytes, errors, stale, stalls;
    uint64_t storage_bytes, prefetched, used, wasted;
    uint64_t in_flight, storage_in_flight, storage_waiting, memory, budget;
    double read_seconds; /* of all reads together, from question to answer */
    struct buffer source; /* as JSON shows it, without quotes */
    struct buffer without; /* ways of reading that are done without, and why; or empty */
};

/* Looks at the mount at `point`. It may take as long as the daemon does not answer.
 * On an error the sample is empty, and the reason says what a person can do. */
errint_t sample_take(const char *point, struct sample *sample, struct reason *reason);
void sample_free(struct sample *sample);

#endif
