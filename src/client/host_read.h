/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads into host memory. Several spans of the plan are in flight: read straight to where their
 * bytes belong if that is possible (span_memory()), else through the engine's buffers and copied.
 * Threads that submit also copy what is in the page cache, so large reads have several.
 */
#ifndef FSTFS_CLIENT_HOST_READ_H
#define FSTFS_CLIENT_HOST_READ_H

#include "client/read.h"

/* The plan is sorted. -ENOMEM. */
errint_t host_read_prepare(struct fstfs_read *read);

/* Starts the read, which read_end() ends. With `here`, this thread submits too, and may end it. */
void host_read_start(struct fstfs_read *read, bool here);

#endif
