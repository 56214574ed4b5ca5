/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups of names. */
#ifndef FSTFS_VIEW_LOOKUP_H
#define FSTFS_VIEW_LOOKUP_H

#include "view/node.h"

/* What the file of an entry is that is made, a re-cut's apart. */
enum made_kind made_kind_of(enum dir_entry_kind kind);

/* Whether a checkpoint that is re-cut into so many parts has an index. */
bool has_part_index(const struct dir_entry *entry, uint32_t parts);

/* Looks up any name but a tensor's. */
errint_t lookup_name(struct view *view, const struct caller *caller, struct node *parent,
                     const char *name, node_id *id, struct stat *st);

#endif
