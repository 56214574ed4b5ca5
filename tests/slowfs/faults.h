/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults that a test wants of slowfs: rules in a text file, read again whenever it
 * changes, so that a test turns them on and off while the file system is in use.
 *
 *   OPERATION PATTERN [OFFSET+LENGTH] ACTION[=VALUE] [xCOUNT]
 *
 * OPERATION  lookup, getattr, open, read, or *; open-direct and read-direct: only
 *            those of a descriptor with O_DIRECT
 * PATTERN    of fnmatch(3), for the path below the source: model-00001*; no spaces
 * range      only reads that touch it
 * ACTION     error=NAME   EIO, ESTALE, EAGAIN, EINTR, EINVAL, ENOENT, EACCES, ENOMEM
 *            short=BYTES  a read gives at most so many
 *            flip         a read gives the complement of its first byte in the range
 *            zeros        a read gives zeros
 *            delay=US     so much longer
 *            hang         until the file changes; then the rules are tried again
 *            truncate=BYTES, rewrite, remove, replace=OTHER
 *                         the file is so changed before the request is served: cut off;
 *                         each of its bytes complemented in place; gone; OTHER, a path
 *                         below the source, renamed to its name
 * xCOUNT     only the first so many times; counted anew when the file changes
 *
 * Rules are tried in the file's order; the first that fits is the one. A line
 * starting with # is a comment. A test replaces the file with rename(2).
 */
#ifndef SLOWFS_FAULTS_H
#define SLOWFS_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct faults;

#define FAULTS_OTHER_SIZE 256

enum change { CHANGE_NONE, CHANGE_TRUNCATE, CHANGE_REWRITE, CHANGE_REMOVE, CHANGE_REPLACE };

/* What a request is to suffer; all zero: nothing. */
struct fault {
    int error; /* to reply, positive */
    size_t most; /* bytes to reply, when `is_short` */
    bool is_short;
    bool flips;
    off_t flip_at; /* in the file */
    bool zeros;
    enum change change; /* of the file */
    off_t size; /* to truncate it to */
    char other[FAULTS_OTHER_SIZE]; /* to replace it with */
};

/* Rules of a file that need not be there yet. NULL: no memory. */
struct faults *faults_new(const char *file);

/* What a request is to suffer, after having waited as the rules say. Any thread. */
struct fault faults_meet(struct faults *faults, const char *operation, const char *path,
                         off_t offset, size_t length);

#endif
