/* SPDX-License-Identifier: Apache-2.0 */
/* Whole reads and writes of open files; paths. Any thread. */
#ifndef FSTFS_BASE_FILE_H
#define FSTFS_BASE_FILE_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* As pread(2), repeated after short reads, and after EINTR as in eintr.h. Returns `length`, fewer
 * bytes at the end of the file, or a negative errno. */
ssize_t file_read(int fd, void *to, size_t length, uint64_t offset);
/* As pwrite(2), repeated until all bytes are written, and after EINTR as in eintr.h. */
errint_t file_write(int fd, const void *from, size_t length, uint64_t offset);

/* Reads bytes [offset, end) and discards them, so that they are in the page cache. -ENODATA: the
 * file ends before `end`. */
errint_t file_read_through(int fd, uint64_t offset, uint64_t end);

/* Whether the file has an access control list beyond its permission bits (acl(5)), or may have one.
 * `fd` may be open with O_PATH. */
bool file_may_have_acl(int fd);

/* Appends the content of a small file, such as one of /proc, to `text`. Afterwards text->data is
 * not NULL, unless memory was short. -EFBIG: `text` is longer than FILE_TEXT_MOST bytes. Others:
 * -ENOMEM, errors of open(2) and read(2). */
#define FILE_TEXT_MOST ((size_t)64 << 20)
errint_t file_read_text(const char *path, struct buffer *text);

/* Returns the number after the first occurrence of `key`, which spaces may follow, in a small file,
 * such as one of /proc or /sys; `none` if there is none, or the file cannot be read. */
uint64_t file_read_number(const char *path, const char *key, uint64_t none);

/* "directory/name", or "name" if `directory` is empty. malloc'ed; NULL: out of memory. */
char *path_join(const char *directory, const char *name);

#endif
