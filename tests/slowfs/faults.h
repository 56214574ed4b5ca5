/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults that slowfs injects: rules in a text file, which is read again whenever it changes, so
 * that a test can turn them on and off while the file system is mounted.
 *
 *   OPERATION PATTERN [OFFSET+LENGTH] ACTION[=VALUE] [xCOUNT]
 *
 * OPERATION  lookup, getattr, opendir, readdir, open, read, flush (close(2)), or *; open-direct and
 *            read-direct: only those of a descriptor with O_DIRECT
 * PATTERN    of fnmatch(3), for the path below the source: model-00001*; no spaces
 * range      only reads that overlap it
 * ACTION     error=NAME   fails with EIO, ESTALE, EAGAIN, EINTR, EINPROGRESS, EINVAL, ENOENT,
 *                         EACCES, ENOMEM or EOPNOTSUPP
 *            short=BYTES  a read returns at most this number of bytes
 *            flip         a read returns the complement of its first byte in the range
 *            zeros        a read returns zeros
 *            delay=US     waits for US microseconds
 *            hang         waits until the rules change, and then tries them again
 *            truncate=BYTES, rewrite, remove, replace=OTHER
 *                         changes the file before the request is served: truncates it, complements
 *                         each of its bytes in place, removes it, or renames OTHER, a path below
 *                         the source, to it
 * xCOUNT     the rule matches only COUNT times; counted from 0 when the rules change
 *
 * The first rule that matches applies. A line starting with # is a comment. A test replaces the
 * file with rename(2).
 */
#ifndef SLOWFS_FAULTS_H
#define SLOWFS_FAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct faults;

#define FAULTS_OTHER_SIZE 256

enum change { CHANGE_NONE, CHANGE_TRUNCATE, CHANGE_REWRITE, CHANGE_REMOVE, CHANGE_REPLACE };

/* The faults injected into a request; all zero: none. */
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

/* The rules of a file, which need not exist yet. NULL: out of memory. */
struct faults *faults_new(const char *file);

/* Returns the faults to inject into a request, after the delays of the rules. Any thread. */
struct fault faults_for_request(struct faults *faults, const char *operation, const char *path,
                                off_t offset, size_t length);

#endif
