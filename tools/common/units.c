/* SPDX-License-Identifier: Apache-2.0 */
#include "common/units.h"

#include <stdio.h>

char *
units_bytes(char out[UNITS_SIZE], double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    unsigned unit = 0;

    for (; bytes >= 999.5 && unit < 5; unit++)
        bytes /= 1000;
    snprintf(out, UNITS_SIZE,
             unit == 0 || bytes >= 99.95 ? "%.0f %s"
             : bytes >= 9.995            ? "%.1f %s"
                                         : "%.2f %s",
             bytes, units[unit]);
    return out;
}
