/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reclaim thread: once a second it frees chunks, spare buffers and descriptors that are idle.
 * It sleeps while there are none. request_start() wakes it: without a read nothing is allocated.
 */
#ifndef FSTFS_IO_RECLAIM_H
#define FSTFS_IO_RECLAIM_H

#include "base/error.h"

struct io;

errint_t reclaim_start(struct io *io);
/* Waits until the thread has ended. It may not have been started. */
void reclaim_stop(struct io *io);

#endif
