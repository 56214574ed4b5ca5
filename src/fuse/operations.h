/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE operations: each kernel request is answered from the view, or passed to the engine,
 * which replies on the calling thread or on one of its own.
 *
 * libfuse calls the operations on its threads. Those that may wait on storage (about names,
 * attributes, directories and opens) go through requests.h, reads through reads.h. No operation
 * writes: the mount is read-only, so the kernel itself answers EROFS.
 */
#ifndef FSTFS_FUSE_OPERATIONS_H
#define FSTFS_FUSE_OPERATIONS_H

#include "catalog/catalog.h"
#include "fuse/handle.h"
#include "fuse/readahead.h"
#include "fuse/reads.h"
#include "fuse/requests.h"
#include "io/io.h"
#include "view/view.h"

/* What the operations use; the userdata of libfuse's session. */
struct operations {
    struct view *view;
    struct io *io;
    struct loads *loads;
    struct catalog *catalog;
    struct passthrough *passthrough;
    struct readahead readahead;
    uint64_t readahead_least; /* the mount's default, in bytes */
    struct requests *requests;
    struct reads *reads;
    struct handles handles;
};

/* Fills in all operations but init. */
void operations_fill(struct fuse_lowlevel_ops *ops);

/* Releases the handle of a request: see requests_new(). */
void operations_release_handle(void *operations, void *handle);

#endif
