/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads into host memory, with several spans of the plan in flight. A span is read straight into
 * the caller's memory if span_memory() allows it, else into the engine's buffers and copied. The
 * thread that submits a read also copies it if it is in the page cache, so several threads submit
 * large reads.
 */
#ifndef FSTFS_CLIENT_HOST_READ_H
#define FSTFS_CLIENT_HOST_READ_H

#include "client/read.h"

/* The plan must be sorted. -ENOMEM. */
errint_t host_read_prepare(struct fstfs_read *read);

/* Starts the read; read_end() is called at its end. With `here`, this thread submits too and may
 * make that call. */
void host_read_start(struct fstfs_read *read, bool here);

#endif
