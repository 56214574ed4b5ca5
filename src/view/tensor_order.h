/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a checkpoint in the order of their file names. Any thread. */
#ifndef FSTFS_VIEW_TENSOR_ORDER_H
#define FSTFS_VIEW_TENSOR_ORDER_H

#include "catalog/catalog.h"
#include "view/names.h"
#include "view/view.h"

/* Writes the file name of a tensor in tensors/ or npy/; returns its length. */
size_t tensor_order_name(const struct checkpoint *checkpoint, struct tensor_ref ref,
                         enum view_kind view, char out[FILE_NAME_SIZE]);

/*
 * Sorts the tensors that have a file in this view: sets `order` to indices into
 * checkpoint->tensors, or to NULL if they are already in order, and `count` to their number. Of
 * tensors with the same file name only the first has a file; the others get a problem. The order is
 * charged to the catalog's budget. -ENOMEM, with a problem if the budget is full.
 */
errint_t tensor_order_new(struct checkpoint *checkpoint, enum view_kind view, uint32_t **order,
                          uint32_t *count);
void tensor_order_free(const struct checkpoint *checkpoint, uint32_t *order); /* NULL is allowed */

#endif
