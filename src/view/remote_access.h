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

/* `which`: `count` indexes into listing->entries. Loads and checks the entries with a lane (see
 * dir_entry_lane()), and waits as long as answers arrive (see query_pool_wait()). NULL: out of
 * memory. Any thread. */
struct remote_entries *remote_entries_load(struct view *view, const struct caller *caller,
                                           struct node *node, const struct dir_listing *listing,
                                           const uint32_t *which, size_t count);
void remote_entries_free(struct remote_entries *remote); /* NULL is allowed */

/* Entry which[at] must have a lane. Sets *checkpoint to a reference to its checkpoint, and
 * *permission to the result of the check: as access_content(), or -EIO if there was no answer.
 * Errors: those of group_known_checkpoint(); -ENOMEM if the check could not be queued. */
errint_t remote_entries_get(const struct remote_entries *remote, size_t at,
                            struct checkpoint **checkpoint, errint_t *permission);

#endif
