/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

#include "base/eintr.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

ssize_t
file_read(int fd, void *to, size_t length, uint64_t offset)
{
    unsigned repeats = 0;
    size_t done = 0;

    while (done < length) {
        ssize_t got = pread(fd, (char *)to + done, length - done, (off_t)(offset + done));

        if (got < 0 && eintr_repeat(&repeats))
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        done += (size_t)got;
        repeats = 0;
    }
    return (ssize_t)done;
}

errint_t
file_read_through(int fd, uint64_t offset, uint64_t end)
{
    char bounce[16384];

    while (offset < end) {
        size_t length = end - offset < sizeof(bounce) ? (size_t)(end - offset) : sizeof(bounce);
        ssize_t got = file_read(fd, bounce, length, offset);

        if (got < 0)
            return (errint_t)got;
        if ((size_t)got < length)
            return -ENODATA;
        offset += length;
    }
    return 0;
}

errint_t
file_write(int fd, const void *from, size_t length, uint64_t offset)
{
    unsigned repeats = 0;

    for (size_t done = 0; done < length;) {
        ssize_t put = pwrite(fd, (const char *)from + done, length - done, (off_t)(offset + done));

        if (put < 0 && eintr_repeat(&repeats))
            continue;
        if (put <= 0)
            return put < 0 ? -errno : -EIO;
        done += (size_t)put;
        repeats = 0;
    }
    return 0;
}

bool
file_may_have_acl(int fd)
{
    char link[sizeof("/proc/self/fd/") + 3 * sizeof(int)];

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    return getxattr(link, "system.posix_acl_access", NULL, 0) >= 0 ||
           (errno != ENODATA && errno != EOPNOTSUPP);
}

errint_t
file_read_text(const char *path, struct buffer *text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    errint_t error = fd < 0 ? -errno : 0;
    unsigned repeats = 0;
    char part[16384];
    ssize_t got;

    buffer_add_text(text, "");
    if (error)
        return error;
    while (!error && (got = read(fd, part, sizeof(part))) != 0) {
        if (got > 0)
            buffer_add(text, part, (size_t)got);
        else if (!eintr_repeat(&repeats))
            error = -errno;
        if (text->length > FILE_TEXT_MOST)
            error = -EFBIG;
    }
    close(fd);
    return buffer_failed(text) ? -ENOMEM : error;
}

uint64_t
file_read_number(const char *path, const char *key, uint64_t none)
{
    struct buffer text = BUFFER_INIT;
    const char *at;

    file_read_text(path, &text);
    at = text.data ? strstr(text.data, key) : NULL;
    if (at)
        at += strlen(key) + strspn(at + strlen(key), " \t");
    if (at && *at >= '0' && *at <= '9')
        none = strtoull(at, NULL, 10);
    buffer_free(&text);
    return none;
}

char *
path_join(const char *directory, const char *name)
{
    char *path;

    if (!*directory)
        return strdup(name);
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}
