/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/cufile.h"

#include "base/file_system.h"
#include "io/descriptors.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Magic numbers that linux/magic.h may lack. */
#define LUSTRE_SUPER_MAGIC 0x0BD00BD0
#define GPFS_SUPER_MAGIC 0x47504653
#define BEEGFS_SUPER_MAGIC 0x19830326

#define STRING_OF(name) #name,
static const char *const names[] = {CUFILE_FUNCTIONS(STRING_OF)};
#undef STRING_OF

errint_t
cufile_check(CUfileError_t result, const char *function, struct reason *reason)
{
    if (result.err == 0)
        return 0;
    return reason_set(reason, -EIO, "Device", "%s: error %d (CUDA error %d)", function,
                      (int)result.err, (int)result.cu_err);
}

/* cuFile finds the block device of a file in /run/udev. Without that directory it fails or reads
 * through the host. */
static errint_t
check_system(struct reason *reason)
{
    struct utsname name;

    if (access("/run/udev", X_OK) < 0)
        return reason_set(reason, -ENOTSUP, "Device", "there is no /run/udev");
    if (uname(&name) == 0 && strcasestr(name.release, "microsoft"))
        return reason_set(reason, -ENOTSUP, "Device", "the kernel is WSL's");
    return 0;
}

/* Turns the compatibility mode off (cuFile 1.14 and later). Parameters can only be set before the
 * driver is opened; if other code in the process has opened it, check_driver() checks the mode. */
static void
disallow_compatibility(const struct cufile *cufile, void *library)
{
    __typeof__(cuFileSetParameterBool) *set;

    *(void **)&set = dlsym(library, "cuFileSetParameterBool");
    if (set && cufile->cuFileUseCount() == 0)
        set(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, false);
}

static errint_t
check_driver(const struct cufile *cufile, struct reason *reason)
{
    CUfileDrvProps_t properties = {0};
    errint_t error = cufile_check(cufile->cuFileDriverOpen(), "cuFileDriverOpen", reason);

    if (!error)
        error = cufile_check(cufile->cuFileDriverGetProperties(&properties),
                             "cuFileDriverGetProperties", reason);
    if (error)
        return error;
    if (properties.nvfs.major_version == 0 && properties.nvfs.minor_version == 0 &&
        !(properties.fflags & 1u << CUFILE_P2P))
        return reason_set(reason, -ENOTSUP, "Device",
                          "nvidia-fs is not loaded, and PCI peer-to-peer is not enabled");
    if (properties.nvfs.dcontrolflags & 1u << CU_FILE_ALLOW_COMPAT_MODE)
        return reason_set(reason, -ENOTSUP, "Device",
                          "cuFile may read through the host; set CUFILE_ALLOW_COMPAT_MODE=false to "
                          "disable that");
    return 0;
}

errint_t
cufile_load(struct cufile *cufile, struct reason *reason)
{
    errint_t error = check_system(reason);
    void *library;
    void **function = (void **)cufile;

    if (error)
        return error;
    library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return reason_set(reason, -ENODEV, "Device", "cuFile is not installed: %s", dlerror());
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        function[i] = dlsym(library, names[i]);
        if (!function[i])
            return reason_set(reason, -ENODEV, "Device", "cuFile has no %s", names[i]);
    }
    disallow_compatibility(cufile, library);
    return check_driver(cufile, reason);
}

/* Fails unless the file system may support GPUDirect Storage. */
static errint_t
check_file_system(int fd, struct reason *reason)
{
    struct statfs fs;

    if (fstatfs(fd, &fs) < 0)
        return reason_set(reason, -errno, "Device", "fstatfs: %s", strerror(errno));
    /* The file systems that support GPUDirect Storage. */
    switch ((unsigned)fs.f_type) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case NFS_SUPER_MAGIC:
    case LUSTRE_SUPER_MAGIC:
    case GPFS_SUPER_MAGIC:
    case BEEGFS_SUPER_MAGIC:
        return 0;
    default:
        return reason_set(reason, -ENOTSUP, "Device",
                          "the file system (type 0x%x) does not support GPUDirect Storage",
                          (unsigned)fs.f_type);
    }
}

static errint_t
register_file(struct cufile_file *file, struct reason *reason)
{
    CUfileDescr_t description = {.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD, .handle.fd = file->fd};
    errint_t error = check_file_system(file->fd, reason);

    if (error)
        return error;
    if (fcntl(file->fd, F_SETFL, O_DIRECT) < 0)
        return reason_set(reason, -errno, "Device", "the file system refuses direct reads");
    return cufile_check(file->cufile->cuFileHandleRegister(&file->handle, &description),
                        "cuFileHandleRegister", reason);
}

errint_t
cufile_open(const struct cufile *cufile, struct backing *backing, struct cufile_file **out,
            struct reason *reason)
{
    struct cufile_file *file = malloc(sizeof(*file));
    errint_t error;

    if (!file)
        return reason_set(reason, -ENOMEM, "Device", "out of memory");
    *file = (struct cufile_file){.cufile = cufile, .fd = descriptors_fresh(backing)};
    error = file->fd < 0 ? reason_set(reason, file->fd, "Device", "the file cannot be opened: %s",
                                      strerror(-file->fd))
                         : register_file(file, reason);
    if (error) {
        if (file->fd >= 0)
            close(file->fd);
        free(file);
        return error;
    }
    *out = file;
    return 0;
}

void
cufile_close(struct cufile_file *file)
{
    if (!file)
        return;
    /* Before the descriptor is closed and its number reused for another file. */
    file->cufile->cuFileHandleDeregister(file->handle);
    close(file->fd);
    free(file);
}

errint_t
cufile_read(const struct cufile_file *file, struct backing *backing, CUdeviceptr memory,
            size_t memory_offset, uint64_t offset, size_t length, size_t valid,
            struct reason *reason)
{
    ssize_t got = file->cufile->cuFileRead(file->handle, (void *)(uintptr_t)memory, length,
                                           (off_t)offset, (off_t)memory_offset);

    if (got == -1)
        return reason_set(reason, -EIO, "Device", "cuFileRead: %s", strerror(errno));
    if (got < 0)
        return reason_set(reason, -EIO, "Device", "cuFileRead: error %zd", -got);
    if ((size_t)got < valid)
        return reason_set(reason, -EIO, "Device", "cuFileRead: found %zd bytes, expected %zu", got,
                          valid);
    return descriptors_verify(backing, file->fd);
}
