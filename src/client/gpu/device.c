/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/device.h"

#include "client/gpu/pipeline.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding it ---- */

/* N of "cuda:N"; negative: it is none. */
static int
number_of(const char *name)
{
    static const char prefix[] = "cuda:";
    unsigned long number;
    char *end;

    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return -1;
    name += strlen(prefix);
    if (*name < '0' || *name > '9')
        return -1;
    number = strtoul(name, &end, 10);
    return *end || number > INT_MAX ? -1 : (int)number;
}

static errint_t
ask(const struct fstfs_device *device, CUdevice_attribute attribute, bool *yes,
    struct reason *reason)
{
    int value = 0;
    errint_t error =
        CUDA_CALL(&device->cuda, reason, cuDeviceGetAttribute, &value, attribute, device->number);

    *yes = value != 0;
    return error;
}

/* What it can, by its attributes: never by its name. */
static errint_t
learn(struct fstfs_device *device, struct reason *reason)
{
    bool integrated, host_tables, rdma;
    errint_t error = ask(device, CU_DEVICE_ATTRIBUTE_INTEGRATED, &integrated, reason);

    if (!error)
        error = ask(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
                    &host_tables, reason);
    if (!error)
        error = ask(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, &rdma, reason);
    if (error)
        return error;
    device->reads_host_pages = integrated && host_tables;
    if (!integrated)
        ladder_give_up(&device->ladder, LADDER_ALL, RUNG_UNIFIED,
                       "the device has memory of its own");
    else if (!host_tables)
        ladder_give_up(&device->ladder, LADDER_ALL, RUNG_UNIFIED,
                       "the device does not use the host's page tables");
    if (!rdma)
        ladder_give_up(&device->ladder, LADDER_ALL, RUNG_CUFILE,
                       "others cannot write to the device's memory (no GPUDirect RDMA)");
    return 0;
}

static errint_t
open_device(struct fstfs_device *device, int number, struct reason *reason)
{
    int count;
    errint_t error = cuda_load(&device->cuda, reason);

    if (!error)
        error = CUDA_CALL(&device->cuda, reason, cuDeviceGetCount, &count);
    if (error)
        return error;
    if (number >= count)
        return reason_set(reason, -ENODEV, "Device", "the driver has %d device%s", count,
                          count == 1 ? "" : "s");
    error = CUDA_CALL(&device->cuda, reason, cuDeviceGet, &device->number, number);
    if (!error)
        error = learn(device, reason);
    if (!error)
        error = CUDA_CALL(&device->cuda, reason, cuDevicePrimaryCtxRetain, &device->context,
                          device->number);
    return error;
}

static struct fstfs_device *
new_device(struct fstfs *fstfs)
{
    struct fstfs_device *device = calloc(1, sizeof(*device));

    if (!device)
        return NULL;
    device->fstfs = fstfs;
    ladder_init(&device->ladder);
    pthread_mutex_init(&device->lock, NULL);
    return device;
}

static void
free_device(struct fstfs_device *device)
{
    pipeline_free(device->pipeline);
    ladder_free(&device->ladder);
    if (device->context)
        device->cuda.cuDevicePrimaryCtxRelease_v2(device->number);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static struct fstfs_device *
find_device(const struct fstfs *fstfs, int number)
{
    struct fstfs_device *device = atomic_load(&fstfs->devices);

    while (device && device->ordinal != number)
        device = device->next;
    return device;
}

/* With fstfs->loading_lock held. */
static errint_t
add_device(struct fstfs *fstfs, const char *name, int number, struct fstfs_device **out)
{
    struct fstfs_device *device = new_device(fstfs);
    struct reason reason;
    errint_t error;

    if (!device)
        return fail(-ENOMEM, "out of memory");
    device->ordinal = number;
    error = open_device(device, number, &reason);
    if (error) {
        free_device(device);
        return fail(error, "%s: %s", name, reason.text);
    }
    device->next = atomic_load(&fstfs->devices);
    atomic_store(&fstfs->devices, device);
    *out = device;
    return 0;
}

int
fstfs_device(struct fstfs *fstfs, const char *name, struct fstfs_device **device)
{
    int number = number_of(name);
    errint_t error = 0;

    if (number < 0)
        return fail(-EINVAL, "a device is \"cuda:N\", not \"%s\"", name);
    *device = find_device(fstfs, number);
    if (*device)
        return 0;
    pthread_mutex_lock(&fstfs->loading_lock);
    *device = find_device(fstfs, number);
    if (!*device)
        error = add_device(fstfs, name, number, device);
    pthread_mutex_unlock(&fstfs->loading_lock);
    return error;
}

void
devices_free(struct fstfs *fstfs)
{
    struct fstfs_device *next;

    for (struct fstfs_device *device = fstfs->devices; device; device = next) {
        next = device->next;
        free_device(device);
    }
}

/* ---- before a read ---- */

enum memory { MEMORY_ELSEWHERE, MEMORY_HOST, MEMORY_BOTH, MEMORY_DEVICE };

/* Whose memory it is; with the context pushed. What the driver does not know is the host's. */
static enum memory
memory_of(const struct fstfs_device *device, CUdeviceptr address)
{
    const struct cuda *cuda = &device->cuda;
    unsigned type = 0, managed = 0;
    int ordinal = -1;

    if (cuda->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) !=
            CUDA_SUCCESS ||
        type == CU_MEMORYTYPE_HOST)
        return MEMORY_HOST;
    cuda->cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
    if (managed)
        return MEMORY_BOTH;
    cuda->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    return ordinal == device->number ? MEMORY_DEVICE : MEMORY_ELSEWHERE;
}

/* How far copies to the item may be joined with those behind it. */
static void
find_room(const struct fstfs_device *device, struct item *item)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)item->to, base;
    size_t size;

    item->room = item->box.size;
    if (device->cuda.cuMemGetAddressRange_v2(&base, &size, address) == CUDA_SUCCESS &&
        base + size - address > item->room)
        item->room = base + size - address;
}

static errint_t
check_memory(struct fstfs_device *device, struct fstfs_read *read, bool *host)
{
    size_t hosts = 0, devices = 0;

    for (size_t i = 0; i < read->windows.count; i++) {
        struct item *item = &read->windows.items[i];
        enum memory memory = memory_of(device, (CUdeviceptr)(uintptr_t)item->to);

        hosts += memory == MEMORY_HOST;
        devices += memory == MEMORY_DEVICE;
        if (memory == MEMORY_ELSEWHERE || (hosts > 0 && devices > 0) ||
            (memory == MEMORY_HOST && !device->reads_host_pages))
            return fail(-EINVAL, "the memory at %p is not of cuda:%d", (void *)item->to,
                        device->ordinal);
        find_room(device, item);
    }
    *host = device->reads_host_pages && devices == 0;
    return 0;
}

/* With the context pushed. */
static errint_t
find_pipeline(struct fstfs_device *device)
{
    struct pipeline *made;
    errint_t error = 0;

    pthread_mutex_lock(&device->lock);
    if (!atomic_load(&device->pipeline)) {
        error = pipeline_new(device, &made);
        if (!error)
            atomic_store(&device->pipeline, made);
    }
    pthread_mutex_unlock(&device->lock);
    return error < 0 ? fail(error, "cuda:%d: no memory or thread for its ring", device->ordinal)
                     : 0;
}

/* Notes where the read reads from. Items are sorted by their files. */
static errint_t
find_storages(struct fstfs_device *device, const struct fstfs_read *read, bool host)
{
    const struct tensor_source *source = NULL;

    for (size_t i = 0; i < read->windows.count; i++) {
        uint64_t number;

        if (read->windows.items[i].source == source)
            continue;
        source = read->windows.items[i].source;
        number = source->list->extents[0].backing->identity.device;
        if (!ladder_add(&device->ladder, number, source->path))
            return fail(-ENOMEM, "out of memory");
        if (host)
            ladder_used(&device->ladder, number, RUNG_UNIFIED);
        else if (device->reads_host_pages)
            ladder_give_up(&device->ladder, number, RUNG_UNIFIED,
                           "the memory that was given is the device's alone");
    }
    return 0;
}

/* Tells cuFile of the files of the read, where it may be used for them. */
static void
open_files(struct fstfs_device *device, const struct fstfs_read *read)
{
    const struct tensor_source *source = NULL;

    for (size_t i = 0; i < read->windows.count; i++) {
        uint64_t number;
        struct reason reason;
        errint_t error = 0;

        if (read->windows.items[i].source == source)
            continue;
        source = read->windows.items[i].source;
        number = source->list->extents[0].backing->identity.device;
        /* Asked with the lock held: another read may just find that there is no cuFile. */
        pthread_mutex_lock(&device->fstfs->loading_lock);
        if (ladder_may(&device->ladder, number, RUNG_CUFILE))
            error = pipeline_open_file(device->pipeline, read->windows.items[i].source, &reason);
        pthread_mutex_unlock(&device->fstfs->loading_lock);
        /* That a file has changed the ring will say. */
        if (error < 0 && error != -ESTALE)
            ladder_give_up(&device->ladder, number, RUNG_CUFILE, reason.text);
    }
}

errint_t
device_prepare(struct fstfs_device *device, struct fstfs_read *read, bool *host)
{
    struct reason reason;
    CUcontext context;
    errint_t error = CUDA_CALL(&device->cuda, &reason, cuCtxPushCurrent_v2, device->context);

    if (error)
        return fail(error, "cuda:%d: %s", device->ordinal, reason.text);
    error = check_memory(device, read, host);
    if (!error)
        error = find_storages(device, read, *host);
    if (!error && !*host)
        error = find_pipeline(device);
    if (!error && !*host)
        open_files(device, read);
    device->cuda.cuCtxPopCurrent_v2(&context);
    return error;
}

/* ---- status ---- */

static void
device_status(struct fstfs_device *device, struct buffer *out)
{
    const struct pipeline *pipeline = atomic_load(&device->pipeline);
    uint64_t host = 0, own = 0;

    if (pipeline)
        pipeline_memory(pipeline, &host, &own);
    buffer_addf(out,
                "{\"device\":\"cuda:%d\",\"ring_memory\":%llu,\"device_memory\":%llu,"
                "\"storage\":",
                device->ordinal, (unsigned long long)host, (unsigned long long)own);
    ladder_status(&device->ladder, out);
    buffer_add_char(out, '}');
}

void
devices_status(struct fstfs *fstfs, struct buffer *out)
{
    struct fstfs_device *first = atomic_load(&fstfs->devices);

    buffer_add_text(out, "\"devices\":[");
    for (struct fstfs_device *device = first; device; device = device->next) {
        if (device != first)
            buffer_add_char(out, ',');
        device_status(device, out);
    }
    buffer_add_char(out, ']');
}
