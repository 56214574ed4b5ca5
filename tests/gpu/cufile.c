/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The double of libcufile.so.0: reads files into the device memory of the other double.
 * Reads for which the real library would use its own buffers, which is slower, abort here: those
 * that are not of whole blocks or not into registered memory.
 */
#include "client/gpu/cufile.h"

#include "calls.h"
#include "double.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_FILES 64
#define MOST_RANGES 4
#define BLOCK 4096
#define NOT_INITIALIZED 5001
#define INVALID_VALUE 5022
#define ALREADY_OPEN 5026
#define CUDA_ERROR 5011
#define COMPATIBLE (1u << CU_FILE_ALLOW_COMPAT_MODE)

struct file {
    int fd;
    struct stat st;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct double_cufile now;
static struct file *files[MOST_FILES];
static unsigned file_count, open_count;
static struct range {
    uintptr_t start; /* 0: none */
    size_t size;
} ranges[MOST_RANGES]; /* registered */
static unsigned range_count;
static size_t most;
static bool held;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;

static CUfileError_t
leave(int error)
{
    pthread_mutex_unlock(&lock);
    return (CUfileError_t){error, CUDA_SUCCESS};
}

#define ENTER()                                                                                    \
    pthread_mutex_lock(&lock);                                                                     \
    int injected = count_call(__func__);                                                           \
    if (injected)                                                                                  \
    return leave(injected)

#define ENTER_OPEN()                                                                               \
    ENTER();                                                                                       \
    if (!open_count)                                                                               \
    return leave(NOT_INITIALIZED)

static void *
of_other_double(const char *name)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *function = library ? dlsym(library, name) : NULL;

    if (!function)
        misuse("cuFile was used without CUDA");
    dlclose(library);
    return function;
}

static char *
reach(CUdeviceptr address, size_t size)
{
    __typeof__(double_cuda_memory) *memory;

    *(void **)&memory = of_other_double("double_cuda_memory");
    return memory(address, size);
}

static bool
has_context(void)
{
    CUresult (*get)(CUcontext *);
    CUcontext context = NULL;

    *(void **)&get = of_other_double("cuCtxGetCurrent");
    return get(&context) == CUDA_SUCCESS && context;
}

/* ---- for tests ---- */

void
double_cufile_reset(const struct double_cufile *as)
{
    if (double_cufile_left() > 0)
        misuse("something of cuFile is still in use");
    pthread_mutex_lock(&lock);
    memset(call_counts, 0, sizeof(call_counts));
    now = *as;
    open_count = 0;
    most = 0;
    pthread_mutex_unlock(&lock);
}

unsigned
double_cufile_left(void)
{
    unsigned left;

    pthread_mutex_lock(&lock);
    left = file_count + range_count;
    pthread_mutex_unlock(&lock);
    return left;
}

void
double_cufile_fail(const char *function, unsigned call, int error)
{
    pthread_mutex_lock(&lock);
    fail_call(function, call, error);
    pthread_mutex_unlock(&lock);
}

void
double_cufile_shorten(size_t bytes)
{
    pthread_mutex_lock(&lock);
    most = bytes;
    pthread_mutex_unlock(&lock);
}

unsigned
double_cufile_calls(const char *function)
{
    unsigned calls;

    pthread_mutex_lock(&lock);
    calls = calls_of(function)->calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

void
double_cufile_hold(bool hold)
{
    pthread_mutex_lock(&lock);
    held = hold;
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&lock);
}

/* ---- the driver ---- */

CUfileError_t
cuFileDriverOpen(void)
{
    ENTER();
    while (held)
        pthread_cond_wait(&released, &lock);
    if (!now.nvfs && !now.p2p && !now.compatible)
        return leave(NOT_INITIALIZED);
    open_count++;
    return leave(0);
}

long
cuFileUseCount(void)
{
    long count;

    pthread_mutex_lock(&lock);
    count = open_count;
    pthread_mutex_unlock(&lock);
    return count;
}

CUfileError_t
cuFileSetParameterBool(CUFileBoolConfigParameter_t parameter, bool value)
{
    ENTER();
    if (open_count)
        return leave(ALREADY_OPEN);
    if (parameter != CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE)
        return leave(INVALID_VALUE);
    now.compatible = value;
    return leave(0);
}

CUfileError_t
cuFileDriverGetProperties(CUfileDrvProps_t *properties)
{
    ENTER_OPEN();
    *properties = (CUfileDrvProps_t){0};
    properties->nvfs.major_version = now.nvfs ? 2 : 0;
    properties->nvfs.dcontrolflags = now.compatible ? COMPATIBLE : 0;
    properties->fflags = now.p2p ? 1u << CUFILE_P2P : 0;
    return leave(0);
}

/* ---- files and memory ---- */

static struct file **
find_file(const void *handle)
{
    for (unsigned i = 0; i < file_count; i++)
        if (files[i] == handle)
            return &files[i];
    misuse("a handle that is none");
}

/* Checks that the descriptor still refers to the registered file. */
static void
check_descriptor(const struct file *file)
{
    struct stat st;

    if (fstat(file->fd, &st) < 0 || st.st_ino != file->st.st_ino || st.st_dev != file->st.st_dev)
        misuse("a descriptor was closed before its handle was");
}

CUfileError_t
cuFileHandleRegister(CUfileHandle_t *handle, CUfileDescr_t *description)
{
    ENTER_OPEN();
    struct file *file = calloc(1, sizeof(*file));

    if (description->type != CU_FILE_HANDLE_TYPE_OPAQUE_FD || file_count == MOST_FILES || !file)
        misuse("cuFileHandleRegister");
    file->fd = description->handle.fd;
    if (fstat(file->fd, &file->st) < 0 || !S_ISREG(file->st.st_mode))
        misuse("a handle of what is not a file");
    files[file_count++] = file;
    *handle = file;
    return leave(0);
}

void
cuFileHandleDeregister(CUfileHandle_t handle)
{
    struct file **file;

    pthread_mutex_lock(&lock);
    file = find_file(handle);
    check_descriptor(*file);
    free(*file);
    *file = files[--file_count];
    pthread_mutex_unlock(&lock);
}

/* The registered range that begins at `start`, or NULL. */
static struct range *
find_range(uintptr_t start)
{
    for (unsigned i = 0; i < range_count; i++)
        if (ranges[i].start == start)
            return &ranges[i];
    return NULL;
}

CUfileError_t
cuFileBufRegister(const void *memory, size_t size, int flags)
{
    ENTER_OPEN();
    if ((uintptr_t)memory % BLOCK || flags || find_range((uintptr_t)memory) ||
        range_count == MOST_RANGES)
        misuse("cuFileBufRegister");
    if (!reach((uintptr_t)memory, size))
        return leave(CUDA_ERROR);
    ranges[range_count++] = (struct range){(uintptr_t)memory, size};
    return leave(0);
}

CUfileError_t
cuFileBufDeregister(const void *memory)
{
    ENTER_OPEN();
    struct range *range = find_range((uintptr_t)memory);

    if (!range)
        return leave(INVALID_VALUE);
    *range = ranges[--range_count];
    return leave(0);
}

ssize_t
cuFileRead(CUfileHandle_t handle, void *memory, size_t size, off_t file_offset, off_t memory_offset)
{
    const struct range *range;
    const struct file *file;
    char *to;
    int injected;

    pthread_mutex_lock(&lock);
    file = *find_file(handle);
    check_descriptor(file);
    injected = count_call(__func__);
    if (!has_context())
        injected = CUDA_ERROR;
    range = find_range((uintptr_t)memory);
    if (!range || (size_t)memory_offset + size > range->size)
        misuse("a read into memory that is not registered");
    if (size % BLOCK || file_offset % BLOCK || memory_offset % BLOCK)
        misuse("a read that is not of whole blocks");
    if (most > 0 && size > most)
        size = most;
    pthread_mutex_unlock(&lock);
    if (injected)
        return injected > 5000 ? -injected : -1;
    to = reach((uintptr_t)memory + (uintptr_t)memory_offset, size);
    return to ? pread(file->fd, to, size, file_offset) : -CUDA_ERROR;
}
