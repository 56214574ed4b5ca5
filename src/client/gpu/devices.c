/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/devices.h"

#include "client/error.h"
#include "client/gpu/pipeline.h"
#include "client/read.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

/* N of "cuda:N"; negative: an invalid name. */
static int
device_number(const char *name)
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
device_attribute(const struct fstfs_device *device, CUdevice_attribute attribute, bool *yes,
                 struct reason *reason)
{
    int value = 0;
    errint_t error =
        CUDA_CALL(&device->cuda, reason, cuDeviceGetAttribute, &value, attribute, device->number);

    *yes = value != 0;
    return error;
}

/* Disables the backends that the device's attributes rule out. */
static errint_t
device_read_attributes(struct fstfs_device *device, struct reason *reason)
{
    bool integrated, host_tables, rdma;
    errint_t error = device_attribute(device, CU_DEVICE_ATTRIBUTE_INTEGRATED, &integrated, reason);

    if (!error)
        error = device_attribute(device,
                                 CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
                                 &host_tables, reason);
    if (!error)
        error =
            device_attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, &rdma, reason);
    if (error)
        return error;
    device->reads_host_pages = integrated && host_tables;
    if (!integrated)
        fallback_disable(&device->fallback, ALL_STORAGE, GPU_UNIFIED,
                         "the device has memory of its own");
    else if (!host_tables)
        fallback_disable(&device->fallback, ALL_STORAGE, GPU_UNIFIED,
                         "the device does not use the host's page tables");
    if (!rdma)
        fallback_disable(&device->fallback, ALL_STORAGE, GPU_CUFILE,
                         "other devices cannot write to its memory (no GPUDirect RDMA)");
    return 0;
}

static errint_t
device_open(struct fstfs_device *device, int number, struct reason *reason)
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
        error = device_read_attributes(device, reason);
    if (!error)
        error = CUDA_CALL(&device->cuda, reason, cuDevicePrimaryCtxRetain, &device->context,
                          device->number);
    return error;
}

static struct fstfs_device *
device_new(struct fstfs *fstfs)
{
    struct fstfs_device *device = calloc(1, sizeof(*device));

    if (!device)
        return NULL;
    device->fstfs = fstfs;
    fallback_init(&device->fallback);
    pthread_mutex_init(&device->lock, NULL);
    return device;
}

static void
device_free(struct fstfs_device *device)
{
    pipeline_free(device->pipeline);
    fallback_free(&device->fallback);
    if (device->context)
        device->cuda.cuDevicePrimaryCtxRelease_v2(device->number);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static struct fstfs_device *
device_find(const struct fstfs *fstfs, int number)
{
    struct fstfs_device *device = atomic_load(&fstfs->devices);

    while (device && device->ordinal != number)
        device = device->next;
    return device;
}

/* With fstfs->loading_lock held. Errors with fail(). */
static errint_t
device_add(struct fstfs *fstfs, const char *name, int number, struct fstfs_device **out)
{
    struct fstfs_device *device = device_new(fstfs);
    struct reason reason;
    errint_t error;

    if (!device)
        return fail_no_memory();
    device->ordinal = number;
    error = device_open(device, number, &reason);
    if (error) {
        device_free(device);
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
    int number = device_number(name);
    errint_t error = 0;

    if (number < 0)
        return fail(-EINVAL, "a device is \"cuda:N\", not \"%s\"", name);
    *device = device_find(fstfs, number);
    if (*device)
        return 0;
    pthread_mutex_lock(&fstfs->loading_lock);
    *device = device_find(fstfs, number);
    if (!*device)
        error = device_add(fstfs, name, number, device);
    pthread_mutex_unlock(&fstfs->loading_lock);
    return error;
}

void
devices_free(struct fstfs *fstfs)
{
    struct fstfs_device *next;

    for (struct fstfs_device *device = fstfs->devices; device; device = next) {
        next = device->next;
        device_free(device);
    }
}

/* ---- before a read ---- */

enum memory_kind { MEMORY_ELSEWHERE, MEMORY_HOST, MEMORY_BOTH, MEMORY_DEVICE };

/* With the context current. Memory that the driver does not know is host memory. */
static enum memory_kind
device_memory_kind(const struct fstfs_device *device, CUdeviceptr address)
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

/* Sets `room`: copies may be joined up to the end of the allocation that contains the item. */
static void
item_find_room(const struct fstfs_device *device, struct plan_item *item)
{
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)item->to, base;
    size_t size;

    item->room = item->slice.size;
    if (device->cuda.cuMemGetAddressRange_v2(&base, &size, address) == CUDA_SUCCESS &&
        base + size - address > item->room)
        item->room = base + size - address;
}

static errint_t
device_check_memory(struct fstfs_device *device, struct fstfs_read *read, bool *is_host)
{
    size_t hosts = 0, devices = 0;

    for (size_t i = 0; i < read->plan.count; i++) {
        struct plan_item *item = &read->plan.items[i];
        enum memory_kind memory = device_memory_kind(device, (CUdeviceptr)(uintptr_t)item->to);

        hosts += memory == MEMORY_HOST;
        devices += memory == MEMORY_DEVICE;
        if (memory == MEMORY_ELSEWHERE || (memory == MEMORY_HOST && !device->reads_host_pages))
            return fail(-EINVAL, "the memory at %p is not memory of cuda:%d", (void *)item->to,
                        device->ordinal);
        if (hosts > 0 && devices > 0)
            return fail(-EINVAL,
                        "cuda:%d: a call reads into device memory or host memory, not into both",
                        device->ordinal);
        item_find_room(device, item);
    }
    *is_host = device->reads_host_pages && devices == 0;
    return 0;
}

/* With the context current. */
static errint_t
device_make_pipeline(struct fstfs_device *device)
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
    return error < 0 ? fail(error, "cuda:%d: no memory or no thread for its ring", device->ordinal)
                     : 0;
}

/* Registers the file with cuFile, if that is enabled for its storage. */
static void
device_register_file(struct fstfs_device *device, struct tensor_source *source)
{
    struct reason reason;
    errint_t error = 0;

    /* Checked with the lock held, because another read may be disabling cuFile. */
    pthread_mutex_lock(&device->fstfs->loading_lock);
    if (fallback_is_enabled(&device->fallback, source_storage(source), GPU_CUFILE))
        error = pipeline_open_file(device->pipeline, source, &reason);
    pthread_mutex_unlock(&device->fstfs->loading_lock);
    /* The read itself will report -ESTALE. */
    if (error < 0 && error != -ESTALE)
        fallback_disable(&device->fallback, source_storage(source), GPU_CUFILE, reason.text);
}

/* Records the file systems that the read reads from, and registers its files. */
static errint_t
device_prepare_sources(struct fstfs_device *device, const struct fstfs_read *read, bool is_host)
{
    struct tensor_source *source = NULL;

    for (size_t i = 0; i < read->plan.count; i++) {
        uint64_t number;

        if (read->plan.items[i].source == source)
            continue; /* items are sorted by source */
        source = read->plan.items[i].source;
        number = source_storage(source);
        if (!fallback_add_storage(&device->fallback, number, source->path))
            return fail_no_memory();
        if (is_host)
            fallback_used(&device->fallback, number, GPU_UNIFIED);
        else if (device->reads_host_pages)
            fallback_disable(&device->fallback, number, GPU_UNIFIED,
                             "the destination is device memory");
        if (!is_host)
            device_register_file(device, source);
    }
    return 0;
}

errint_t
device_prepare(struct fstfs_device *device, struct fstfs_read *read, bool *is_host)
{
    struct reason reason;
    CUcontext context;
    errint_t error = CUDA_CALL(&device->cuda, &reason, cuCtxPushCurrent_v2, device->context);

    if (error)
        return fail(error, "cuda:%d: %s", device->ordinal, reason.text);
    error = device_check_memory(device, read, is_host);
    if (!error && !*is_host)
        error = device_make_pipeline(device);
    if (!error)
        error = device_prepare_sources(device, read, *is_host);
    device->cuda.cuCtxPopCurrent_v2(&context);
    return error;
}

/* ---- status ---- */

static void
device_write_status(struct fstfs_device *device, struct buffer *out)
{
    const struct pipeline *pipeline = atomic_load(&device->pipeline);
    uint64_t host = 0, own = 0;

    if (pipeline)
        pipeline_memory(pipeline, &host, &own);
    buffer_addf(out,
                "{\"device\":\"cuda:%d\",\"ring_memory\":%llu,\"device_memory\":%llu,"
                "\"storage\":",
                device->ordinal, (unsigned long long)host, (unsigned long long)own);
    fallback_status(&device->fallback, out);
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
        device_write_status(device, out);
    }
    buffer_add_char(out, ']');
}
