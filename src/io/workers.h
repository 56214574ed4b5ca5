/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for what may block: opening files, and reading where there is no ring.
 * A queue of jobs, urgent ones first, any thread may add.
 */
#ifndef FSTFS_IO_WORKERS_H
#define FSTFS_IO_WORKERS_H

#include "base/error.h"
#include "base/fifo.h"

#include <stdbool.h>

struct workers;

struct job {
    struct fifo_node node;
    void (*run)(struct job *job); /* from a worker; the job may be gone after it */
};

/* At most `most` threads, made when there is work for them. */
errint_t workers_new(unsigned most, struct workers **workers);

/* Waits until every job has been run. Jobs may still add jobs meanwhile. */
void workers_free(struct workers *workers); /* NULL is allowed */

void workers_add(struct workers *workers, struct job *job, bool urgent);

#endif
