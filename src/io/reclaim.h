/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Once a second, the reclaim thread evicts chunks that have been idle for some seconds, frees spare
 * buffers and closes descriptors that are not needed. It sleeps while the engine has no buffers and
 * no descriptors, until request_start() wakes it. Reads that bypass the chunk cache
 * (io_storage()) do not wake it.
 */
#ifndef FSTFS_IO_RECLAIM_H
#define FSTFS_IO_RECLAIM_H

#include "base/error.h"

struct io;

errint_t reclaim_start(struct io *io);
/* Stops the thread, if it was started, and waits until it has ended. */
void reclaim_stop(struct io *io);

#endif
