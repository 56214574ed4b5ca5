/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of threads for jobs that may block: opening files, and reading without a ring. Jobs are
 * queued for each file system (io/lanes.h), urgent ones first. Any thread may add jobs.
 */
#ifndef FSTFS_IO_WORKERS_H
#define FSTFS_IO_WORKERS_H

#include "base/error.h"
#include "base/fifo.h"

#include <stdbool.h>
#include <stdint.h>

struct workers;

struct job {
    struct fifo_node node;
    uint64_t lane_key; /* of what it may block on: backing_lane() */
    struct worker_lane *lane; /* set by workers_add() */
    void (*run)(struct job *job); /* called by a worker; may free the job */
};

/* Threads are started on demand: at most `most` for one file system; in all at most twice as many,
 * and one for each further file system, up to WORKER_LANES of those. */
enum { WORKER_LANES = 64 };

errint_t workers_new(unsigned most, struct workers **workers);

/* Waits until all jobs have run, also those that jobs add meanwhile. */
void workers_free(struct workers *workers); /* NULL is allowed */

void workers_add(struct workers *workers, struct job *job, bool urgent);

#endif
