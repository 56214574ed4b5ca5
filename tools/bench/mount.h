/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mounts: one of the bench's own, and the one a path lies on.
 *
 * A mount of the bench's own is kept by a guard, a process in a session of its
 * own that mounts in a private directory and takes all of it away again when the
 * bench lets go of its end of a pipe: when it says so, or when it dies, however
 * it dies.
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
    pid_t guard; /* 0: it is not ours */
    int hold; /* our end of the pipe to the guard */
};

/* Finds the program: beside this one, else in PATH. */
errint_t mount_program(char program[PATH_MAX], struct reason *reason);

/* Mounts `source`. -EINTR when a signal came before it was there. */
errint_t mount_begin(const char *program, const char *source, struct mount *mount,
                     struct reason *reason);
/* Unmounts, and waits for it. One that is not ours is left alone. */
void mount_end(struct mount *mount);

/*
 * Whether `path`, absolute and real, lies on a mount of fstfs: then what it is,
 * and in `source` the directory of the source that shows there (or what would be
 * the file of it, of the same name). -ENOENT: it does not.
 */
errint_t mount_of(const char *path, struct mount *mount, char source[PATH_MAX],
                  struct reason *reason);

/* Bytes that the mount's daemon has read of its storage so far; 0: it does not say. */
uint64_t mount_storage_bytes(const struct mount *mount);

#endif
