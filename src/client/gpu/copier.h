/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy thread of a device: copies from filled slots to where their bytes go. All copies are in
 * one stream (GPU_CUFILE, GPU_RING), with an event after those of each slot, so a slot is not used
 * again before its copies have been made; or, if pinned memory or the stream fails, made one after
 * another (GPU_PAGEABLE).
 */
#ifndef FSTFS_CLIENT_GPU_COPIER_H
#define FSTFS_CLIENT_GPU_COPIER_H

#include "base/error.h"
#include "client/gpu/ring.h"

struct copier;

/* Called by the copy thread, without a lock held. */
struct copier_ops {
    /* The slot is done: `copied` bytes are there, or its read has failed. */
    void (*done)(void *arg, struct gpu_slot *slot);
    /* The stream cannot copy from this slot in device memory: its span must be read again, into
     * host memory. */
    void (*retry)(void *arg, struct gpu_slot *slot, const char *why);
    void *arg;
};

/* With the device's context current. `host` is the ring whose scratches it uses; both must outlive
 * it. Without a stream it disables GPU_RING. -ENOMEM, -EAGAIN (no thread). */
errint_t copier_new(struct fstfs_device *device, const struct gpu_ring *host,
                    const struct copier_ops *ops, struct copier **copier);

/* With the device's context current. Ends the thread when all slots are done. NULL is allowed. */
void copier_free(struct copier *copier);

/* Passes a slot that was read, or failed (batch.result), to the copy thread. Any thread. */
void copier_add(struct copier *copier, struct gpu_slot *slot);

#endif
