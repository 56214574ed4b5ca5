/* SPDX-License-Identifier: Apache-2.0 */
/* Reads headers from open files. See safetensors.h. */
#include "format/safetensors.h"

#include "base/file.h"
#include "format/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
        return reason_no_memory(reason);
    error = bytes_read_at(fd, text, n, 8, reason);
    if (!error)
        error = st_table_parse(text, n, file_size, table, reason);
    free(text);
    return error;
}

errint_t
st_table_read(int fd, uint64_t file_size, st_admit *admit, void *arg, struct st_table **table,
              struct reason *reason)
{
    size_t have = file_size < ST_FIRST_READ ? (size_t)file_size : ST_FIRST_READ;
    size_t room = file_size < ST_FIRST_READ ? have + 1 : have; /* never of size 0 */
    char *bytes = malloc(room);
    uint64_t n = 0;
    errint_t error;

    if (!bytes)
        return reason_no_memory(reason);
    error = bytes_read_at(fd, bytes, have, 0, reason);
    if (!error)
        error = st_header_length(bytes, file_size, &n, reason);
    if (!error && n > ST_LARGE_HEADER) {
        error = file_read_through(fd, have, 8 + n);
        if (error)
            error = bytes_read_failed(error, reason);
    }
    if (error || 8 + n > have) {
        wipe(bytes, have);
        bytes = NULL;
    }
    if (!error)
        error = st_admit_bytes(admit, arg, ST_PARSE_FACTOR * n, reason);
    if (!error)
        error = bytes ? st_table_parse(bytes + 8, n, file_size, table, reason)
                      : read_whole_header(fd, n, file_size, table, reason);
    if (bytes)
        wipe(bytes, have);
    return error;
}
