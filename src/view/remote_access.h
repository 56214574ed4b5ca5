/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the checkpoints of listing entries whose files are behind links to other file systems, and
 * checks the caller's permissions, on the catalog's query pool, because those file systems may
 * hang.
 */
#ifndef FSTFS_VIEW_REMOTE_ACCESS_H
#define FSTFS_VIEW_REMOTE_ACCESS_H

#include "view/listing.h"
#include "view/node.h"

struct remote_entries;

/* Loads and checks those of the entries `which` that have a lane, and waits as long as answers
 * arrive (see query_pool_wait()). NULL: out of memory. Any thread. */
struct remote_entries *remote_entries_load(struct view *view, const struct caller *caller,
                                           struct node *node, const struct dir_listing *listing,
                                           const uint32_t *which, size_t count);
void remote_entries_free(struct remote_entries *remote); /* NULL is allowed */

/* Sets *checkpoint to a reference to that of the entry which[at], or returns an error as
 * group_known_checkpoint(). *permission: as access_content(), or -EIO if there was no answer. */
errint_t remote_entries_get(const struct remote_entries *remote, size_t at,
                            struct checkpoint **checkpoint, errint_t *permission);

#endif
