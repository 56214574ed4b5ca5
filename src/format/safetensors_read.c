/* SPDX-License-Identifier: Apache-2.0 */
/* Reads headers from open files. See safetensors.h. */
#include "format/safetensors.h"

#include "base/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Sets the reason of an error of file_read() or file_read_through(). -ENODATA becomes -ESTALE. */
static errint_t
read_failed(errint_t error, struct reason *reason)
{
    if (error == -ENODATA)
        return reason_set(reason, -ESTALE, "IoError",
                          "the file became shorter while its header was read");
    return reason_set(reason, error, "IoError", "reading the header: %s", strerror(-error));
}

/* Reads all of [offset, offset + length). */
static errint_t
read_header_bytes(int fd, char *to, size_t length, uint64_t offset, struct reason *reason)
{
    ssize_t got = file_read(fd, to, length, offset);

    if (got >= 0 && (size_t)got < length)
        got = -ENODATA;
    return got < 0 ? read_failed((errint_t)got, reason) : 0;
}

/* Wipes and frees the first bytes of a file: after a short header come weights, which must not
 * appear in a core dump. */
static void
wipe(char *bytes, size_t length)
{
    explicit_bzero(bytes, length);
    free(bytes);
}

static errint_t
read_whole_header(int fd, uint64_t n, uint64_t file_size, struct st_table **table,
                  struct reason *reason)
{
    char *text = malloc(n + 1); /* never of size 0 */
    errint_t error;

    if (!text)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the header");
    error = read_header_bytes(fd, text, n, 8, reason);
    if (!error)
        error = st_table_parse(text, n, file_size, table, reason);
    free(text);
    return error;
}

errint_t
st_table_read(int fd, uint64_t file_size,
              errint_t (*admit)(void *arg, uint64_t n, struct reason *reason), void *arg,
              struct st_table **table, struct reason *reason)
{
    size_t have = file_size < ST_FIRST_READ ? (size_t)file_size : ST_FIRST_READ;
    size_t room = file_size < ST_FIRST_READ ? have + 1 : have; /* never of size 0 */
    char *bytes = malloc(room);
    uint64_t n = 0;
    errint_t error;

    if (!bytes)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the header");
    error = read_header_bytes(fd, bytes, have, 0, reason);
    if (!error)
        error = st_header_length(bytes, file_size, &n, reason);
    if (!error && n > ST_LARGE_HEADER) {
        error = file_read_through(fd, have, 8 + n);
        if (error)
            error = read_failed(error, reason);
    }
    if (error || 8 + n > have) {
        wipe(bytes, have);
        bytes = NULL;
    }
    if (!error && admit)
        error = admit(arg, n, reason);
    if (!error)
        error = bytes ? st_table_parse(bytes + 8, n, file_size, table, reason)
                      : read_whole_header(fd, n, file_size, table, reason);
    if (bytes)
        wipe(bytes, have);
    return error;
}
