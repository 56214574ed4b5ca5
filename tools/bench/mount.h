/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mounts of fstfs: temporary ones, and the one that a path is on.
 *
 * A guard process in a session of its own unmounts a temporary mount and removes its directory when
 * its pipe is closed: by mount_end(), or by the death of this process. If fstfs mounts after that,
 * it unmounts by itself (--pid).
 */
#ifndef FSTFS_BENCH_MOUNT_H
#define FSTFS_BENCH_MOUNT_H

#include "base/error.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct mount {
    char point[PATH_MAX];
    pid_t daemon;
    pid_t guard; /* 0: not a temporary mount */
    int hold; /* our end of the guard's pipe */
};

/* Finds the fstfs program: next to this one, else in PATH. */
errint_t mount_program(char program[PATH_MAX], struct reason *reason);

/* Mounts `source` and waits until it is ready. */
errint_t mount_begin(const char *program, const char *source, struct mount *mount,
                     struct reason *reason);
/* Unmounts a temporary mount and waits for the daemon. Does nothing to others. */
void mount_end(struct mount *mount);

/*
 * Describes the fstfs mount that `path` (absolute, without symbolic links) is on, if any. `source`
 * is the path in the source that corresponds to it; a merged file's name may not exist there.
 * -ENOENT: it is not on a mount of fstfs.
 */
errint_t mount_of(const char *path, struct mount *mount, char source[PATH_MAX],
                  struct reason *reason);

/* Bytes that the mount's daemon has read from storage so far; 0: unknown. */
uint64_t mount_storage_bytes(const struct mount *mount);

#endif
