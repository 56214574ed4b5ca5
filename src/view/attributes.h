/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of nodes and of tensor files, as stat(2) returns them. */
#ifndef FSTFS_VIEW_ATTRIBUTES_H
#define FSTFS_VIEW_ATTRIBUTES_H

#include "view/node.h"

/* Attributes of a directory of the mount that is not in the source. */
void fill_own_stat(const struct view *view, struct stat *st, uint64_t inode, mode_t mode);

/* `identity`: of the directory of the source that the attributes are of. */
errint_t stat_directory(const struct node *node, struct stat *st, struct file_identity *identity);
void stat_tensors(const struct node *node, const struct checkpoint *checkpoint, struct stat *st);
void stat_file(struct view *view, struct node *node, struct stat *st);
errint_t stat_page(struct view *view, const struct node *node, struct stat *st);
errint_t stat_tensor(const struct tensor_set *set, uint32_t position, const char *name,
                     size_t length, struct stat *st);

/* Calls `write` and checks that there was memory for the text. */
errint_t page_text(void (*write)(void *arg, struct buffer *out), void *arg, struct buffer *text);

#endif
