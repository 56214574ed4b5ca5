/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy thread of a device: copies bytes from filled slots to the memory of the requests. Copies
 * are submitted to one CUDA stream (GPU_CUFILE, GPU_RING), with an event after those of each slot;
 * a slot is reused when its event has completed. If there is no pinned memory or the stream fails,
 * copies are synchronous (GPU_PAGEABLE).
 */
#ifndef FSTFS_CLIENT_GPU_COPIER_H
#define FSTFS_CLIENT_GPU_COPIER_H

#include "base/error.h"
#include "client/gpu/ring.h"

struct copier;

/* Called by the copy thread, without a lock held. */
struct copier_ops {
    /* The slot is done: `copied` bytes have been copied, or its read has failed. */
    void (*done)(void *arg, struct gpu_slot *slot);
    /* The stream failed to copy from this slot in device memory. Its span must be read again, into
     * host memory. */
    void (*retry)(void *arg, struct gpu_slot *slot, const char *why);
    void *arg;
};

/* With the device's context current. Uses the scratch slots of `host`; `device` and `host` must
 * outlive the copier. Disables GPU_RING if no stream can be created. -ENOMEM, -EAGAIN (no thread).
 */
errint_t copier_new(struct fstfs_device *device, const struct gpu_ring *host,
                    const struct copier_ops *ops, struct copier **copier);

/* With the device's context current. Ends the thread when all slots are done. NULL is allowed. */
void copier_free(struct copier *copier);

/* Passes a slot whose read has completed or failed (batch.result) to the copy thread. Any thread.
 */
void copier_add(struct copier *copier, struct gpu_slot *slot);

#endif
