/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for what may block: opening files, and reading where there is no ring.
 * Jobs are queued for each file system (io/lanes.h), urgent ones first; any thread may add.
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
    uint64_t device; /* st_dev of the file system that it may wait for */
    struct worker_lane *lane; /* of workers.c */
    void (*run)(struct job *job); /* from a worker; the job may be gone after it */
};

/* Threads are made when there is work for them: at most `most` for one file system, and in all at
 * most twice as many and one for each further file system, up to WORKER_LANES of those. */
enum { WORKER_LANES = 64 };

errint_t workers_new(unsigned most, struct workers **workers);

/* Waits until every job has been run. Jobs may still add jobs meanwhile. */
void workers_free(struct workers *workers); /* NULL is allowed */

void workers_add(struct workers *workers, struct job *job, bool urgent);

#endif
