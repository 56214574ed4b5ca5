/* SPDX-License-Identifier: Apache-2.0 */
#include "page.h"

#include "base/file.h"

#include <limits.h>
#include <stdio.h>

errint_t
page_read(const char *point, const char *name, struct buffer *page, struct reason *reason)
{
    char path[PATH_MAX], what[64];
    errint_t error;

    if (snprintf(path, sizeof(path), "%s/.fstfs/%s", point, name) >= (int)sizeof(path))
        return reason_errno(reason, -ENAMETOOLONG, ".fstfs");
    error = file_read_text(path, page);
    if (error == -ENOENT || error == -ENOTDIR)
        return reason_set(reason, error, "Gone", "not mounted any more");
    if (error == -ENOTCONN || error == -ECONNABORTED)
        return reason_set(reason, error, "Gone",
                          "its daemon has died; remove the mount with fusermount3 -u");
    snprintf(what, sizeof(what), ".fstfs/%s", name);
    return error ? reason_errno(reason, error, what) : 0;
}
