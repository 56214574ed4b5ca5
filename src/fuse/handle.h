/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open files and directories of the mount. A handle is what fi->fh points to between OPEN and
 * RELEASE. Any thread.
 */
#ifndef FSTFS_FUSE_HANDLE_H
#define FSTFS_FUSE_HANDLE_H

#include "base/list.h"
#include "fuse/loads.h"
#include "fuse/passthrough.h"
#include "view/view.h"

#include <fuse_lowlevel.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct handle {
    struct list node; /* this and the next are guarded by handles->lock */
    unsigned references; /* one held by the kernel until RELEASE, one by each request */

    /* Set by OPEN, or OPENDIR, and constant from then on. */
    struct extent_list *list; /* the content of a file */
    bool is_page; /* a file of .fstfs */
    bool is_counted; /* in handles->page_bytes; guarded by handles->lock */
    struct passthrough_file *passthrough; /* or NULL: see passthrough_open() */
    struct load *load; /* of a file; NULL: none. Guarded by loads->lock from the first read on */
    struct view_directory *directory;
    pthread_mutex_t directory_lock; /* held while the directory is read */
};

/* All handles of a session. The kernel does not release open ones when the mount is unmounted. */
struct handles {
    pthread_mutex_t lock;
    struct list all;
    uint64_t count;
    uint64_t page_bytes; /* of the pages that are open */
    struct view *view;
    struct passthrough *passthrough;
    struct loads *loads;
};

/* `view`, `passthrough` and `loads` must be set before a handle is freed. */
void handles_init(struct handles *handles);
/* Frees the handles that were not released. No request may use one. */
void handles_destroy(struct handles *handles);
uint64_t handles_count(struct handles *handles);

/* A handle with one reference, on the list; NULL: out of memory. */
struct handle *handle_new(struct handles *handles);
struct handle *handle_ref(struct handles *handles, struct handle *handle);
void handle_unref(struct handles *handles, struct handle *handle);
/* Counts the content of a page. -ENFILE: `is_limited`, and the open pages would exceed
 * HANDLE_PAGE_BYTES. */
enum { HANDLE_PAGE_BYTES = 16 << 20 };
errint_t handle_count_page(struct handles *handles, struct handle *handle, bool is_limited);
struct handle *handle_of(const struct fuse_file_info *fi);

#endif
