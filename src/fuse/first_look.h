/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether there is anything in the source that fstfs is for, before it is mounted.
 *
 * Another process looks, which is killed where it takes long: storage that does not answer must
 * not keep a mount from being made. It looks as far as the first file that begins as a
 * safetensors file does, and no farther than the limits below.
 */
#ifndef FSTFS_FUSE_FIRST_LOOK_H
#define FSTFS_FUSE_FIRST_LOOK_H

enum {
    FIRST_LOOK_MS = 300,
    FIRST_LOOK_DIRECTORIES = 1000,
    FIRST_LOOK_ENTRIES = 20000,
};

/* Warns where all of `source` was looked at and has no checkpoint that can be read. For a process
 * with one thread. */
void first_look(const char *source);

#endif
