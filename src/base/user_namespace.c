/* SPDX-License-Identifier: Apache-2.0 */
#include "base/user_namespace.h"

#include "base/buffer.h"
#include "base/file.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

bool
user_namespace_is_initial(void)
{
    struct buffer map = BUFFER_INIT;
    unsigned long inside, outside, count;
    errint_t error = file_read_text("/proc/self/uid_map", &map);
    bool is_initial = error == 0 &&
                      sscanf(map.data, "%lu %lu %lu", &inside, &outside, &count) == 3 &&
                      inside == 0 && outside == 0 && count == UINT32_MAX;

    if (error == -ENOENT) /* /proc is not mounted, or Linux is built without user namespaces */
        is_initial = access("/proc/self", F_OK) == 0;
    buffer_free(&map);
    return is_initial;
}
