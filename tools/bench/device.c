/* SPDX-License-Identifier: Apache-2.0 */
/* See device.h. In the child every error is written to the pipe and ends the process. */
#include "device.h"

#include "base/clock.h"
#include "client/gpu/cuda.h"
#include "fstfs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE 4096u
#define ALIGNMENT 512u /* of each tensor, as the driver aligns allocations */
#define COPY_BYTES (16 * MIB) /* large enough to saturate the bus */
#define COPIES 16
#define MANAGED_FOR_ALL 1u /* CU_MEM_ATTACH_GLOBAL */

/* The work of the child. */
struct device_job {
    const struct device_load *load; /* NULL: only describe the device */
    const char *name;
    _Atomic uint64_t *done; /* bytes loaded, for the progress bar; or NULL */
    uint64_t counted; /* in `done` */
    int out;
    struct fstfs *fstfs;
    struct fstfs_device *device;
    CUdevice number;
    struct cuda cuda;
};

/* All non-empty tensors, each with its offset in the memory of the device. */
struct device_tensors {
    struct fstfs_request *requests;
    size_t count;
    size_t room; /* bytes in the device, with alignment */
    uint64_t bytes;
};

/* ---- in the child ---- */

static void
device_require(const struct device_job *job, CUresult result, const char *function)
{
    struct reason reason;

    if (cuda_check(&job->cuda, result, function, &reason))
        child_fail(job->out, 1, "%s: %s", job->name, reason.text);
}

/* Uses libfstfs first, because its errors describe best what is missing. */
static void
open_device(struct device_job *job)
{
    struct fstfs_options options = {.no_source = job->load && job->load->through_mount};
    struct reason reason;
    CUcontext context;

    setenv("CUFILE_LOGFILE_PATH", "/dev/null", 0); /* default: the working directory */
    if (fstfs_new(&options, &job->fstfs) < 0 ||
        fstfs_device(job->fstfs, job->name, &job->device) < 0)
        child_fail(job->out, 1, "%s", fstfs_error());
    if (cuda_load(&job->cuda, &reason))
        child_fail(job->out, 1, "%s: %s", job->name, reason.text);
    device_require(job, job->cuda.cuDeviceGet(&job->number, atoi(strchr(job->name, ':') + 1)),
                   "cuDeviceGet");
    device_require(job, job->cuda.cuDevicePrimaryCtxRetain(&context, job->number),
                   "cuDevicePrimaryCtxRetain");
    device_require(job, job->cuda.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
}

static void __attribute__((noreturn)) device_describe(struct device_job *job)
{
    size_t memory_free, memory;
    char name[128] = "";

    open_device(job);
    device_require(job, job->cuda.cuDeviceGetName(name, sizeof(name), job->number),
                   "cuDeviceGetName");
    device_require(job, job->cuda.cuMemGetInfo_v2(&memory_free, &memory), "cuMemGetInfo");
    dprintf(job->out, "%zu %zu %s\n", memory, memory_free, name);
    _exit(0);
}

static bool
device_has(const struct device_job *job, CUdevice_attribute attribute)
{
    int value = 0;

    device_require(job, job->cuda.cuDeviceGetAttribute(&value, attribute, job->number),
                   "cuDeviceGetAttribute");
    return value;
}

/* Allocates managed memory if the device shares the host's memory, so that the host can read into
 * it. */
static CUdeviceptr
device_allocate(const struct device_job *job, size_t size)
{
    bool shared = device_has(job, CU_DEVICE_ATTRIBUTE_INTEGRATED) &&
                  device_has(job, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
    size_t memory_free = 0, memory = 0;
    CUdeviceptr address;
    struct reason reason;
    CUresult result = shared ? job->cuda.cuMemAllocManaged(&address, size, MANAGED_FOR_ALL)
                             : job->cuda.cuMemAlloc_v2(&address, size);

    if (cuda_check(&job->cuda, result, "memory", &reason) == 0)
        return address;
    job->cuda.cuMemGetInfo_v2(&memory_free, &memory);
    child_fail(job->out, CHILD_UNAVAILABLE,
               "not enough memory on %s: needs %.1f GB, %.1f GB are free", job->name,
               (double)size / 1e9, (double)memory_free / 1e9);
}

static size_t
aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Bytes that all tensors need in the device. */
static size_t
plan_device_room(const struct plan *plan)
{
    size_t room = 0;

    for (size_t i = 0; i < plan->segment_count; i++)
        room += aligned(plan->segments[i].length);
    return room;
}

static struct device_tensors
device_list_tensors(const struct device_job *job, const struct fstfs_checkpoint *checkpoint)
{
    size_t count = fstfs_count(checkpoint);
    struct device_tensors tensors = {.requests = calloc(count + 1, sizeof(*tensors.requests))};

    if (!tensors.requests)
        child_fail(job->out, 1, "no memory");
    for (size_t i = 0; i < count; i++) {
        const struct fstfs_tensor *tensor = fstfs_tensor(checkpoint, i);

        if (tensor->size == 0)
            continue;
        tensors.requests[tensors.count++].tensor = tensor;
        tensors.bytes += tensor->size;
        tensors.room += aligned(tensor->size);
    }
    if (tensors.room != plan_device_room(job->load->plan))
        child_fail(job->out, 1, "libfstfs found other tensors");
    return tensors;
}

static int
device_show_progress(void *arg, uint64_t done, uint64_t total)
{
    struct device_job *job = arg;

    if (job->done)
        atomic_fetch_add(job->done, done - job->counted);
    job->counted = done;
    return 0;
}

/* Returns the duration in seconds. */
static double
device_load_tensors(struct device_job *job, struct device_tensors *tensors, CUdeviceptr memory)
{
    struct fstfs_read_options options = {
        .progress = device_show_progress, .arg = job, .device = job->device};
    struct fstfs_checkpoint *checkpoint;
    double start = monotonic_seconds();

    if (fstfs_open(job->fstfs, job->load->path, &checkpoint) < 0)
        child_fail(job->out, 1, "%s", fstfs_error());
    *tensors = device_list_tensors(job, checkpoint);
    for (size_t i = 0; i < tensors->count; i++) {
        tensors->requests[i].to = (void *)(uintptr_t)memory;
        memory += aligned(tensors->requests[i].tensor->size);
    }
    if (fstfs_read(checkpoint, tensors->requests, tensors->count, &options) < 0)
        child_fail(job->out, 1, "%s", fstfs_error());
    return monotonic_seconds() - start;
}

/* The checksum (struct reader_result) of the tensors in the device. */
static uint64_t
device_sum(const struct device_job *job, const struct device_tensors *tensors)
{
    unsigned char *bytes = malloc(COPY_BYTES);
    uint64_t sum = 0;

    if (!bytes)
        child_fail(job->out, 1, "no memory");
    for (size_t i = 0; i < tensors->count; i++) {
        CUdeviceptr from = (CUdeviceptr)(uintptr_t)tensors->requests[i].to;
        uint64_t size = tensors->requests[i].tensor->size;

        for (uint64_t at = 0; at < size; at += COPY_BYTES) {
            size_t piece = size - at < COPY_BYTES ? (size_t)(size - at) : COPY_BYTES;

            device_require(job, job->cuda.cuMemcpyDtoH_v2(bytes, from + at, piece), "cuMemcpyDtoH");
            for (size_t page = 0; page < piece; page += PAGE)
                sum += bytes[page];
            if (at + piece == size)
                sum += bytes[piece - 1];
        }
    }
    free(bytes);
    return sum;
}

/* Bytes per second, overwriting `to`; 0: pinned memory is unavailable. */
static double
device_time_pinned_copies(const struct device_job *job, CUdeviceptr to, size_t room)
{
    const struct cuda *cuda = &job->cuda;
    size_t size = room < COPY_BYTES ? room : COPY_BYTES;
    CUstream stream;
    struct reason reason;
    void *pinned;
    double start = 0;

    if (CUDA_CALL(cuda, &reason, cuMemHostAlloc, &pinned, size, CU_MEMHOSTALLOC_PORTABLE) ||
        CUDA_CALL(cuda, &reason, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING))
        return 0;
    memset(pinned, 1, size);
    for (int i = 0; i <= COPIES; i++) {
        if (CUDA_CALL(cuda, &reason, cuMemcpyHtoDAsync_v2, to, pinned, size, stream))
            return 0;
        if (i == 0) { /* not timed: the first copy may initialize something */
            device_require(job, cuda->cuStreamSynchronize(stream), "cuStreamSynchronize");
            start = monotonic_seconds();
        }
    }
    device_require(job, cuda->cuStreamSynchronize(stream), "cuStreamSynchronize");
    return (double)size * COPIES / (monotonic_seconds() - start);
}

static void __attribute__((noreturn)) device_load_all(struct device_job *job)
{
    static char status[1 << 16];
    size_t room = plan_device_room(job->load->plan);
    struct device_tensors tensors;
    CUdeviceptr memory;
    double seconds;
    uint64_t sum;
    int length;

    prctl(PR_SET_NAME, "bench-reader");
    open_device(job);
    if (room == 0)
        child_fail(job->out, CHILD_UNAVAILABLE, "the model has no bytes");
    memory = device_allocate(job, room);
    seconds = device_load_tensors(job, &tensors, memory);
    length = fstfs_status(job->fstfs, status, sizeof(status));
    sum = device_sum(job, &tensors);
    dprintf(job->out, "%.9f %" PRIu64 " %" PRIu64 " %.0f\n%s\n", seconds, tensors.bytes, sum,
            device_time_pinned_copies(job, memory, room),
            length > 0 && (size_t)length < sizeof(status) ? status : "");
    _exit(0); /* the driver frees everything */
}

static void __attribute__((noreturn)) device_process(void *arg, unsigned number, int out)
{
    struct device_job *job = arg;

    (void)number;
    job->out = out;
    if (job->load)
        device_load_all(job);
    device_describe(job);
}

/* ---- in the parent ---- */

errint_t
device_find(const char *name, struct device *device, struct reason *reason)
{
    struct device_job job = {.name = name};
    struct buffer output = BUFFER_INIT;
    struct progress progress = {0};
    uint64_t memory;
    errint_t error = children_run(1, device_process, &job, &progress, &output, &memory, reason);

    *device = (struct device){0};
    snprintf(device->name, sizeof(device->name), "%s", name);
    if (!error &&
        (!output.data || sscanf(output.data, "%" SCNu64 " %" SCNu64 " %127[^\n]", &device->memory,
                                &device->free_memory, device->model) != 3))
        error = reason_set(reason, -EIO, "Device", "%s: no answer from the driver", name);
    buffer_free(&output);
    return error;
}

/* Parses four numbers, followed by the status of libfstfs. */
static errint_t
device_parse_output(const char *text, struct reader_result *result, struct device_report *report,
                    struct reason *reason)
{
    cJSON *status, *devices;
    int length = 0;

    if (!text || sscanf(text, "%lf %" SCNu64 " %" SCNu64 " %lf %n", &result->seconds,
                        &result->bytes, &result->sum, &report->pinned, &length) != 4)
        return reason_set(reason, -EIO, "Device", "no output from the child process");
    status = cJSON_Parse(text + length); /* NULL also if a path is not UTF-8 */
    devices = cJSON_GetObjectItem(status, "devices");
    report->storage = cJSON_DetachItemFromObject(cJSON_GetArrayItem(devices, 0), "storage");
    cJSON_Delete(status);
    return 0;
}

errint_t
device_run(const struct device_load *load, struct progress *progress, struct reader_result *result,
           struct device_report *report, struct reason *reason)
{
    struct device_job job = {.load = load, .name = load->device, .done = progress->running};
    struct buffer output = BUFFER_INIT;
    errint_t error =
        children_run(1, device_process, &job, progress, &output, &result->memory, reason);

    *report = (struct device_report){0};
    if (!error)
        error = device_parse_output(output.data, result, report, reason);
    buffer_free(&output);
    return error;
}
