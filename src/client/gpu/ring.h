/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rings of slots that spans are read into before they are copied: one in host memory, pinned if
 * possible, and one in device memory for cuFile. All functions need the device's context current.
 */
#ifndef FSTFS_CLIENT_GPU_RING_H
#define FSTFS_CLIENT_GPU_RING_H

#include "base/error.h"
#include "client/gpu/cufile.h"
#include "client/gpu/device.h"
#include "client/read.h"
#include "io/batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RING_SLOTS_LEAST = 2,
    RING_SLOTS_MOST = 16,
    RING_SCRATCHES = 2, /* additional slots of the host ring, for packing strided slices */
    RING_DEVICE_SLOTS = 8, /* each has a thread that waits for cuFile */
};

struct gpu_ring {
    struct fstfs_device *device;
    bool in_device;
    unsigned count; /* slots, without the scratch slots, which follow them */
    uint64_t slot_bytes;
    uintptr_t memory; /* of the first slot; slots are aligned to BLOCK_SIZE */
    CUevent events[RING_SLOTS_MOST + RING_SCRATCHES]; /* one for each slot */
    size_t mapped; /* bytes of host memory from mmap(); 0: `allocated` is used */
    bool is_registered; /* with the driver, or with cuFile */
    void *allocated; /* host memory from the driver */
    CUdeviceptr device_allocated; /* device memory, not aligned; 0: none */
    const struct cufile *cufile; /* device ring only */
};

/* A span of a read in a slot of a ring. */
struct gpu_slot {
    struct batch_read batch; /* first; its index is that of the slot */
    struct job job; /* device ring: reads the span with cuFile */
    struct gpu_ring *ring;
    struct fstfs_read *read;
    struct span span;
    uint64_t copied; /* bytes of its copies */
};

static inline uintptr_t
gpu_ring_memory(const struct gpu_ring *ring, unsigned index)
{
    return ring->memory + index * ring->slot_bytes;
}

static inline uintptr_t
slot_memory(const struct gpu_slot *slot)
{
    return gpu_ring_memory(slot->ring, slot->batch.index);
}

static inline CUevent
slot_event(const struct gpu_slot *slot)
{
    return slot->ring->events[slot->batch.index];
}

/* `memory`: limit for the bytes of the slots without the scratch slots; there are at least
 * RING_SLOTS_LEAST. -ENOMEM. If memory cannot be pinned or events cannot be created, disables
 * GPU_RING. */
errint_t gpu_ring_make_host(struct gpu_ring *ring, struct fstfs_device *device, uint64_t span_bytes,
                            uint64_t memory);

/* Allocates the ring and registers it with cuFile. The caller calls gpu_ring_free(), also after an
 * error. */
errint_t gpu_ring_make_device(struct gpu_ring *ring, struct fstfs_device *device,
                              uint64_t span_bytes, const struct cufile *cufile,
                              struct reason *reason);

/* Bytes of all slots. */
uint64_t gpu_ring_bytes(const struct gpu_ring *ring);

void gpu_ring_free(struct gpu_ring *ring); /* all zero is allowed */

#endif
