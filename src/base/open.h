/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens files of the source. All opens go through this module, since the sandboxed daemon cannot
 * open targets of symbolic links outside of the source and asks a helper process to do so.
 */
#ifndef FSTFS_BASE_OPEN_H
#define FSTFS_BASE_OPEN_H

#include "base/error.h"
#include "base/resolve.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* As openat(2), repeated after EINTR as in eintr.h: a descriptor or a negative errno. After
 * resolve_exclude(), only relative paths are accepted, and these errors are possible: -ELOOP, the
 * path crosses the excluded device; -ENXIO, it is neither a regular file nor a directory. If no
 * descriptor is free, waits for one, at most about 250 ms. Any thread. */
int open_at(int directory, const char *path, int flags);
/* The same, but does not wait for a free descriptor, and after resolve_exclude() enters only the
 * mount with this ID (0: any), those of `directory` and "/", and those of block devices. -EREMOTE:
 * the path leads through another one, whose ID is stored in *refused unless that is NULL. */
int open_at_mount(int directory, const char *path, int flags, uint64_t mount, uint64_t *refused);

/* As fstatat(2), following links; paths as in open_at(), but -EXDEV for the excluded device. Any
 * thread. */
errint_t open_stat(int directory, const char *path, struct stat *st);

/* As open_at() with O_PATH, following links, but, like resolve_path(), enters only `mounts`, and so
 * waits only for their file systems. -EXDEV: as open_stat(). Any thread. */
int open_local(int directory, const char *path, const struct resolve_mounts *mounts,
               uint64_t *refused);

/* Opens the file that `fd` refers to again, even if its path now refers to another file. Returns a
 * descriptor, or a negative errno, also if /proc is not mounted. Any thread. */
int open_again(int fd, int flags);

/*
 * From then on, open_at(), open_stat() and open_local() follow a link that belongs to neither root
 * nor this process's user only if its owner may be able to search each directory on the path of its
 * target, and to read the target (a directory: to list and search it). This is decided by these
 * rules, owners and modes; a permission of a group counts as the owner's. -EPERM: the link is not
 * followed. Otherwise names of the mount would reveal to users what only this process can reach.
 * Call it before other threads are started.
 */
void open_check_link_owners(const struct resolve_link_rules *rules);

/* Sets a fallback for EACCES, which is also Landlock's error. It has the arguments and results of
 * open_at_mount(), and is called by any thread. NULL: none. Call it before other threads are
 * started. */
void open_set_other(int (*other)(int directory, const char *path, int flags, uint64_t mount));

#endif
