/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See device.h. The child writes what it found to the pipe; what goes wrong in it is
 * written there too and ends it, as in readers.c.
 */
#include "device.h"

#include "base/clock.h"
#include "client/gpu/cuda.h"
#include "fstfs.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE 4096u
#define ALIGNMENT 512u /* of each tensor, as memory of the driver's is aligned */
#define COPY (16 * MIB) /* what fills the bus */
#define COPIES 16
#define MANAGED_FOR_ALL 1u /* CU_MEM_ATTACH_GLOBAL */

/* What the child works on. */
struct job {
    const struct device_load *load; /* NULL: it only looks */
    const char *name;
    _Atomic uint64_t *done;
    uint64_t counted; /* in `done` */
    int out;
    struct fstfs *fstfs;
    struct fstfs_device *device;
    CUdevice number;
    struct cuda cuda;
    /* What libfstfs has no use for. */
    CUresult (*cuDeviceGetName)(char *, int, CUdevice);
    CUresult (*cuMemGetInfo)(size_t *, size_t *);
    CUresult (*cuMemAllocManaged)(CUdeviceptr *, size_t, unsigned);
    CUresult (*cuMemcpyDtoH)(void *, CUdeviceptr, size_t);
};

/* All tensors that have bytes, each with its place in the device's memory. */
struct tensors {
    struct fstfs_request *requests;
    size_t count, room; /* that they take there */
    uint64_t bytes;
};

/* ---- in the child ---- */

static void __attribute__((noreturn, format(printf, 3, 4)))
die(const struct job *job, int status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vdprintf(job->out, format, args);
    va_end(args);
    _exit(status);
}

static void
must(const struct job *job, CUresult result, const char *function)
{
    struct reason reason;

    if (cuda_check(&job->cuda, result, function, &reason))
        die(job, 1, "%s: %s", job->name, reason.text);
}

static void *
find(const struct job *job, void *library, const char *function)
{
    void *found = library ? dlsym(library, function) : NULL;

    if (!found)
        die(job, 1, "%s: the CUDA driver has no %s", job->name, function);
    return found;
}

/* libfstfs first: it says best what is missing. */
static void
open_device(struct job *job)
{
    struct fstfs_options options = {.no_source = job->load && job->load->through_mount};
    struct reason reason;
    CUcontext context;
    void *library;

    setenv("CUFILE_LOGFILE_PATH", "/dev/null", 0); /* else it is in the working directory */
    if (fstfs_new(&options, &job->fstfs) < 0 ||
        fstfs_device(job->fstfs, job->name, &job->device) < 0)
        die(job, 1, "%s", fstfs_error());
    if (cuda_load(&job->cuda, &reason))
        die(job, 1, "%s: %s", job->name, reason.text);
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *(void **)&job->cuDeviceGetName = find(job, library, "cuDeviceGetName");
    *(void **)&job->cuMemGetInfo = find(job, library, "cuMemGetInfo_v2");
    *(void **)&job->cuMemAllocManaged = find(job, library, "cuMemAllocManaged");
    *(void **)&job->cuMemcpyDtoH = find(job, library, "cuMemcpyDtoH_v2");
    must(job, job->cuda.cuDeviceGet(&job->number, atoi(strchr(job->name, ':') + 1)), "cuDeviceGet");
    must(job, job->cuda.cuDevicePrimaryCtxRetain(&context, job->number),
         "cuDevicePrimaryCtxRetain");
    must(job, job->cuda.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
}

static void __attribute__((noreturn)) look(struct job *job)
{
    size_t memory_free, memory;
    char name[128] = "";

    open_device(job);
    must(job, job->cuDeviceGetName(name, sizeof(name), job->number), "cuDeviceGetName");
    must(job, job->cuMemGetInfo(&memory_free, &memory), "cuMemGetInfo");
    dprintf(job->out, "%zu %zu %s\n", memory, memory_free, name);
    _exit(0);
}

static bool
has(const struct job *job, CUdevice_attribute attribute)
{
    int value = 0;

    must(job, job->cuda.cuDeviceGetAttribute(&value, attribute, job->number),
         "cuDeviceGetAttribute");
    return value;
}

/* Managed memory where the device shares the host's: it can be read into as such. */
static CUdeviceptr
allocate(const struct job *job, size_t size)
{
    bool shared = has(job, CU_DEVICE_ATTRIBUTE_INTEGRATED) &&
                  has(job, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
    size_t memory_free = 0, memory = 0;
    CUdeviceptr address;
    struct reason reason;
    CUresult result = shared ? job->cuMemAllocManaged(&address, size, MANAGED_FOR_ALL)
                             : job->cuda.cuMemAlloc_v2(&address, size);

    if (cuda_check(&job->cuda, result, "memory", &reason) == 0)
        return address;
    job->cuMemGetInfo(&memory_free, &memory);
    die(job, CHILD_UNAVAILABLE, "too little memory on %s: it wants %.1f GB, and %.1f GB are free",
        job->name, (double)size / 1e9, (double)memory_free / 1e9);
}

static size_t
aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* What all tensors take in the device. */
static size_t
room_of(const struct plan *plan)
{
    size_t room = 0;

    for (size_t i = 0; i < plan->segment_count; i++)
        room += aligned(plan->segments[i].length);
    return room;
}

static struct tensors
list_tensors(const struct job *job, const struct fstfs_checkpoint *checkpoint)
{
    size_t count = fstfs_count(checkpoint);
    struct tensors tensors = {.requests = calloc(count + 1, sizeof(*tensors.requests))};

    if (!tensors.requests)
        die(job, 1, "no memory");
    for (size_t i = 0; i < count; i++) {
        const struct fstfs_tensor *tensor = fstfs_tensor(checkpoint, i);

        if (tensor->size == 0)
            continue;
        tensors.requests[tensors.count++].tensor = tensor;
        tensors.bytes += tensor->size;
        tensors.room += aligned(tensor->size);
    }
    if (tensors.room != room_of(job->load->plan))
        die(job, 1, "libfstfs finds other tensors");
    return tensors;
}

static int
show_progress(void *arg, uint64_t done, uint64_t total)
{
    struct job *job = arg;

    if (job->done)
        atomic_fetch_add(job->done, done - job->counted);
    job->counted = done;
    return 0;
}

/* Gives the seconds. */
static double
load_tensors(struct job *job, struct tensors *tensors, CUdeviceptr memory)
{
    struct fstfs_read_options options = {
        .progress = show_progress, .arg = job, .device = job->device};
    struct fstfs_checkpoint *checkpoint;
    double start = monotonic_seconds();

    if (fstfs_open(job->fstfs, job->load->path, &checkpoint) < 0)
        die(job, 1, "%s", fstfs_error());
    *tensors = list_tensors(job, checkpoint);
    for (size_t i = 0; i < tensors->count; i++) {
        tensors->requests[i].to = (void *)(uintptr_t)memory;
        memory += aligned(tensors->requests[i].tensor->size);
    }
    if (fstfs_read(checkpoint, tensors->requests, tensors->count, &options) < 0)
        die(job, 1, "%s", fstfs_error());
    return monotonic_seconds() - start;
}

/* As struct reader_result says, of the tensors in the device. */
static uint64_t
sum_of(const struct job *job, const struct tensors *tensors)
{
    unsigned char *bytes = malloc(COPY);
    uint64_t sum = 0;

    if (!bytes)
        die(job, 1, "no memory");
    for (size_t i = 0; i < tensors->count; i++) {
        CUdeviceptr from = (CUdeviceptr)(uintptr_t)tensors->requests[i].to;
        uint64_t size = tensors->requests[i].tensor->size;

        for (uint64_t at = 0; at < size; at += COPY) {
            size_t piece = size - at < COPY ? (size_t)(size - at) : COPY;

            must(job, job->cuMemcpyDtoH(bytes, from + at, piece), "cuMemcpyDtoH");
            for (size_t page = 0; page < piece; page += PAGE)
                sum += bytes[page];
            if (at + piece == size)
                sum += bytes[piece - 1];
        }
    }
    free(bytes);
    return sum;
}

/* Bytes in a second, into memory that nobody needs any more; 0: it cannot be done here. */
static double
copy_pinned(const struct job *job, CUdeviceptr to, size_t room)
{
    const struct cuda *cuda = &job->cuda;
    size_t size = room < COPY ? room : COPY;
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
        if (i == 0) { /* the first one is not timed: it may have to begin something */
            must(job, cuda->cuStreamSynchronize(stream), "cuStreamSynchronize");
            start = monotonic_seconds();
        }
    }
    must(job, cuda->cuStreamSynchronize(stream), "cuStreamSynchronize");
    return (double)size * COPIES / (monotonic_seconds() - start);
}

static void __attribute__((noreturn)) load_all(struct job *job)
{
    static char status[1 << 16];
    size_t room = room_of(job->load->plan);
    struct tensors tensors;
    CUdeviceptr memory;
    double seconds;
    uint64_t sum;
    int length;

    prctl(PR_SET_NAME, "bench-reader");
    open_device(job);
    if (room == 0)
        die(job, CHILD_UNAVAILABLE, "it has no bytes");
    memory = allocate(job, room);
    seconds = load_tensors(job, &tensors, memory);
    length = fstfs_status(job->fstfs, status, sizeof(status));
    sum = sum_of(job, &tensors);
    dprintf(job->out, "%.9f %" PRIu64 " %" PRIu64 " %.0f\n%s\n", seconds, tensors.bytes, sum,
            copy_pinned(job, memory, room),
            length > 0 && (size_t)length < sizeof(status) ? status : "");
    _exit(0); /* without giving anything back: the driver does, at once */
}

/* ---- in the bench ---- */

static errint_t
run(struct job *job, const struct watch *watch, struct buffer *said, uint64_t *memory,
    struct reason *reason)
{
    pid_t parent = getpid(), child;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return reason_set(reason, -errno, "Pipe", "pipe: %s", strerror(errno));
    job->out = ends[1];
    child = fork();
    if (child == 0) {
        child_begin(parent);
        if (job->load)
            load_all(job);
        look(job);
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return reason_set(reason, -EAGAIN, "Fork", "fork failed");
    }
    return child_wait(&child, 1, ends[0], watch, said, memory, reason);
}

errint_t
device_look(const char *name, struct device *device, const struct watch *watch,
            struct reason *reason)
{
    struct job job = {.name = name};
    struct buffer said = BUFFER_INIT;
    uint64_t memory;
    errint_t error = run(&job, watch, &said, &memory, reason);

    *device = (struct device){0};
    snprintf(device->name, sizeof(device->name), "%s", name);
    if (!error && (!said.data || sscanf(said.data, "%" SCNu64 " %" SCNu64 " %127[^\n]",
                                        &device->memory, &device->free_memory, device->model) != 3))
        error = reason_set(reason, -EIO, "Device", "%s: the driver says nothing of it", name);
    buffer_free(&said);
    return error;
}

/* The numbers, and behind them the status. */
static errint_t
read_answer(const char *answer, struct reader_result *result, struct device_report *report,
            struct reason *reason)
{
    cJSON *status, *devices;
    int length = 0;

    if (!answer || sscanf(answer, "%lf %" SCNu64 " %" SCNu64 " %lf %n", &result->seconds,
                          &result->bytes, &result->sum, &report->pinned, &length) != 4)
        return reason_set(reason, -EIO, "Device", "it gave no answer");
    status = cJSON_Parse(answer + length); /* NULL too where a path is not UTF-8 */
    devices = cJSON_GetObjectItem(status, "devices");
    report->storage = cJSON_DetachItemFromObject(cJSON_GetArrayItem(devices, 0), "storage");
    cJSON_Delete(status);
    return 0;
}

errint_t
device_run(const struct device_load *load, const struct watch *watch, _Atomic uint64_t *done,
           struct reader_result *result, struct device_report *report, struct reason *reason)
{
    struct job job = {.load = load, .name = load->device, .done = done};
    struct buffer said = BUFFER_INIT;
    errint_t error = run(&job, watch, &said, &result->memory, reason);

    *report = (struct device_report){0};
    if (!error)
        error = read_answer(said.data, result, report, reason);
    buffer_free(&said);
    return error;
}
