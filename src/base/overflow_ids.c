/* SPDX-License-Identifier: Apache-2.0 */
#include "base/overflow_ids.h"

#include "base/buffer.h"
#include "base/file.h"

#include <stdlib.h>

enum { OVERFLOW_DEFAULT = 65534 }; /* DEFAULT_OVERFLOWUID of Linux */

/* Constant after overflow_ids_init(). */
static uid_t overflow_uid = OVERFLOW_DEFAULT;
static gid_t overflow_gid = OVERFLOW_DEFAULT;

static unsigned
read_setting(const char *path)
{
    struct buffer text = BUFFER_INIT;
    unsigned id = OVERFLOW_DEFAULT;

    if (file_read_text(path, &text) == 0)
        id = (unsigned)strtoul(text.data, NULL, 10);
    buffer_free(&text);
    return id;
}

void
overflow_ids_init(void)
{
    overflow_uid = read_setting("/proc/sys/kernel/overflowuid");
    overflow_gid = read_setting("/proc/sys/kernel/overflowgid");
}

bool
is_same_user(uid_t a, uid_t b)
{
    return a == b && !is_overflow_uid(a);
}

bool
is_overflow_uid(uid_t id)
{
    return id == overflow_uid;
}

bool
is_overflow_gid(gid_t id)
{
    return id == overflow_gid;
}
