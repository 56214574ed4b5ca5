/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the CUDA driver that fstfs uses. They are declared here, so that the build needs
 * no CUDA toolkit, and looked up in libcuda.so.1 at run time. Where a function has versioned names
 * (_v2), the versioned one is used: the plain name is the oldest version, with 32-bit sizes.
 *
 * tests/gpu/abi.c includes NVIDIA's cuda.h before this file. Then NVIDIA's types are used, and the
 * compiler compares the prototypes.
 */
#ifndef FSTFS_CLIENT_GPU_CUDA_H
#define FSTFS_CLIENT_GPU_CUDA_H

#include "base/error.h"

#include <stddef.h>

#ifndef CUDA_VERSION
typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_NOT_READY = 600
} CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef enum {
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116
} CUdevice_attribute;
typedef enum {
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9
} CUpointer_attribute;
typedef enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 } CUmemorytype;
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_BLOCKING_SYNC = 1, CU_EVENT_DISABLE_TIMING = 2 };
#define CU_MEMHOSTALLOC_PORTABLE 1
#define CU_MEMHOSTREGISTER_PORTABLE 1
#endif

/* The functions of the driver that libfstfs and fstfs-bench use, with their parameters. */
#define CUDA_FUNCTIONS(X)                                                                          \
    X(cuInit, (unsigned int flags))                                                                \
    X(cuGetErrorName, (CUresult error, const char **name))                                         \
    X(cuDeviceGetCount, (int *count))                                                              \
    X(cuDeviceGet, (CUdevice * device, int ordinal))                                               \
    X(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device))           \
    X(cuDeviceGetName, (char *name, int length, CUdevice device))                                  \
    X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                            \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                             \
    X(cuCtxPushCurrent_v2, (CUcontext context))                                                    \
    X(cuCtxPopCurrent_v2, (CUcontext * context))                                                   \
    X(cuMemGetInfo_v2, (size_t * left, size_t * all))                                              \
    X(cuMemAlloc_v2, (CUdeviceptr * address, size_t size))                                         \
    X(cuMemAllocManaged, (CUdeviceptr * address, size_t size, unsigned int flags))                 \
    X(cuMemFree_v2, (CUdeviceptr address))                                                         \
    X(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t * size, CUdeviceptr address))           \
    X(cuMemHostAlloc, (void **memory, size_t size, unsigned int flags))                            \
    X(cuMemFreeHost, (void *memory))                                                               \
    X(cuMemHostRegister_v2, (void *memory, size_t size, unsigned int flags))                       \
    X(cuMemHostUnregister, (void *memory))                                                         \
    X(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size))                                  \
    X(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t size))                            \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream stream))      \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream))      \
    X(cuStreamCreate, (CUstream * stream, unsigned int flags))                                     \
    X(cuStreamDestroy_v2, (CUstream stream))                                                       \
    X(cuStreamSynchronize, (CUstream stream))                                                      \
    X(cuEventCreate, (CUevent * event, unsigned int flags))                                        \
    X(cuEventDestroy_v2, (CUevent event))                                                          \
    X(cuEventRecord, (CUevent event, CUstream stream))                                             \
    X(cuEventQuery, (CUevent event))                                                               \
    X(cuEventSynchronize, (CUevent event))                                                         \
    X(cuPointerGetAttribute, (void *value, CUpointer_attribute attribute, CUdeviceptr address))

/* NOLINTBEGIN(bugprone-macro-parentheses): declarations */
#define CUDA_DECLARATION(function, parameters) CUresult function parameters;
CUDA_FUNCTIONS(CUDA_DECLARATION)
#undef CUDA_DECLARATION

#define CUDA_MEMBER(function, parameters) __typeof__(function) *function;
struct cuda {
    CUDA_FUNCTIONS(CUDA_MEMBER)
};
#undef CUDA_MEMBER
/* NOLINTEND(bugprone-macro-parentheses) */

/* Loads and initializes the driver, which is never unloaded. -ENODEV with a reason: there is none,
 * or it does not work. */
errint_t cuda_load(struct cuda *cuda, struct reason *reason);

/* 0, or -EIO with a reason such as "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)". */
errint_t cuda_check(const struct cuda *cuda, CUresult result, const char *function,
                    struct reason *reason);

/* Calls a function of the driver; cuda_check() of its result. */
#define CUDA_CALL(cuda, reason, function, ...)                                                     \
    cuda_check(cuda, (cuda)->function(__VA_ARGS__), #function, reason)

#endif
