/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUDirect Storage: reads from storage into device memory with libcufile.so.0, which is loaded by
 * the first read into a device that supports it. It is not used in its compatibility mode, in which
 * cuFile reads through the host without reporting it; the host ring is faster.
 *
 * Types and functions are declared here, as in cuda.h.
 */
#ifndef FSTFS_CLIENT_GPU_CUFILE_H
#define FSTFS_CLIENT_GPU_CUFILE_H

#include "base/error.h"
#include "base/extent.h"
#include "client/gpu/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifndef CUFILEOP_BASE_ERR
typedef struct {
    int err; /* 0, or from 5001 on */
    CUresult cu_err;
} CUfileError_t;
typedef struct {
    enum { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1 } type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops;
} CUfileDescr_t;
typedef void *CUfileHandle_t;
typedef struct {
    struct {
        unsigned int major_version, minor_version;
        size_t poll_thresh_size, max_direct_io_size;
        unsigned int dstatusflags, dcontrolflags;
    } nvfs;
    unsigned int fflags, max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size,
        max_batch_io_size, max_batch_io_timeout_msecs;
} CUfileDrvProps_t;
typedef enum { CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE = 1 } CUFileBoolConfigParameter_t;
enum { CU_FILE_ALLOW_COMPAT_MODE = 1 }; /* bit number in dcontrolflags */
#endif
enum { CUFILE_P2P = 4 }; /* bit number in fflags; older headers have no name for it */

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *properties);
CUfileError_t cuFileHandleRegister(CUfileHandle_t *handle, CUfileDescr_t *description);
void cuFileHandleDeregister(CUfileHandle_t handle);
CUfileError_t cuFileBufRegister(const void *memory, size_t size, int flags);
CUfileError_t cuFileBufDeregister(const void *memory);
ssize_t cuFileRead(CUfileHandle_t handle, void *memory, size_t size, off_t file_offset,
                   off_t memory_offset);
long cuFileUseCount(void);
CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t parameter, bool value);

#define CUFILE_FUNCTIONS(X)                                                                        \
    X(cuFileDriverOpen)                                                                            \
    X(cuFileDriverGetProperties)                                                                   \
    X(cuFileHandleRegister)                                                                        \
    X(cuFileHandleDeregister)                                                                      \
    X(cuFileBufRegister)                                                                           \
    X(cuFileBufDeregister)                                                                         \
    X(cuFileRead)                                                                                  \
    X(cuFileUseCount)

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define CUFILE_MEMBER(function) __typeof__(function) *function;
struct cufile {
    CUFILE_FUNCTIONS(CUFILE_MEMBER)
};
#undef CUFILE_MEMBER

/*
 * Loads the library and opens its driver, which may take seconds. Neither is ever closed, because
 * other code in the process may use them. Errors, with a reason: the library is not installed or
 * does not work, or its compatibility mode cannot be turned off.
 */
errint_t cufile_load(struct cufile *cufile, struct reason *reason);

/* A file that is registered with cuFile. */
struct cufile_file {
    const struct cufile *cufile;
    CUfileHandle_t handle;
    int fd;
};

errint_t cufile_open(const struct cufile *cufile, struct backing *backing,
                     struct cufile_file **file, struct reason *reason);
void cufile_close(struct cufile_file *file); /* NULL is allowed; no read may be in flight */

/* Reads `length` bytes into registered memory. Offsets and `length` are multiples of 4096. The
 * file may end in the last block: at least `valid` bytes must be read. Blocks. -ESTALE: the file
 * has changed; other errors with a reason. */
errint_t cufile_read(const struct cufile_file *file, struct backing *backing, CUdeviceptr memory,
                     size_t memory_offset, uint64_t offset, size_t length, size_t valid,
                     struct reason *reason);

/* 0, or -EIO with a reason such as "cuFileBufRegister: error 5036 (CUDA error 0)". */
errint_t cufile_check(CUfileError_t result, const char *function, struct reason *reason);

#endif
