/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the tensors and storages of a file of torch.save() that belong to no tensor that torch.c
 * has shown or refused: those in objects and sets, those of unknown functions, and storages
 * without a tensor. Without them a table is incomplete. No threads, no state.
 */
#ifndef FSTFS_FORMAT_TORCH_UNSEEN_H
#define FSTFS_FORMAT_TORCH_UNSEEN_H

#include "format/pickle.h"

/* Flags of nodes. */
enum {
    TORCH_SEEN = PICKLE_FLAG_FREE, /* of a call or a persistent ID: part of a tensor that was shown
                                    * or refused */
    TORCH_REACHED = PICKLE_FLAG_FREE << 1, /* internal */
};

/* Marks the calls and storages that a refused tensor consists of as seen, such as the indices of a
 * sparse one. Stops when *visits_left, which it decrements, is 0. */
void torch_mark_parts(struct pickle *pickle, pickle_value value, size_t *visits_left);

/*
 * Calls `refuse`, with a line that describes it, for each tensor and storage that is not marked as
 * seen.
 * `all`: the root of the pickle, or a value in it. In the second case, values that are not
 * reachable from it are ignored.
 * -EBADMSG with a reason: objects are nested too deeply.
 */
errint_t torch_refuse_unseen(struct pickle *pickle, pickle_value all, size_t *visits_left,
                             void (*refuse)(void *arg, const char *line), void *arg,
                             struct reason *reason);

#endif
