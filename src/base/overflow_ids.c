/* SPDX-License-Identifier: Apache-2.0 */
#include "base/overflow_ids.h"

#include "base/file.h"

enum { OVERFLOW_DEFAULT = 65534 }; /* DEFAULT_OVERFLOWUID of Linux */

/* Constant after overflow_ids_init(). */
static uid_t overflow_uid = OVERFLOW_DEFAULT;
static gid_t overflow_gid = OVERFLOW_DEFAULT;

void
overflow_ids_init(void)
{
    overflow_uid = (uid_t)file_read_number("/proc/sys/kernel/overflowuid", "", OVERFLOW_DEFAULT);
    overflow_gid = (gid_t)file_read_number("/proc/sys/kernel/overflowgid", "", OVERFLOW_DEFAULT);
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
