/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads into the memory of one device, by all ways but the unified one.
 *
 * A window of a read is brought into a slot and copied from there to where its bytes
 * go. Slots are of two kinds:
 *
 *   in host memory    filled by the engine's storage; pinned (RUNG_RING), and then copied
 *                     by one stream with an event for each slot, which is not used anew
 *                     before that; or not pinned (RUNG_PAGEABLE), and copied at once
 *   in device memory  filled by cuFile (RUNG_CUFILE), and copied by the same stream
 *
 * All calls to the driver are made by the pipeline's own thread, the copier, but for
 * those that make it and end it, and cuFile's.
 */
#ifndef FSTFS_CLIENT_GPU_PIPELINE_H
#define FSTFS_CLIENT_GPU_PIPELINE_H

#include "client/gpu/cufile.h"
#include "client/gpu/device.h"
#include "client/read.h"

struct pipeline;

/* Bytes of a slot instead of those that follow from the memory; 0: those. For tests/gpu/measure.c,
 * before any device is opened. */
extern uint64_t pipeline_window;

/* -ENOMEM, -EAGAIN (no thread). Without pinned memory it gives RUNG_RING up. */
errint_t pipeline_new(struct fstfs_device *device, struct pipeline **pipeline);
void pipeline_free(struct pipeline *pipeline); /* NULL is allowed; nothing may be under way */

/* Bytes of its slots. */
void pipeline_memory(const struct pipeline *pipeline, uint64_t *host, uint64_t *device);

/* Tells cuFile of a file, if nobody has. The first call loads it, makes slots in device
 * memory, and gives RUNG_CUFILE up if that fails: no call after that. One thread at a
 * time for all devices of an fstfs, with the context pushed. */
errint_t pipeline_open_file(struct pipeline *pipeline, struct tensor_source *source,
                            struct reason *reason);

/* Starts the read, whose windows are all made by the pipeline; read_ends() ends it. */
void pipeline_read(struct pipeline *pipeline, struct fstfs_read *read);

#endif
