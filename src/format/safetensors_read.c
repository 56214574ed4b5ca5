/* SPDX-License-Identifier: Apache-2.0 */
/* Reads headers from open files. See safetensors.h. */
#include "format/safetensors.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads all of [offset, offset + length). */
static errint_t
read_exactly(int fd, char *to, size_t length, uint64_t offset, struct reason *reason)
{
    while (length) {
        ssize_t got = pread(fd, to, length, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            errint_t error = -errno;
            return reason_set(reason, error, "IoError", "reading the header: %s", strerror(-error));
        }
        if (got == 0)
            return reason_set(reason, -ESTALE, "IoError",
                              "the file became shorter while its header was read");
        to += got;
        offset += (uint64_t)got;
        length -= (size_t)got;
    }
    return 0;
}

/* Reads [have, end) into the page cache, by way of a buffer of ST_FIRST_READ bytes. */
static errint_t
read_through(int fd, char *buffer, uint64_t have, uint64_t end, struct reason *reason)
{
    errint_t error = 0;

    while (!error && have < end) {
        size_t length = end - have < ST_FIRST_READ ? (size_t)(end - have) : ST_FIRST_READ;

        error = read_exactly(fd, buffer, length, have, reason);
        have += length;
    }
    return error;
}

/* Wipes and frees `bytes`: after a short header they are weights, which no core dump may contain.
 */
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
    error = read_exactly(fd, text, n, 8, reason);
    if (!error)
        error = st_table_parse(text, n, file_size, table, reason);
    free(text);
    return error;
}

errint_t
st_table_read_admitted(int fd, uint64_t file_size,
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
    error = read_exactly(fd, bytes, have, 0, reason);
    if (!error)
        error = st_header_length(bytes, file_size, &n, reason);
    if (!error && n > ST_LARGE_HEADER)
        error = read_through(fd, bytes, have, 8 + n, reason);
    if (error || 8 + n > have) {
        wipe(bytes, have);
        bytes = NULL;
    }
    if (!error)
        error = admit(arg, n, reason);
    if (!error)
        error = bytes ? st_table_parse(bytes + 8, n, file_size, table, reason)
                      : read_whole_header(fd, n, file_size, table, reason);
    if (bytes)
        wipe(bytes, have);
    return error;
}

static errint_t
admit_always(void *arg, uint64_t n, struct reason *reason)
{
    (void)arg;
    (void)n;
    (void)reason;
    return 0;
}

errint_t
st_table_read(int fd, uint64_t file_size, struct st_table **table, struct reason *reason)
{
    return st_table_read_admitted(fd, file_size, admit_always, NULL, table, reason);
}
