/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups in directories. Any thread; waits for storage. */
#ifndef FSTFS_VIEW_LOOKUP_H
#define FSTFS_VIEW_LOOKUP_H

#include "view/node.h"

/* As view_lookup(), but only one attempt. `is_retry`: the one before returned -ESTALE. *id and *st
 * may be written on errors, too. */
errint_t lookup_in(struct view *view, const struct caller *caller, struct node *parent,
                   const char *name, bool is_retry, node_id *id, struct stat *st);

#endif
