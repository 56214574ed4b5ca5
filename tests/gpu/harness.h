/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of device reads share: the test doubles and their functions, a model in a file,
 * the functions of the system that the linker wraps, memory of the device, reading, and the status.
 * Included by one file.
 */
#ifndef FSTFS_TESTS_GPU_HARNESS_H
#define FSTFS_TESTS_GPU_HARNESS_H

#include "client/gpu/cufile.h"
#include "double.h"
#include "fstfs.h"
#include "io/block.h"
#include "io/storage.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TENSORS 60
#define MIB (1ull << 20)
#define SMALL_BUDGET (4 * MIB) /* a ring of a few slots of a megabyte, used many times */
#define MANAGED_GLOBAL 1
#define INJECTED 999

struct tensor {
    char name[16];
    uint64_t rows, columns, size;
    char *bytes;
};

static struct tensor tensors[TENSORS];
static char place[sizeof("/tmp/fstfs-test-gpu-XXXXXX")], path[100];
static struct fstfs *fstfs;
static struct fstfs_checkpoint *checkpoint;
static struct fstfs_device *device;

/* ---- the doubles ---- */

#define TEST_FUNCTIONS(X)                                                                          \
    X(double_cuda_reset)                                                                           \
    X(double_cuda_left)                                                                            \
    X(double_cuda_fail)                                                                            \
    X(double_cuda_calls)                                                                           \
    X(double_cufile_reset)                                                                         \
    X(double_cufile_left)                                                                          \
    X(double_cufile_fail)                                                                          \
    X(double_cufile_shorten)                                                                       \
    X(double_cufile_calls)                                                                         \
    X(double_cufile_hold)                                                                          \
    X(cuMemAllocManaged)                                                                           \
    X(cuMemcpyDtoH_v2)

/* NOLINTNEXTLINE(bugprone-macro-parentheses): it is the name of a member */
#define MEMBER(function) __typeof__(function) *function;
static struct {
    TEST_FUNCTIONS(MEMBER)
} doubles;
static struct cuda cuda;

/* The results of wrapped functions of the system. */
static struct {
    const char *no_library; /* a library that is not installed */
    const char *no_symbol; /* a symbol that the libraries do not have */
    bool no_udev, wsl;
    unsigned fs_type; /* of every file */
    /* Memory that the kernel cannot write to, like mapped memory of a device. */
    char *mapped;
    size_t mapped_size;
    atomic_uint refusals; /* reads into it that failed */
} found;

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
int __real_access(const char *name, int mode);
int __wrap_access(const char *name, int mode);
int __real_uname(struct utsname *name);
int __wrap_uname(struct utsname *name);
int __wrap_fstatfs(int fd, struct statfs *fs);
int __wrap_fstatfs64(int fd, struct statfs *fs);
void __real_storage_read(struct storage *storage, struct storage_read *read);
void __wrap_storage_read(struct storage *storage, struct storage_read *read);

void *
__wrap_dlopen(const char *name, int flags)
{
    return __real_dlopen(
        found.no_library && strcmp(name, found.no_library) == 0 ? "/nonexistent" : name, flags);
}

void *
__wrap_dlsym(void *library, const char *name)
{
    return found.no_symbol && strcmp(name, found.no_symbol) == 0 ? NULL
                                                                 : __real_dlsym(library, name);
}

int
__wrap_access(const char *name, int mode)
{
    if (strcmp(name, "/run/udev") != 0)
        return __real_access(name, mode);
    return found.no_udev ? -1 : 0;
}

int
__wrap_uname(struct utsname *name)
{
    int result = __real_uname(name);

    if (found.wsl)
        strcpy(name->release, "5.15.1-microsoft-standard-WSL2");
    return result;
}

int
__wrap_fstatfs(int fd, struct statfs *fs)
{
    memset(fs, 0, sizeof(*fs));
    fs->f_type = (__typeof__(fs->f_type))found.fs_type;
    return 0;
}

int
__wrap_fstatfs64(int fd, struct statfs *fs)
{
    return __wrap_fstatfs(fd, fs);
}

void
__wrap_storage_read(struct storage *storage, struct storage_read *read)
{
    if (read->buffer < found.mapped || read->buffer >= found.mapped + found.mapped_size) {
        __real_storage_read(storage, read);
        return;
    }
    found.refusals++;
    read->complete(read, -EFAULT);
}

static void
load_doubles(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *direct = dlopen("libcufile.so.0", RTLD_NOW);
    struct reason reason;

    ck_assert(driver && direct);
#define LOOK_UP(function)                                                                          \
    *(void **)&doubles.function = dlsym(driver, #function);                                        \
    if (!doubles.function)                                                                         \
        *(void **)&doubles.function = dlsym(direct, #function);                                    \
    ck_assert_msg(doubles.function != NULL, "not the double: it has no " #function);
    TEST_FUNCTIONS(LOOK_UP)
    doubles.double_cuda_reset("h200");
    ck_assert_int_eq(cuda_load(&cuda, &reason), 0);
}

/* ---- the model ---- */

static uint64_t
below(uint64_t limit)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % limit;
}

static void
make_tensors(void)
{
    for (unsigned i = 0; i < TENSORS; i++) {
        struct tensor *tensor = &tensors[i];

        snprintf(tensor->name, sizeof(tensor->name), "t%02u", i);
        tensor->rows = 1 + below(i % 4 ? 400 : 3);
        tensor->columns = 1 + below(i % 7 ? 5000 : 7);
        if (i == 5) { /* longer than several spans */
            tensor->rows = 3000;
            tensor->columns = 3001;
        }
        if (i == 8 || i == 9) { /* adjacent in memory */
            tensor->rows = 512;
            tensor->columns = 16;
        }
        tensor->size = tensor->rows * tensor->columns;
        tensor->bytes = malloc(tensor->size);
        for (uint64_t j = 0; j < tensor->size; j++)
            tensor->bytes[j] = (char)below(256);
    }
}

static void
write_model(void)
{
    FILE *file = fopen(path, "we");
    static char header[TENSORS * 120];
    char *end = header + 8;
    uint64_t length, offset = 0;

    ck_assert_ptr_nonnull(file);
    *end++ = '{';
    for (unsigned i = 0; i < TENSORS; i++) {
        const struct tensor *t = &tensors[i];
        uint64_t stop = offset + t->size;

        end += sprintf(end,
                       "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[%llu,%llu],"
                       "\"data_offsets\":[%llu,%llu]}",
                       i ? "," : "", t->name, (unsigned long long)t->rows,
                       (unsigned long long)t->columns, (unsigned long long)offset,
                       (unsigned long long)stop);
        offset = stop;
    }
    *end++ = '}';
    length = (uint64_t)(end - header - 8);
    memcpy(header, &length, 8);
    ck_assert_uint_eq(fwrite(header, 1, (size_t)(end - header), file), (size_t)(end - header));
    for (unsigned i = 0; i < TENSORS; i++)
        ck_assert_uint_eq(fwrite(tensors[i].bytes, 1, tensors[i].size, file), tensors[i].size);
    ck_assert_int_eq(fflush(file), 0);
    ck_assert_int_eq(fdatasync(fileno(file)), 0);
    fclose(file);
}

/* Whether the file system of the test's folder supports O_DIRECT. */
static bool
reads_directly(void)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);

    if (fd < 0)
        printf("# no direct reads here: tests of cuFile are left out\n");
    else
        close(fd);
    return fd >= 0;
}

/* Drops the page cache, so that the storage is read. */
static void
forget(void)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    ck_assert_int_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
}

static void
make_model(void)
{
    strcpy(place, "/tmp/fstfs-test-gpu-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place));
    snprintf(path, sizeof(path), "%s/model.safetensors", place);
    make_tensors();
    write_model();
    load_doubles();
}

static void
remove_model(void)
{
    for (unsigned i = 0; i < TENSORS; i++)
        free(tensors[i].bytes);
    unlink(path);
    rmdir(place);
}

static void
open_model(uint64_t memory)
{
    struct fstfs_options options = {.memory = memory};

    ck_assert_int_eq(fstfs_new(&options, &fstfs), 0);
    ck_assert_int_eq(fstfs_open(fstfs, path, &checkpoint), 0);
    ck_assert_uint_eq(fstfs_count(checkpoint), TENSORS);
}

/* Opens the device of a profile and the checkpoint. */
static void
begin(const char *profile, uint64_t memory)
{
    static const struct double_cufile not_loaded = {.compatible = true};

    doubles.double_cuda_reset(profile);
    doubles.double_cufile_reset(&not_loaded);
    open_model(memory);
    ck_assert_msg(fstfs_device(fstfs, "cuda:0", &device) == 0, "%s", fstfs_error());
}

static void
finish(void)
{
    fstfs_close(checkpoint);
    fstfs_free(fstfs);
    ck_assert_uint_eq(doubles.double_cufile_left(), 0);
    ck_assert_uint_eq(doubles.double_cuda_left(), 0);
    memset(&found, 0, sizeof(found));
}

/* ---- memory of the device ---- */

static void
push(void)
{
    CUcontext context;
    struct reason reason;

    ck_assert_int_eq(cuda_load(&cuda, &reason), 0);
    ck_assert_int_eq(cuda.cuDevicePrimaryCtxRetain(&context, 0), 0);
    ck_assert_int_eq(cuda.cuCtxPushCurrent_v2(context), 0);
}

static void
pop(void)
{
    CUcontext context;

    ck_assert_int_eq(cuda.cuCtxPopCurrent_v2(&context), 0);
    ck_assert_int_eq(cuda.cuDevicePrimaryCtxRelease_v2(0), 0);
}

static void *
device_memory(uint64_t size)
{
    CUdeviceptr address;

    push();
    ck_assert_int_eq(cuda.cuMemAlloc_v2(&address, size), 0);
    pop();
    return (void *)(uintptr_t)address;
}

static void *
managed_memory(uint64_t size)
{
    CUdeviceptr address;

    push();
    ck_assert_int_eq(doubles.cuMemAllocManaged(&address, size, MANAGED_GLOBAL), 0);
    pop();
    return (void *)(uintptr_t)address;
}

static void
free_memory(void *memory)
{
    push();
    ck_assert_int_eq(cuda.cuMemFree_v2((CUdeviceptr)(uintptr_t)memory), 0);
    pop();
}

/* Checks the bytes at `memory`, and that those around them are unchanged. */
static void
check_bytes(const void *memory, const char *bytes, uint64_t size)
{
    char *copy = malloc(size + 1);

    push();
    ck_assert_int_eq(doubles.cuMemcpyDtoH_v2(copy, (CUdeviceptr)(uintptr_t)memory, size), 0);
    pop();
    ck_assert_int_eq(memcmp(copy, bytes, size), 0);
    free(copy);
}

/* ---- reading ---- */

typedef void *(*make_memory)(uint64_t size);

static void *
allocate(void *arg, size_t index, uint64_t size)
{
    return (*(make_memory *)arg)(size);
}

/* Reads every tensor into its own memory; returns the result. */
static int
read_all(make_memory make, struct fstfs_request requests[TENSORS])
{
    struct fstfs_read_options options = {.allocate = allocate, .arg = &make, .device = device};

    forget();
    for (unsigned i = 0; i < TENSORS; i++)
        requests[i] = (struct fstfs_request){.tensor = fstfs_find(checkpoint, tensors[i].name)};
    return fstfs_read(checkpoint, requests, TENSORS, &options);
}

static void
check_all(make_memory make)
{
    struct fstfs_request requests[TENSORS];

    ck_assert_msg(read_all(make, requests) == 0, "%s", fstfs_error());
    for (unsigned i = 0; i < TENSORS; i++) {
        check_bytes(requests[i].to, tensors[i].bytes, tensors[i].size);
        free_memory(requests[i].to);
    }
}

/* ---- status ---- */

static cJSON *
whole_status(void)
{
    char text[8192];
    cJSON *all;

    ck_assert_int_lt(fstfs_status(fstfs, text, sizeof(text)), (int)sizeof(text));
    all = cJSON_Parse(text);
    ck_assert_ptr_nonnull(all);
    return all;
}

/* A member of the status of the only storage of the only device; "" if it is missing. */
static const char *
status(const char *member)
{
    static char value[600];
    cJSON *all = whole_status();
    const cJSON *devices, *storage, *item;

    devices = cJSON_GetObjectItem(all, "devices");
    ck_assert_int_eq(cJSON_GetArraySize(devices), 1);
    storage = cJSON_GetObjectItem(cJSON_GetArrayItem(devices, 0), "storage");
    ck_assert_int_eq(cJSON_GetArraySize(storage), 1);
    item = cJSON_GetObjectItem(cJSON_GetArrayItem(storage, 0), member);
    snprintf(value, sizeof(value), "%s", item ? item->valuestring : "");
    cJSON_Delete(all);
    return value;
}

static void
check_status(const char *member, const char *part)
{
    ck_assert_msg(strstr(status(member), part) != NULL, "%s is \"%s\", not \"...%s...\"", member,
                  status(member), part);
}

/* A number in the status: a total, or of the only device. */
static uint64_t
status_number(bool of_device, const char *member)
{
    cJSON *all = whole_status();
    const cJSON *item = cJSON_GetObjectItem(all, member);
    uint64_t value;

    if (of_device)
        item =
            cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(all, "devices"), 0), member);
    ck_assert_ptr_nonnull(item);
    value = (uint64_t)item->valuedouble;
    cJSON_Delete(all);
    return value;
}

#endif
