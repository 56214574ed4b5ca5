/* SPDX-License-Identifier: Apache-2.0 */
#include "base/user_namespace.h"

#include "base/buffer.h"
#include "base/file.h"

#include <stdint.h>
#include <stdio.h>

bool
user_namespace_is_initial(void)
{
    struct buffer map = BUFFER_INIT;
    unsigned long inside, outside, count;
    bool is_initial = file_read_text("/proc/self/uid_map", &map) >= 0 &&
                      sscanf(map.data, "%lu %lu %lu", &inside, &outside, &count) == 3 &&
                      inside == 0 && outside == 0 && count == UINT32_MAX;

    buffer_free(&map);
    return is_initial;
}
