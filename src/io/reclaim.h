/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reclaim thread frees idle chunks, spare buffers and descriptors once a second. It sleeps
 * while there are none, until request_start() wakes it.
 */
#ifndef FSTFS_IO_RECLAIM_H
#define FSTFS_IO_RECLAIM_H

#include "base/error.h"

struct io;

errint_t reclaim_start(struct io *io);
/* Stops the thread, if it was started, and waits until it has ended. */
void reclaim_stop(struct io *io);

#endif
