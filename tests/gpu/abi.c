/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the declarations of CUDA and cuFile in src/client/gpu at compile time; never run. Sizes,
 * offsets and constants are asserted for these declarations and, with -DFSTFS_ABI_CUDA and
 * -DFSTFS_ABI_CUFILE (tests/gpu/test_abi.py), for NVIDIA's headers. Then both declare the same
 * functions, and the compiler compares the prototypes.
 */
#ifdef FSTFS_ABI_CUDA
#include <cuda.h>
#endif
#ifdef FSTFS_ABI_CUFILE
#include <stdbool.h>

#include <cufile.h>
#endif

#include "client/gpu/cuda.h"
#include "client/gpu/cufile.h"

#define IS(what, value) _Static_assert((what) == (value), #what " is " #value)

IS(sizeof(CUresult), 4);
IS(sizeof(CUdevice), 4);
IS(sizeof(CUdeviceptr), 8);
IS(CUDA_SUCCESS, 0);
IS(CUDA_ERROR_INVALID_VALUE, 1);
IS(CUDA_ERROR_NOT_READY, 600);
IS(CU_DEVICE_ATTRIBUTE_INTEGRATED, 18);
IS(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 100);
IS(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 116);
IS(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2);
IS(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8);
IS(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9);
IS(CU_MEMORYTYPE_HOST, 1);
IS(CU_MEMORYTYPE_DEVICE, 2);
IS(CU_STREAM_NON_BLOCKING, 1);
IS(CU_EVENT_BLOCKING_SYNC, 1);
IS(CU_EVENT_DISABLE_TIMING, 2);
IS(CU_MEMHOSTALLOC_PORTABLE, 1);
IS(CU_MEMHOSTREGISTER_PORTABLE, 1);

IS(sizeof(off_t), 8);
IS(sizeof(CUfileError_t), 8);
IS(offsetof(CUfileError_t, cu_err), 4);
IS(sizeof(CUfileDescr_t), 24);
IS(offsetof(CUfileDescr_t, handle), 8);
IS(offsetof(CUfileDescr_t, fs_ops), 16);
IS(CU_FILE_HANDLE_TYPE_OPAQUE_FD, 1);
IS(sizeof(CUfileDrvProps_t), 56);
IS(offsetof(CUfileDrvProps_t, nvfs.minor_version), 4);
IS(offsetof(CUfileDrvProps_t, nvfs.poll_thresh_size), 8);
IS(offsetof(CUfileDrvProps_t, nvfs.max_direct_io_size), 16);
IS(offsetof(CUfileDrvProps_t, nvfs.dstatusflags), 24);
IS(offsetof(CUfileDrvProps_t, nvfs.dcontrolflags), 28);
IS(offsetof(CUfileDrvProps_t, fflags), 32);
IS(offsetof(CUfileDrvProps_t, max_batch_io_size), 48);
IS(offsetof(CUfileDrvProps_t, max_batch_io_timeout_msecs), 52);
IS(CU_FILE_ALLOW_COMPAT_MODE, 1);
IS(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, 1);
