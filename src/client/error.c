/* SPDX-License-Identifier: Apache-2.0 */
#include "client/error.h"

#include "fstfs.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

static __thread char error_text[1024];

errint_t
fail(errint_t error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(error_text, sizeof(error_text), format, arguments);
    va_end(arguments);
    return error;
}

errint_t
fail_no_memory(void)
{
    return fail(-ENOMEM, "out of memory");
}

errint_t
check_reserved(const char *structure, const uint64_t *reserved, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (reserved[i])
            return fail(-EINVAL,
                        "struct %s: reserved[%zu] is %#llx, expected 0: the program needs a newer "
                        "libfstfs than " FSTFS_VERSION ", or did not clear the structure",
                        structure, i, (unsigned long long)reserved[i]);
    return 0;
}

const char *
fstfs_error(void)
{
    return error_text;
}
