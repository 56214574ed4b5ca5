/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of src/client share and nobody else sees.
 */
#ifndef FSTFS_CLIENT_PRIVATE_H
#define FSTFS_CLIENT_PRIVATE_H

#include "base/error.h"
#include "base/extent.h"
#include "fstfs.h"
#include "io/io.h"
#include "io/workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* At most so many threads copy for one fstfs, beside those of the engine. */
enum { CLIENT_WORKERS = 8 };

struct cufile_file;

struct fstfs {
    struct io *io;
    struct workers *workers;
    unsigned worker_count;
    bool no_source;
    atomic_uint_fast64_t own_bytes; /* handed out past the engine's buffers */
    atomic_uint_fast64_t cufile_reads, cufile_bytes; /* past the engine's storage too */
    /* Held while a device is opened, and while cuFile is loaded and told of files: for seconds.
     * Whoever only looks at the devices does not take it. */
    pthread_mutex_t loading_lock;
    _Atomic(struct fstfs_device *) devices; /* added to with that lock held, until fstfs_free() */
};

/* A file that tensors lie in. */
struct tensor_source {
    struct extent_list *list; /* all of the file */
    const char *path;
    _Atomic(struct cufile_file *) cufile; /* NULL: cuFile was not told of it */
    void *mapping; /* of all of it; NULL: none yet. Guarded by the checkpoint's lock */
};

struct client_tensor {
    struct fstfs_tensor shown; /* first: the caller has its address */
    uint32_t source; /* its place in sources */
};

struct memory_block;

/* Immutable once opened, but for what `lock` guards. */
struct fstfs_checkpoint {
    struct fstfs *fstfs;
    pthread_mutex_t lock;
    struct tensor_source *sources;
    size_t source_count;
    struct client_tensor *tensors; /* by name */
    size_t count;
    struct fstfs_metadata *metadata; /* by key */
    size_t metadata_count;
    char *through_mount; /* why; NULL: not */
    struct memory_block *blocks; /* that strings and shapes lie in */
};

/* Whether the tensor, which may be NULL, is one of the checkpoint's. */
bool checkpoint_has(const struct fstfs_checkpoint *checkpoint, const struct fstfs_tensor *tensor);

/* Ends what fstfs_map() gave. */
void unmap_sources(struct fstfs_checkpoint *checkpoint);

/* Says why on this thread's fstfs_error(); returns `error`, a negative errno. */
errint_t fail(errint_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* -EINVAL, said by fail(), if one of the `reserved` words of the caller's structure is set. */
errint_t check_reserved(const char *structure, const uint64_t *reserved, size_t count);
#define CHECK_RESERVED(structure, type)                                                            \
    check_reserved(#type, (structure)->reserved,                                                   \
                   sizeof((structure)->reserved) / sizeof(*(structure)->reserved))

#endif
