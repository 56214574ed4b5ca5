/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the pages of a selection into the page cache, and evicts them. */
#ifndef FSTFS_CACHE_WARM_H
#define FSTFS_CACHE_WARM_H

#include "base/error.h"
#include "selection.h"

/* Reads all wanted pages that are not cached, with many reads in flight, and shows a progress bar.
 * Prints the error of a file and continues with the others. Returns -ENOMEM, or -EINTR after a
 * signal. */
errint_t warm_run(struct selection *selection);

/* Evicts all pages, except those that are mapped or locked. Errors are as above. */
errint_t evict_run(struct selection *selection);

#endif
