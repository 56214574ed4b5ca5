/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How files of the source are opened: all of them here, so that a process that has
 * shut itself out of the places where links lead can ask another one.
 */
#ifndef FSTFS_BASE_OPEN_H
#define FSTFS_BASE_OPEN_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/stat.h>

/* As openat(2): a descriptor, or a negative errno, -ELOOP for what is left out. Once a
 * device is left out, -ENXIO for what is neither a file nor a directory. Any thread. */
int open_at(int directory, const char *path, int flags);
/* As fstatat(2), through links; -EXDEV for what is left out. Any thread. */
errint_t open_stat(int directory, const char *path, struct stat *st);

/* Leaves out what is on this device, the mount itself, also as a place on the way: to
 * walk there while it waits for an answer of this process could be to wait for ever. To
 * be set while there is but one thread. */
void open_leave_out(dev_t device);

/* What open_at() asks where it gets EACCES, which is what Landlock says too. Same
 * arguments, same answers; any thread. To be set while there is but one. NULL: nobody. */
void open_set_other(int (*other)(int directory, const char *path, int flags));

/*
 * `directory` is open on what was at `path`, a real path, once. Where no path leads to
 * it any more, since its file system was unmounted, has died or lies under another one,
 * or it was removed: makes the same descriptor one of the directory that is at `path`
 * now, opened as by O_PATH, and says true. One that was renamed is kept, and links on
 * the path are not followed. Any thread.
 */
bool open_renew(int directory, const char *path);

#endif
