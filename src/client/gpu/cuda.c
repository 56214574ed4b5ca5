/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/cuda.h"

#include <dlfcn.h>
#include <errno.h>

#define STRING_OF(name, parameters) #name,
static const char *const names[] = {CUDA_FUNCTIONS(STRING_OF)};
#undef STRING_OF

errint_t
cuda_load(struct cuda *cuda, struct reason *reason)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void **function = (void **)cuda;
    struct reason why;

    if (!library)
        return reason_set(reason, -ENODEV, "Device", "the CUDA driver is not installed: %s",
                          dlerror());
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        function[i] = dlsym(library, names[i]);
        if (!function[i])
            return reason_set(reason, -ENODEV, "Device", "the CUDA driver has no %s", names[i]);
    }
    if (CUDA_CALL(cuda, &why, cuInit, 0) < 0)
        return reason_set(reason, -ENODEV, "Device", "the CUDA driver does not work: %s", why.text);
    return 0;
}

errint_t
cuda_check(const struct cuda *cuda, CUresult result, const char *function, struct reason *reason)
{
    const char *name;

    if (result == CUDA_SUCCESS)
        return 0;
    if (cuda->cuGetErrorName(result, &name) != CUDA_SUCCESS)
        name = "an error without a name";
    return reason_set(reason, -EIO, "Device", "%s: %s (%d)", function, name, (int)result);
}
