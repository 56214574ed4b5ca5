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

CUresult cuInit(unsigned int flags);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address);
CUresult cuMemHostAlloc(void **memory, size_t size, unsigned int flags);
CUresult cuMemFreeHost(void *memory);
CUresult cuMemHostRegister_v2(void *memory, size_t size, unsigned int flags);
CUresult cuMemHostUnregister(void *memory);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address);

#define CUDA_FUNCTIONS(X)                                                                          \
    X(cuInit)                                                                                      \
    X(cuGetErrorName)                                                                              \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease_v2)                                                                \
    X(cuCtxPushCurrent_v2)                                                                         \
    X(cuCtxPopCurrent_v2)                                                                          \
    X(cuMemAlloc_v2)                                                                               \
    X(cuMemFree_v2)                                                                                \
    X(cuMemGetAddressRange_v2)                                                                     \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemFreeHost)                                                                               \
    X(cuMemHostRegister_v2)                                                                        \
    X(cuMemHostUnregister)                                                                         \
    X(cuMemcpyHtoD_v2)                                                                             \
    X(cuMemcpyHtoDAsync_v2)                                                                        \
    X(cuMemcpyDtoDAsync_v2)                                                                        \
    X(cuStreamCreate)                                                                              \
    X(cuStreamDestroy_v2)                                                                          \
    X(cuStreamSynchronize)                                                                         \
    X(cuEventCreate)                                                                               \
    X(cuEventDestroy_v2)                                                                           \
    X(cuEventRecord)                                                                               \
    X(cuEventQuery)                                                                                \
    X(cuEventSynchronize)                                                                          \
    X(cuPointerGetAttribute)

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define CUDA_MEMBER(function) __typeof__(function) *function;
struct cuda {
    CUDA_FUNCTIONS(CUDA_MEMBER)
};
#undef CUDA_MEMBER

/* Loads and initializes the driver, which is never unloaded. -ENODEV with a reason: there is none,
 * or it does not work. */
errint_t cuda_load(struct cuda *cuda, struct reason *reason);

/* 0, or -EIO with a reason such as "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY". */
errint_t cuda_check(const struct cuda *cuda, CUresult result, const char *function,
                    struct reason *reason);

/* Calls a function of the driver; cuda_check() of its result. */
#define CUDA_CALL(cuda, reason, function, ...)                                                     \
    cuda_check(cuda, (cuda)->function(__VA_ARGS__), #function, reason)

#endif
