/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The double of libcuda.so.1.
 *
 * Device memory has addresses that fault when the CPU accesses them; the double itself accesses it
 * through another mapping. Operations of a stream are executed as late as possible: when something
 * waits for them. So a buffer that is reused too early is always detected: its bytes have changed
 * since the operation was submitted. A copy from memory that is not pinned is executed late, too,
 * although its call has returned, as the driver may do. Handles are checked against the thread's
 * current context.
 */
#include "client/gpu/cuda.h"

#include "calls.h"
#include "cuda_types.h"
#include "double.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct profile *profile = &profiles[0];
static int started;
static struct CUctx_st contexts[DEVICES] = {{.device = 0}, {.device = 1}};
static struct CUstream_st defaults[DEVICES]; /* the NULL stream of each device */
static struct range ranges[MOST_RANGES];
static unsigned range_count, handles;
static __thread CUcontext current[MOST_NESTED + 1];
static __thread unsigned nested;

/* Every function of the driver begins with ENTER() and ends with leave(). */
#define ENTER()                                                                                    \
    pthread_mutex_lock(&lock);                                                                     \
    int injected = count_call(__func__);                                                           \
    if (injected)                                                                                  \
        return leave((CUresult)injected);                                                          \
    if (!started)                                                                                  \
    return leave((CUresult)NOT_INITIALIZED)

#define ENTER_WITH_CONTEXT()                                                                       \
    ENTER();                                                                                       \
    CUcontext context = current[nested];                                                           \
    if (!context)                                                                                  \
    return leave((CUresult)INVALID_CONTEXT)

static CUresult
leave(CUresult result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

static struct range *
find_range(uintptr_t address, size_t size)
{
    for (unsigned i = 0; i < range_count; i++)
        if (address >= ranges[i].start && address < ranges[i].start + ranges[i].size)
            return address + size <= ranges[i].start + ranges[i].size ? &ranges[i] : NULL;
    return NULL;
}

static void
add_range(enum kind kind, int device, uintptr_t start, size_t size)
{
    if (range_count == MOST_RANGES)
        misuse("too many allocations for the double");
    ranges[range_count++] = (struct range){kind, device, start, size};
}

static CUresult
take_range(enum kind kind, uintptr_t start, struct range *taken)
{
    for (unsigned i = 0; i < range_count; i++) {
        if (ranges[i].start != start || ranges[i].kind != kind)
            continue;
        *taken = ranges[i];
        ranges[i] = ranges[--range_count];
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* The address at which the double accesses memory that copies of this context may use. */
static char *
reach(CUdeviceptr address, size_t size)
{
    const struct range *range = find_range((uintptr_t)address, size);

    if (!range || (range->kind != DEVICE && range->kind != MANAGED))
        return NULL;
    if (range->kind == MANAGED)
        return (char *)(uintptr_t)address;
    return contexts[range->device].reached +
           ((uintptr_t)address - (uintptr_t)contexts[range->device].shown);
}

static uint64_t
sum_of(const char *bytes, size_t size)
{
    uint64_t sum = size, word;

    for (; size >= sizeof(word); bytes += sizeof(word), size -= sizeof(word)) {
        memcpy(&word, bytes, sizeof(word));
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 29;
    }
    for (; size > 0; bytes++, size--)
        sum = (sum ^ (unsigned char)*bytes) * 0x9e3779b97f4a7c15u;
    return sum;
}

static void
run_operation(const struct operation *operation)
{
    if (operation->event) {
        operation->event->stream = NULL;
        return;
    }
    if (sum_of(operation->from, operation->size) != operation->sum)
        misuse("the source of a copy was changed before the copy was made");
    memcpy(operation->to, operation->from, operation->size);
    free(operation->staged);
}

/* Executes the stream up to the record of `event`; NULL: all of it. */
static void
run_stream(CUstream stream, const struct CUevent_st *event)
{
    struct operation *operation;

    while ((operation = stream->first) && !(event && !event->stream)) {
        stream->first = operation->next;
        if (!stream->first)
            stream->last = &stream->first;
        run_operation(operation);
        free(operation);
    }
}

static CUresult
give(CUstream stream, struct operation operation)
{
    struct operation *given = malloc(sizeof(*given));

    if (!given)
        return (CUresult)OUT_OF_MEMORY;
    *given = operation;
    given->next = NULL;
    *stream->last = given;
    stream->last = &given->next;
    return CUDA_SUCCESS;
}

static void
map_arena(struct CUctx_st *context)
{
    int fd = memfd_create("double", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, ARENA) < 0)
        misuse("no memory for a device");
    context->shown = mmap(NULL, ARENA, PROT_NONE, MAP_SHARED, fd, 0);
    context->reached = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (context->shown == MAP_FAILED || context->reached == MAP_FAILED)
        misuse("no memory for a device");
}

/* ---- for tests ---- */

void
double_cuda_reset(const char *name)
{
    if (double_cuda_left() > 0)
        misuse("something of the double is still in use");
    pthread_mutex_lock(&lock);
    for (profile = profiles; strcmp(profile->name, name) != 0; profile++)
        if (profile == &profiles[sizeof(profiles) / sizeof(*profiles) - 1])
            misuse("no such profile");
    memset(call_counts, 0, sizeof(call_counts));
    started = 0;
    for (int i = 0; i < DEVICES; i++) {
        if (contexts[i].shown) {
            munmap(contexts[i].shown, ARENA);
            munmap(contexts[i].reached, ARENA);
        }
        contexts[i] = (struct CUctx_st){.device = i};
        defaults[i] = (struct CUstream_st){&contexts[i], NULL, &defaults[i].first};
    }
    pthread_mutex_unlock(&lock);
}

unsigned
double_cuda_left(void)
{
    unsigned left;

    pthread_mutex_lock(&lock);
    left = range_count + handles;
    for (int i = 0; i < DEVICES; i++)
        left += contexts[i].retained + (defaults[i].first != NULL);
    pthread_mutex_unlock(&lock);
    return left;
}

/* Configures the double by environment variables, for programs that do not call it:
 * DOUBLE_CUDA_PROFILE is a profile; DOUBLE_CUDA_FAIL lists, with commas, functions that always
 * fail. */
static void __attribute__((constructor)) begin(void)
{
    const char *name = getenv("DOUBLE_CUDA_PROFILE"), *failing = getenv("DOUBLE_CUDA_FAIL");
    static char functions[200]; /* static: the double keeps pointers to the names */

    if (name)
        double_cuda_reset(name);
    snprintf(functions, sizeof(functions), "%s", failing ? failing : "");
    for (char *one = strtok(functions, ","); one; one = strtok(NULL, ","))
        fail_call(one, 0, OUT_OF_MEMORY);
}

void
double_cuda_fail(const char *function, unsigned call, int error)
{
    pthread_mutex_lock(&lock);
    fail_call(function, call, error);
    pthread_mutex_unlock(&lock);
}

unsigned
double_cuda_calls(const char *function)
{
    unsigned calls;

    pthread_mutex_lock(&lock);
    calls = calls_of(function)->calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

char *
double_cuda_memory(unsigned long long address, size_t size)
{
    const struct range *range;
    char *memory;

    pthread_mutex_lock(&lock);
    range = find_range((uintptr_t)address, size);
    memory = range && range->kind == DEVICE ? reach(address, size) : NULL;
    pthread_mutex_unlock(&lock);
    return memory;
}

/* ---- devices and contexts ---- */

CUresult
cuInit(unsigned int flags)
{
    pthread_mutex_lock(&lock);
    int injected = count_call(__func__);

    if (injected)
        return leave((CUresult)injected);
    if (flags != 0)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (profile->devices == 0)
        return leave((CUresult)NO_DEVICE);
    for (int i = 0; i < profile->devices; i++)
        if (!contexts[i].shown)
            map_arena(&contexts[i]);
    started = 1;
    return leave(CUDA_SUCCESS);
}

CUresult
cuGetErrorName(CUresult error, const char **name)
{
    switch ((int)error) {
    case CUDA_ERROR_INVALID_VALUE:
        *name = "CUDA_ERROR_INVALID_VALUE";
        return CUDA_SUCCESS;
    case OUT_OF_MEMORY:
        *name = "CUDA_ERROR_OUT_OF_MEMORY";
        return CUDA_SUCCESS;
    case NO_DEVICE:
        *name = "CUDA_ERROR_NO_DEVICE";
        return CUDA_SUCCESS;
    default:
        *name = NULL;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult
cuDeviceGetCount(int *count)
{
    ENTER();
    *count = profile->devices;
    return leave(CUDA_SUCCESS);
}

CUresult
cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER();
    if (ordinal < 0 || ordinal >= profile->devices)
        return leave((CUresult)INVALID_DEVICE);
    *device = ordinal;
    return leave(CUDA_SUCCESS);
}

CUresult
cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER();
    if (device < 0 || device >= profile->devices)
        return leave((CUresult)INVALID_DEVICE);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
        *value = profile->integrated;
        break;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
        *value = profile->host_tables;
        break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        *value = profile->rdma;
        break;
    default:
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}

CUresult
cuDeviceGetName(char *name, int length, CUdevice device)
{
    ENTER();
    if (device < 0 || device >= profile->devices)
        return leave((CUresult)INVALID_DEVICE);
    snprintf(name, (size_t)length, "a double of %s", profile->name);
    return leave(CUDA_SUCCESS);
}

CUresult
cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER();
    if (device < 0 || device >= profile->devices)
        return leave((CUresult)INVALID_DEVICE);
    contexts[device].retained++;
    *context = &contexts[device];
    return leave(CUDA_SUCCESS);
}

CUresult
cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER();
    if (contexts[device].retained-- == 0)
        misuse("a context was released once too often");
    return leave(CUDA_SUCCESS);
}

CUresult
cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER();
    if (!context || context->retained == 0)
        return leave((CUresult)INVALID_CONTEXT);
    if (nested == MOST_NESTED)
        misuse("contexts were pushed and not popped");
    current[++nested] = context;
    return leave(CUDA_SUCCESS);
}

CUresult
cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER();
    if (nested == 0)
        return leave((CUresult)INVALID_CONTEXT);
    *context = current[nested--];
    return leave(CUDA_SUCCESS);
}

CUresult
cuCtxGetCurrent(CUcontext *context)
{
    ENTER();
    *context = current[nested];
    return leave(CUDA_SUCCESS);
}

/* ---- memory ---- */

/* A range that overlaps the next `size` bytes, or NULL. */
static const struct range *
device_range_within(const struct CUctx_st *context, size_t size)
{
    uintptr_t start = (uintptr_t)context->shown + context->next;

    for (unsigned i = 0; i < range_count; i++)
        if (ranges[i].kind == DEVICE && ranges[i].device == context->device &&
            ranges[i].start < start + size && start < ranges[i].start + ranges[i].size)
            return &ranges[i];
    return NULL;
}

/* Moves context->next to the next `size` free bytes, searching from its position and then from the
 * start of the arena, so that freed memory is reused as late as possible. */
static bool
find_room(CUcontext context, size_t size)
{
    const struct range *in_the_way;
    bool again = false;

    do {
        if (context->next + size + GAP > ARENA) {
            if (again)
                return false;
            again = true;
            context->next = 0;
        }
        in_the_way = device_range_within(context, size);
        if (in_the_way)
            context->next =
                (in_the_way->start - (uintptr_t)context->shown + in_the_way->size + ALIGNMENT - 1) /
                ALIGNMENT * ALIGNMENT;
    } while (in_the_way);
    return true;
}

CUresult
cuMemGetInfo_v2(size_t *left, size_t *all)
{
    ENTER_WITH_CONTEXT();
    *left = *all = ARENA - GAP;
    for (unsigned i = 0; i < range_count; i++)
        if (ranges[i].kind == DEVICE && ranges[i].device == context->device)
            *left -= ranges[i].size;
    return leave(CUDA_SUCCESS);
}

CUresult
cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    ENTER_WITH_CONTEXT();
    if (size == 0)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!find_room(context, size))
        return leave((CUresult)OUT_OF_MEMORY);
    *address = (CUdeviceptr)(uintptr_t)(context->shown + context->next);
    memset(context->reached + context->next, FRESH, size);
    /* Contiguous, as the driver may allocate. Copies across the end of an allocation are refused.
     */
    context->next += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    add_range(DEVICE, context->device, (uintptr_t)*address, size);
    return leave(CUDA_SUCCESS);
}

CUresult
cuMemFree_v2(CUdeviceptr address)
{
    ENTER_WITH_CONTEXT();
    struct range range;

    if (take_range(DEVICE, (uintptr_t)address, &range) == CUDA_SUCCESS)
        return leave(CUDA_SUCCESS);
    if (take_range(MANAGED, (uintptr_t)address, &range) != CUDA_SUCCESS)
        misuse("device memory was freed that is none");
    free((void *)range.start);
    return leave(CUDA_SUCCESS);
}

CUresult
cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned int flags)
{
    ENTER_WITH_CONTEXT();
    void *memory = flags == 1 ? malloc(size) : NULL;

    if (!memory)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *address = (CUdeviceptr)(uintptr_t)memory;
    add_range(MANAGED, context->device, (uintptr_t)memory, size);
    return leave(CUDA_SUCCESS);
}

CUresult
cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    ENTER_WITH_CONTEXT();
    const struct range *range = find_range((uintptr_t)address, 1);

    if (!range || (range->kind != DEVICE && range->kind != MANAGED))
        return leave(CUDA_ERROR_INVALID_VALUE);
    *base = range->start;
    *size = range->size;
    return leave(CUDA_SUCCESS);
}

CUresult
cuMemHostAlloc(void **memory, size_t size, unsigned int flags)
{
    ENTER_WITH_CONTEXT();
    char *made = malloc(size + 1);

    if (!made)
        return leave((CUresult)OUT_OF_MEMORY);
    /* Never aligned to a page, because CUDA does not guarantee that. */
    add_range(PINNED, context->device, (uintptr_t)made, size);
    *memory = made;
    return leave(CUDA_SUCCESS);
}

CUresult
cuMemFreeHost(void *memory)
{
    ENTER_WITH_CONTEXT();
    struct range range;

    if (take_range(PINNED, (uintptr_t)memory, &range) != CUDA_SUCCESS)
        misuse("pinned memory was freed that is none");
    free(memory);
    return leave(CUDA_SUCCESS);
}

CUresult
cuMemHostRegister_v2(void *memory, size_t size, unsigned int flags)
{
    ENTER_WITH_CONTEXT();
    uintptr_t start = (uintptr_t)memory;

    if (!memory || size == 0)
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < range_count; i++)
        if (start < ranges[i].start + ranges[i].size && ranges[i].start < start + size)
            return leave((CUresult)ALREADY_REGISTERED);
    add_range(REGISTERED, context->device, start, size);
    return leave(CUDA_SUCCESS);
}

CUresult
cuMemHostUnregister(void *memory)
{
    ENTER_WITH_CONTEXT();
    struct range range;

    if (take_range(REGISTERED, (uintptr_t)memory, &range) != CUDA_SUCCESS)
        return leave((CUresult)NOT_REGISTERED);
    return leave(CUDA_SUCCESS);
}

CUresult
cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    ENTER_WITH_CONTEXT();
    const struct range *range = find_range((uintptr_t)address, 1);

    if (!range)
        return leave(CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = range->kind == DEVICE || range->kind == MANAGED ? CU_MEMORYTYPE_DEVICE
                                                                             : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)value = range->kind == MANAGED;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)value = range->device;
        break;
    default:
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    return leave(CUDA_SUCCESS);
}

/* ---- copies ---- */

CUresult
cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    ENTER_WITH_CONTEXT();
    char *memory = reach(to, size), *staged;
    CUresult result;

    if (!memory)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (find_range((uintptr_t)from, size)) {
        memcpy(memory, from, size);
        return leave(CUDA_SUCCESS);
    }
    staged = malloc(size);
    if (!staged)
        return leave((CUresult)OUT_OF_MEMORY);
    memcpy(staged, from, size);
    result = give(&defaults[context->device], (struct operation){.to = memory,
                                                                 .from = staged,
                                                                 .size = size,
                                                                 .sum = sum_of(staged, size),
                                                                 .staged = staged});
    if (result != CUDA_SUCCESS)
        free(staged);
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): run_operation() frees it */
    return leave(result);
}

/* Copies the bytes that another stream than NULL would see. */
CUresult
cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    ENTER_WITH_CONTEXT();
    const char *memory = reach(from, size);

    if (!memory)
        return leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(to, memory, size);
    return leave(CUDA_SUCCESS);
}

CUresult
cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    ENTER_WITH_CONTEXT();
    const struct range *range = find_range((uintptr_t)from, size);
    char *memory = reach(to, size);

    if (!stream || stream->context != context)
        return leave((CUresult)INVALID_HANDLE);
    if (!memory)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!range)
        misuse("the source of a copy by a stream is not pinned, or only in part");
    return leave(give(
        stream,
        (struct operation){.to = memory, .from = from, .size = size, .sum = sum_of(from, size)}));
}

CUresult
cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream)
{
    ENTER_WITH_CONTEXT();
    const char *source = reach(from, size);
    char *memory = reach(to, size);

    if (!stream || stream->context != context)
        return leave((CUresult)INVALID_HANDLE);
    if (!memory || !source)
        return leave(CUDA_ERROR_INVALID_VALUE);
    return leave(
        give(stream, (struct operation){
                         .to = memory, .from = source, .size = size, .sum = sum_of(source, size)}));
}

/* ---- streams and events ---- */

CUresult
cuStreamCreate(CUstream *stream, unsigned int flags)
{
    ENTER_WITH_CONTEXT();
    CUstream made = calloc(1, sizeof(*made));

    if (!made)
        return leave((CUresult)OUT_OF_MEMORY);
    made->context = context;
    made->last = &made->first;
    handles++;
    *stream = made;
    return leave(CUDA_SUCCESS);
}

CUresult
cuStreamDestroy_v2(CUstream stream)
{
    ENTER_WITH_CONTEXT();
    run_stream(stream, NULL);
    free(stream);
    handles--;
    return leave(CUDA_SUCCESS);
}

CUresult
cuStreamSynchronize(CUstream stream)
{
    ENTER_WITH_CONTEXT();
    if (!stream)
        stream = &defaults[context->device];
    if (stream->context != context)
        return leave((CUresult)INVALID_HANDLE);
    run_stream(stream, NULL);
    return leave(CUDA_SUCCESS);
}

CUresult
cuEventCreate(CUevent *event, unsigned int flags)
{
    ENTER_WITH_CONTEXT();
    CUevent made = calloc(1, sizeof(*made));

    if (!made)
        return leave((CUresult)OUT_OF_MEMORY);
    made->context = context;
    handles++;
    *event = made;
    return leave(CUDA_SUCCESS);
}

CUresult
cuEventDestroy_v2(CUevent event)
{
    ENTER_WITH_CONTEXT();
    if (event->stream)
        run_stream(event->stream, event);
    free(event);
    handles--;
    return leave(CUDA_SUCCESS);
}

CUresult
cuEventRecord(CUevent event, CUstream stream)
{
    ENTER_WITH_CONTEXT();
    CUresult result;

    if (!event || !stream || event->context != context || stream->context != context)
        return leave((CUresult)INVALID_HANDLE);
    if (event->stream)
        misuse("an event was recorded that was not waited for");
    result = give(stream, (struct operation){.event = event});
    if (result == CUDA_SUCCESS) {
        event->stream = stream;
        event->queries = 0;
    }
    return leave(result);
}

CUresult
cuEventQuery(CUevent event)
{
    ENTER_WITH_CONTEXT();
    if (!event || event->context != context)
        return leave((CUresult)INVALID_HANDLE);
    if (event->stream && ++event->queries < QUERIES_UNTIL_DONE)
        return leave(CUDA_ERROR_NOT_READY);
    if (event->stream)
        run_stream(event->stream, event);
    return leave(CUDA_SUCCESS);
}

CUresult
cuEventSynchronize(CUevent event)
{
    ENTER_WITH_CONTEXT();
    if (!event || event->context != context)
        return leave((CUresult)INVALID_HANDLE);
    if (event->stream)
        run_stream(event->stream, event);
    return leave(CUDA_SUCCESS);
}

/* ---- unversioned names: the oldest functions, with 32-bit sizes ---- */

#define BARE(function)                                                                             \
    void function(void);                                                                           \
    void function(void)                                                                            \
    {                                                                                              \
        misuse(#function " was called without its version");                                       \
    }

BARE(cuDevicePrimaryCtxRelease)
BARE(cuCtxPushCurrent)
BARE(cuCtxPopCurrent)
BARE(cuMemAlloc)
BARE(cuMemGetInfo)
BARE(cuMemFree)
BARE(cuMemGetAddressRange)
BARE(cuMemHostRegister)
BARE(cuMemcpyHtoD)
BARE(cuMemcpyHtoDAsync)
BARE(cuMemcpyDtoDAsync)
BARE(cuStreamDestroy)
BARE(cuEventDestroy)
