/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define SLOT_SLACK (64ul << 10) /* for SPAN_SLACK, and for the partial blocks at both ends */
#define DEVICE_ALIGNMENT (64ul << 10) /* cuFile requires 4096; the device's pages may be larger */

uint64_t
gpu_ring_bytes(const struct gpu_ring *ring)
{
    return (ring->count + (ring->in_device ? 0 : RING_SCRATCHES)) * ring->slot_bytes;
}

static errint_t
ring_make_events(struct gpu_ring *ring, unsigned count, struct reason *reason)
{
    errint_t error = 0;

    for (unsigned i = 0; i < count && !error; i++)
        error = CUDA_CALL(&ring->device->cuda, reason, cuEventCreate, &ring->events[i],
                          CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
    return error;
}

/* Registering huge pages from mmap() takes half the time of cuMemHostAlloc(). memset() makes the
 * pages present, because the driver would fault them in one by one. Child processes never use the
 * ring (MADV_DONTFORK). */
static errint_t
ring_allocate(struct gpu_ring *ring)
{
    const struct cuda *cuda = &ring->device->cuda;
    struct reason reason, first;
    size_t size = gpu_ring_bytes(ring);
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return -ENOMEM;
    madvise(memory, size, MADV_HUGEPAGE);
    madvise(memory, size, MADV_DONTDUMP);
    madvise(memory, size, MADV_DONTFORK);
    memset(memory, 0, size);
    ring->memory = (uintptr_t)memory;
    ring->mapped = size;
    ring->is_registered = CUDA_CALL(cuda, &first, cuMemHostRegister_v2, memory, size,
                                    CU_MEMHOSTREGISTER_PORTABLE) == 0;
    if (ring->is_registered)
        return 0;
    if (CUDA_CALL(cuda, &reason, cuMemHostAlloc, &ring->allocated, size + BLOCK_SIZE,
                  CU_MEMHOSTALLOC_PORTABLE) < 0) {
        ring->allocated = NULL;
        fallback_disable(&ring->device->fallback, ALL_STORAGE, GPU_RING, first.text);
        return 0;
    }
    munmap(memory, size);
    ring->mapped = 0;
    ring->memory = block_up((uintptr_t)ring->allocated);
    return 0;
}

errint_t
gpu_ring_make_host(struct gpu_ring *ring, struct fstfs_device *device, uint64_t span_bytes,
                   uint64_t memory)
{
    struct reason reason;
    uint64_t count;
    errint_t error;

    ring->device = device;
    ring->slot_bytes = span_bytes + SLOT_SLACK;
    count = memory / ring->slot_bytes;
    ring->count = count > RING_SLOTS_MOST    ? RING_SLOTS_MOST
                  : count < RING_SLOTS_LEAST ? RING_SLOTS_LEAST
                                             : (unsigned)count;
    error = ring_allocate(ring);
    if (!error && ring_make_events(ring, ring->count + RING_SCRATCHES, &reason) < 0)
        fallback_disable(&device->fallback, ALL_STORAGE, GPU_RING, reason.text);
    return error;
}

errint_t
gpu_ring_make_device(struct gpu_ring *ring, struct fstfs_device *device, uint64_t span_bytes,
                     const struct cufile *cufile, struct reason *reason)
{
    errint_t error;

    ring->device = device;
    ring->in_device = true;
    ring->cufile = cufile;
    ring->count = RING_DEVICE_SLOTS;
    ring->slot_bytes = span_bytes + SLOT_SLACK;
    error = CUDA_CALL(&device->cuda, reason, cuMemAlloc_v2, &ring->device_allocated,
                      gpu_ring_bytes(ring) + DEVICE_ALIGNMENT);
    if (error) {
        ring->device_allocated = 0;
        return error;
    }
    ring->memory =
        (ring->device_allocated + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    error = ring_make_events(ring, ring->count, reason);
    if (!error)
        error = cufile_check(
            cufile->cuFileBufRegister((const void *)ring->memory, gpu_ring_bytes(ring), 0),
            "cuFileBufRegister", reason);
    ring->is_registered = !error;
    return error;
}

void
gpu_ring_free(struct gpu_ring *ring)
{
    const struct cuda *cuda;

    if (!ring->device)
        return; /* never made */
    cuda = &ring->device->cuda;
    if (ring->is_registered && ring->in_device)
        ring->cufile->cuFileBufDeregister((const void *)ring->memory);
    for (size_t i = 0; i < sizeof(ring->events) / sizeof(*ring->events); i++)
        if (ring->events[i])
            cuda->cuEventDestroy_v2(ring->events[i]);
    if (ring->device_allocated)
        cuda->cuMemFree_v2(ring->device_allocated);
    if (ring->is_registered && !ring->in_device)
        cuda->cuMemHostUnregister((void *)ring->memory);
    if (ring->allocated)
        cuda->cuMemFreeHost(ring->allocated);
    if (ring->mapped > 0)
        munmap((void *)ring->memory, ring->mapped);
    *ring = (struct gpu_ring){0};
}
