/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads into the memory of one device, by all backends but GPU_UNIFIED. A span of a read is brought
 * into a slot, by the engine's storage (host ring) or by cuFile (device ring), and the copy thread
 * copies it to where its bytes go.
 *
 * The copy thread makes all calls to the driver, except for those that make and free the pipeline
 * and those of cuFile.
 */
#ifndef FSTFS_CLIENT_GPU_PIPELINE_H
#define FSTFS_CLIENT_GPU_PIPELINE_H

#include "client/gpu/device.h"
#include "client/read.h"

struct pipeline;

/* Bytes of a span; 0: by the memory budget. For tests/gpu/measure.c, before a device is opened. */
extern uint64_t pipeline_span_bytes;

/* -ENOMEM, -EAGAIN (no thread). Without pinned memory it disables GPU_RING. */
errint_t pipeline_new(struct fstfs_device *device, struct pipeline **pipeline);
void pipeline_free(struct pipeline *pipeline); /* NULL is allowed; no read may be in flight */

/* Bytes of its slots. */
void pipeline_memory(const struct pipeline *pipeline, uint64_t *host, uint64_t *device);

/* Registers a file with cuFile, once. The first call loads cuFile and makes the device ring; if
 * that fails it disables GPU_CUFILE, and must not be called again. With fstfs->loading_lock held
 * and the device's context current. */
errint_t pipeline_open_file(struct pipeline *pipeline, struct tensor_source *source,
                            struct reason *reason);

/* Starts the read, whose plan is sorted; read_end() ends it. */
void pipeline_read(struct pipeline *pipeline, struct fstfs_read *read);

#endif
