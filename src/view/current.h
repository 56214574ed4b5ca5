/* SPDX-License-Identifier: Apache-2.0 */
/* What the source has now for a directory of the mount. Waits on storage. */
#ifndef FSTFS_VIEW_CURRENT_H
#define FSTFS_VIEW_CURRENT_H

#include "view/node.h"

/* The names of a directory as they are now; a reference. */
errint_t directory_listing(struct view *view, struct node *node, struct dir_listing **out);
errint_t entry_checkpoint(const struct node *node, const struct dir_listing *listing,
                          const struct dir_entry *entry, struct checkpoint **checkpoint);
/* The checkpoint of the entry `name` of a directory, if it is of this kind. */
errint_t named_checkpoint(struct view *view, struct node *node, const char *name,
                          enum dir_entry_kind kind, struct checkpoint **checkpoint);
/* The tensors of a NODE_TENSORS as they are now; a reference. */
errint_t current_tensors(struct view *view, struct node *node, struct tensor_set **set);

/* The directory of the source that a directory of the mount is made of, or in which the
 * checkpoint is that it is made of; NULL: the mount's own. */
struct source_dir *source_dir_of_node(const struct node *node);
/* Whether to try again, since the source has changed; expires the directory then. */
bool looks_again(const struct node *directory, errint_t error, int *tries);

#endif
