/* SPDX-License-Identifier: Apache-2.0 */
/* See bytes.h. */
#include "format/bytes.h"

#include "base/file.h"

#include <errno.h>

errint_t
bytes_read_failed(errint_t error, struct reason *reason)
{
    if (error == -ENODATA)
        return reason_set(reason, -ESTALE, "IoError",
                          "the file became shorter while its header was read");
    return reason_errno(reason, error, "reading the header");
}

errint_t
bytes_read_at(int fd, void *to, size_t length, uint64_t offset, struct reason *reason)
{
    ssize_t got = file_read(fd, to, length, offset);

    if (got >= 0 && (size_t)got < length)
        got = -ENODATA;
    return got < 0 ? bytes_read_failed((errint_t)got, reason) : 0;
}
