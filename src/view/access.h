/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a caller may read a file of the mount or list a directory. Waits on storage. */
#ifndef FSTFS_VIEW_ACCESS_H
#define FSTFS_VIEW_ACCESS_H

#include "view/node.h"

/* To read a file that has a node. */
errint_t check_node(struct view *view, const struct caller *caller, const struct node *node,
                    int mask);
/* To read a page of .fstfs. */
errint_t check_page(const struct view *view, const struct caller *caller,
                    const struct view_page *page);
/* To read a tensor file, or to look it up. */
errint_t check_tensor(struct view *view, const struct caller *caller, const struct tensor_set *set,
                      uint32_t position);
/* To list the tensors of a checkpoint. */
errint_t check_tensors(struct view *view, const struct caller *caller,
                       const struct checkpoint *checkpoint);
/* access(2) of a node. */
errint_t access_node(struct view *view, const struct caller *caller, struct node *node, int mask);

#endif
