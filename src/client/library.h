/* SPDX-License-Identifier: Apache-2.0 */
/* struct fstfs: what all reads of one fstfs_new() share. */
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
    struct workers *workers; /* submit reads, and copy; beside the engine's threads */
    unsigned worker_count;
    bool no_source; /* fstfs_options */
    atomic_uint_fast64_t own_bytes; /* returned without the engine's buffers */
    atomic_uint_fast64_t cufile_reads, cufile_bytes; /* without the engine's storage */
    /* Held while a device is opened, cuFile is loaded, or a file is registered with it: for
     * seconds. Not needed to look at the devices. */
    pthread_mutex_t loading_lock;
    /* Changed with loading_lock held; devices live until fstfs_free(). */
    _Atomic(struct fstfs_device *) devices;
};

#endif
