/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of a listing whose files are behind links to other file systems, which may hang: their
 * checkpoints are loaded, and the permissions of a caller checked, on the catalog's query pool.
 */
#ifndef FSTFS_VIEW_REMOTE_ACCESS_H
#define FSTFS_VIEW_REMOTE_ACCESS_H

#include "view/listing.h"
#include "view/node.h"

struct remote_entries;

/* Loads and checks those of the entries `which` that have a lane, and waits as long as answers
 * arrive (see query_pool_wait()). `which` must outlive the result. NULL: out of memory. Any
 * thread. */
struct remote_entries *remote_entries_load(struct view *view, const struct caller *caller,
                                           struct node *node, const struct dir_listing *listing,
                                           const uint32_t *which, size_t count);
void remote_entries_free(struct remote_entries *remote); /* NULL is allowed */

/* The checkpoint of the entry which[at], as group_known_checkpoint(); a reference. `permission`: as
 * access_content(), or -EIO if there was no answer. */
errint_t remote_entries_get(const struct remote_entries *remote, size_t at,
                            struct checkpoint **checkpoint, errint_t *permission);

#endif
