/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads into the memory of one device, with all backends but GPU_UNIFIED. The engine reads a span
 * into a slot of the host ring, or cuFile into a slot of the device ring; then the copy thread
 * copies it to the memory of the requests.
 *
 * Only the copy thread calls the CUDA driver, except when the pipeline is created or freed and when
 * cuFile reads.
 */
#ifndef FSTFS_CLIENT_GPU_PIPELINE_H
#define FSTFS_CLIENT_GPU_PIPELINE_H

#include "client/gpu/device.h"
#include "client/read.h"

struct pipeline;

/* Bytes of a span; 0: chosen by the memory budget. tests/gpu/measure.c sets it before it opens a
 * device. */
extern uint64_t pipeline_span_bytes;

/* -ENOMEM, -EAGAIN (no thread). Disables GPU_RING if memory cannot be pinned. */
errint_t pipeline_new(struct fstfs_device *device, struct pipeline **pipeline);
void pipeline_free(struct pipeline *pipeline); /* NULL is allowed; no read may be in flight */

/* Bytes of its slots in host and device memory. */
void pipeline_memory(const struct pipeline *pipeline, uint64_t *host, uint64_t *device);

/* Registers a file with cuFile, unless it is registered. The first call loads cuFile and allocates
 * the device ring; if that fails, it disables GPU_CUFILE, and the function must not be called
 * again. With fstfs->loading_lock held and the device's context current. */
errint_t pipeline_open_file(struct pipeline *pipeline, struct tensor_source *source,
                            struct reason *reason);

/* Starts the read, whose plan must be sorted; calls read_end() at its end. */
void pipeline_read(struct pipeline *pipeline, struct fstfs_read *read);

#endif
