/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks for a checkpoint in the source before the mount, to warn the user if there is none.
 *
 * A child process does this and is killed after a time limit, because storage that hangs must not
 * prevent mounting. It stops at the first file that starts like a checkpoint, or at the limits
 * below.
 */
#ifndef FSTFS_FUSE_FIRST_LOOK_H
#define FSTFS_FUSE_FIRST_LOOK_H

enum {
    FIRST_LOOK_MS = 300,
    FIRST_LOOK_DIRECTORIES = 1000,
    FIRST_LOOK_ENTRIES = 20000,
};

/* Warns if the whole `source` was searched and has no readable checkpoint. Requires a process with
 * one thread. */
void first_look(const char *source);

#endif
