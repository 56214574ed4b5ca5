/* SPDX-License-Identifier: Apache-2.0 */
/* struct fstfs: the engine, workers and devices that all checkpoints of a handle share. */
#ifndef FSTFS_CLIENT_LIBRARY_H
#define FSTFS_CLIENT_LIBRARY_H

#include "fstfs.h"
#include "io/io.h"
#include "io/workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct fstfs {
    struct io *io;
    struct workers *workers; /* submit reads and copy; the engine has its own threads */
    unsigned worker_count;
    unsigned generation; /* of the process that created it; see library_is_inherited() */
    bool no_source; /* fstfs_options */
    atomic_uint_fast64_t own_bytes; /* read without the engine's buffers; it counts the others */
    atomic_uint_fast64_t cufile_reads, cufile_bytes; /* read by cuFile, not by the engine */
    /* Held while a device is opened, cuFile is loaded or a file is registered with it, which may
     * take seconds. Not needed to read the list of devices. */
    pthread_mutex_t loading_lock;
    /* Modified with loading_lock held; devices are freed by fstfs_free(). */
    _Atomic(struct fstfs_device *) devices;
};

/* Whether this process inherited the handle by fork(). It then has none of the handle's threads. */
bool library_is_inherited(const struct fstfs *fstfs);

#endif
