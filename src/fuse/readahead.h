/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's readahead on this mount, which a privileged daemon may set through the mount's bdi
 * in sysfs. FUSE starts with 128 KiB; the reply to INIT can only lower it.
 *
 * The kernel copies the value into the open file (in do_dentry_open()) shortly after the daemon has
 * answered the open, without notifying the daemon. So the value is set for each file before the
 * answer, and is not changed until a millisecond after the last answer. If the kernel delays a
 * thread for longer, its file gets the value of another file, which affects only speed.
 */
#ifndef FSTFS_FUSE_READAHEAD_H
#define FSTFS_FUSE_READAHEAD_H

#include "base/error.h"
#include "base/extent.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct readahead {
    int fd; /* descriptor of the setting in sysfs; -1: not allowed */
    bool is_by_file; /* to be chosen for each file */
    pthread_mutex_t turn; /* guards bytes; opens queue here while the value changes */
    uint64_t bytes; /* set last; 0: not known */
    atomic_uint answering; /* opens that have begun and not ended */
    atomic_uint_fast64_t answered_at; /* monotonic_ns() when the last one ended */
};

/* Opens the setting of the mount's device, before the sandbox is entered. -EACCES or -EROFS if the
 * daemon may not change it; then only readahead_destroy() may be called. */
errint_t readahead_init(struct readahead *readahead, dev_t device);
void readahead_destroy(struct readahead *readahead);

/*
 * Sets the readahead to `bytes` (whole KiB; 0: any value), for the open that is answered before
 * readahead_end_open(), which must be called also after an error. If the value changes, waits until
 * no open is being answered and the last answer is a millisecond old. Any thread.
 */
errint_t readahead_begin_open(struct readahead *readahead, uint64_t bytes);
void readahead_end_open(struct readahead *readahead);

/*
 * Returns the best readahead for a file, in bytes; 0: any value. A file of one tensor gets up to 1
 * MiB, since readahead stops at its end, but at most an eighth of its size, so that a program that
 * maps it and reads a few rows does not cause all of it to be read. In a file of several tensors,
 * readahead continues past the end of each tensor that is read. Such a file gets a fraction of
 * their mean size, so that reading some of the tensors reads about 5 % too much. `normal`: the
 * mount's default, which is the minimum.
 */
uint64_t readahead_for_file(const struct extent_list *list, uint64_t normal);

#endif
