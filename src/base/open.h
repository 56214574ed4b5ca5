/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens files of the source. All opens are here, since the sandboxed daemon cannot open files that
 * links outside of the source lead to: it asks a helper process.
 */
#ifndef FSTFS_BASE_OPEN_H
#define FSTFS_BASE_OPEN_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/stat.h>

/* As openat(2): a descriptor or a negative errno. -ELOOP: the path leads through the excluded
 * device; -ENXIO: once a device is excluded, neither a file nor a directory. Any thread. */
int open_at(int directory, const char *path, int flags);

/* The user on whose behalf open_path_as() resolves a path. */
struct open_rules {
    uid_t user; /* the thread's file system user ID */
    /* Whether he may search (X_OK) the directory that is open as `fd`: 0 or -EACCES. NULL: the
     * kernel decides, by the credentials of the thread. */
    errint_t (*permits)(void *arg, int fd, int mask);
    void *arg;
};

/* Opens `path` with O_PATH by these rules, following links, in this process. A descriptor or a
 * negative errno; -ELOOP as above. */
int open_path_as(int directory, const char *path, const struct open_rules *rules);
/* As fstatat(2), following links. -EXDEV: the excluded device. Any thread. */
errint_t open_stat(int directory, const char *path, struct stat *st);

/* Excludes a device, the mount itself, from all paths: a lookup there would wait for this process.
 * Call it before other threads are started. */
void open_exclude(dev_t device);

/* Sets a second opener, which open_at() calls after EACCES (Landlock's error, too): same arguments
 * and results, any thread. NULL: none. Call it before other threads are started. */
void open_set_other(int (*other)(int directory, const char *path, int flags));

/*
 * `directory` was opened at `path`, a real path. If no path leads to that directory any more (it
 * was removed, or its file system was unmounted, has died or is mounted over), the descriptor is
 * replaced by one of the directory that is at `path` now, opened with O_PATH without following
 * links, and the function returns true. A directory that was renamed is kept. Any thread.
 */
bool open_renew(int directory, const char *path);

#endif
