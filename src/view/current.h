/* SPDX-License-Identifier: Apache-2.0 */
/* The current state of the source for a directory of the mount. Any thread; waits for storage. */
#ifndef FSTFS_VIEW_CURRENT_H
#define FSTFS_VIEW_CURRENT_H

#include "view/node.h"

/* Whether the path of a NODE_DIRECTORY, or of the one that contains a NODE_TENSORS, still leads to
 * the directory of the source that was looked up: 0 or -ESTALE, whatever is there now. 0 for other
 * nodes, and if callers are not checked. */
errint_t current_directory(const struct node *node);
/* The identity of a NODE_DIRECTORY. -ESTALE: as above. */
errint_t current_stat(const struct node *directory, struct file_identity *now);
/* The names of a NODE_DIRECTORY; a reference. -ESTALE: as above. */
errint_t current_listing(struct view *view, struct node *node, struct dir_listing **out);
/* The last known names of a NODE_DIRECTORY, if some of them have lanes; a reference. NULL: none
 * have, or memory is exhausted. Does not wait for storage. */
struct dir_listing *current_lanes(struct view *view, struct node *node);
/* The checkpoint of an entry of a NODE_DIRECTORY; a reference. */
errint_t current_checkpoint(const struct node *node, const struct dir_listing *listing,
                            const struct dir_entry *entry, struct checkpoint **checkpoint);
/* The checkpoint of the entry `name`, if it is of this kind; a reference. -ENOENT. */
errint_t current_checkpoint_of_name(struct view *view, struct node *node, const char *name,
                                    enum dir_entry_kind kind, struct checkpoint **checkpoint);
/* The set of a NODE_TENSORS; a reference. */
errint_t current_tensors(struct view *view, struct node *node, struct node **set);

/* The directory of the source that a NODE_DIRECTORY shows, or that contains the checkpoint of a
 * NODE_TENSORS. NULL: the node is of another kind. */
struct source_dir *source_dir_of_node(const struct node *node);
/* Returns whether to repeat a call that failed because the source has changed, and makes the next
 * call check the source. `tries` counts the repetitions, of which there is at most one. */
bool retry_after_change(const struct node *directory, errint_t error, int *tries);

#endif
