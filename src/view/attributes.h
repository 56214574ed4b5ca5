/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes as stat(2) returns them: each function fills in all of `st`. Any thread. */
#ifndef FSTFS_VIEW_ATTRIBUTES_H
#define FSTFS_VIEW_ATTRIBUTES_H

#include "view/node.h"

/* A file or directory that is not in the source; its owner is the mounting user. */
void stat_own(const struct view *view, uint64_t inode, mode_t mode, struct stat *st);
/* A directory of the source, from its own attributes. */
void stat_directory(const struct file_identity *source, uint64_t inode, struct stat *st);
/* A directory of tensors. */
void stat_tensors(const struct checkpoint *checkpoint, uint64_t inode, struct stat *st);
/* A file of the source, or a generated file. Does not wait for storage. */
void stat_file(struct view *view, const struct node *node, struct stat *st);
/* A page. Writes its text to determine the size, which is 0 if callers are checked. */
errint_t stat_page(const struct view *view, const struct view_page *page, uint64_t inode,
                   struct stat *st);
/* The tensor file at this position of a set. Does not wait for storage. */
errint_t stat_tensor(const struct node *set, uint32_t position, struct stat *st);

#endif
