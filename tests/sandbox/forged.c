/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forged: loaded before a program's libraries (LD_PRELOAD), simulates a malicious mount, or a
 * source that changes at a certain time.
 *
 *   FORGED_XATTR=NAME=VALUE  the xattr NAME has this value on all files that have it
 *   GROWING_XATTR=1          that value is empty at the first, third, fifth and so on read
 *   REPLACE_AT_XATTR=NAME    at the first read of the xattr NAME, renames the file REPLACE_FROM to
 *                            REPLACE_TO and waits until every mount shows that
 *   NO_LISTING=1             directories can only be opened with O_PATH
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static void
replace_once(const char *name)
{
    static atomic_bool done;
    const char *wanted = getenv("REPLACE_AT_XATTR");

    if (!wanted || strcmp(wanted, name) != 0 || atomic_exchange(&done, true))
        return;
    if (rename(getenv("REPLACE_FROM"), getenv("REPLACE_TO")) < 0)
        abort();
    sleep(2);
}

ssize_t
getxattr(const char *path, const char *name, void *value, size_t size)
{
    ssize_t (*next)(const char *, const char *, void *, size_t) =
        (ssize_t(*)(const char *, const char *, void *, size_t))dlsym(RTLD_NEXT, "getxattr");
    static atomic_uint reads;
    const char *forged = getenv("FORGED_XATTR");
    size_t length = strlen(name);
    ssize_t found;

    replace_once(name);
    found = next(path, name, value, size);
    if (!forged || (found < 0 && errno != ERANGE) || strncmp(forged, name, length) != 0 ||
        forged[length] != '=')
        return found;
    forged += length + 1;
    if (getenv("GROWING_XATTR") && atomic_fetch_add(&reads, 1) % 2 == 0)
        forged = "";
    length = strlen(forged);
    if (size > 0 && size < length) {
        errno = ERANGE;
        return -1;
    }
    if (size > 0)
        memcpy(value, forged, length);
    return (ssize_t)length;
}

static int
is_listing(int directory, const char *path, int flags)
{
    struct stat st;

    return getenv("NO_LISTING") && !(flags & O_PATH) && fstatat(directory, path, &st, 0) == 0 &&
           S_ISDIR(st.st_mode);
}

/* Without O_CREAT and O_TMPFILE there is no mode argument, and `next` ignores the 0. */
#define OPENS(name, parameters, directory, ...)                                                    \
    int name parameters                                                                            \
    {                                                                                              \
        int(*next) parameters = (int(*) parameters)dlsym(RTLD_NEXT, #name);                        \
        va_list arguments;                                                                         \
        mode_t mode = 0;                                                                           \
                                                                                                   \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                       \
            va_start(arguments, flags);                                                            \
            mode = va_arg(arguments, mode_t);                                                      \
            va_end(arguments);                                                                     \
        }                                                                                          \
        if (is_listing(directory, path, flags)) {                                                  \
            errno = EACCES;                                                                        \
            return -1;                                                                             \
        }                                                                                          \
        return next(__VA_ARGS__, mode);                                                            \
    }

OPENS(open, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPENS(open64, (const char *path, int flags, ...), AT_FDCWD, path, flags)
OPENS(openat, (int fd, const char *path, int flags, ...), fd, fd, path, flags)
OPENS(openat64, (int fd, const char *path, int flags, ...), fd, fd, path, flags)
