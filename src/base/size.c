/* SPDX-License-Identifier: Apache-2.0 */
#include "base/size.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool
size_read(const char *text, uint64_t *size)
{
    static const char units[] = "KMGT";
    uint64_t value = 0, unit = 1;
    const char *at = text, *letter;

    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return false;
    if (at == text)
        return false;
    /* Either letter case. Without the check a space would match the NUL that ends `units`. */
    letter = (*at & ~0x20) ? strchr(units, *at & ~0x20) : NULL;
    if (letter) {
        uint64_t base = strcasecmp(at + 1, "B") == 0 ? 1000 : 1024;

        if (at[1] && base == 1024 && strcasecmp(at + 1, "iB") != 0)
            return false;
        for (const char *step = units; step <= letter; step++)
            unit *= base;
    } else if (*at && strcasecmp(at, "B") != 0) {
        return false;
    }
    return !__builtin_mul_overflow(value, unit, size) && *size > 0 && *size <= INT64_MAX;
}

bool
number_read(const char *text, uint32_t most, uint32_t *number)
{
    char *end;
    long value = strtol(text, &end, 10);

    if (end == text || *end || value < 1 || value > (long)most)
        return false;
    *number = (uint32_t)value;
    return true;
}
