/* SPDX-License-Identifier: Apache-2.0 */
/* See bytes.h. */
#include "format/bytes.h"

#include "base/file.h"

#include <errno.h>
#include <string.h>

errint_t
bytes_read_at(int fd, void *to, size_t length, uint64_t offset, struct reason *reason)
{
    ssize_t got = file_read(fd, to, length, offset);

    if (got < 0)
        return reason_set(reason, (errint_t)got, "IoError", "reading the header: %s",
                          strerror((int)-got));
    if ((size_t)got < length)
        return reason_set(reason, -ESTALE, "IoError",
                          "the file became shorter while its header was read");
    return 0;
}
