/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a tensor in a file of torch.save(): Python attributes that were set on it, such as
 * `p.sequence_parallel = True`. No threads, no state. Used by torch.c.
 */
#ifndef FSTFS_FORMAT_TORCH_STATE_H
#define FSTFS_FORMAT_TORCH_STATE_H

#include "format/pickle.h"

#include <stdbool.h>

/*
 * Whether torch can assign the state to a tensor without a change of its values: the state is None,
 * a dictionary, or a tuple of either and None; keys are strings, except the names of the data
 * descriptors of torch.Tensor; and values are strings, numbers, booleans, None, or lists and tuples
 * of these. *visits_left is decremented for each value; false if none are left for a value.
 */
bool torch_is_plain_state(const struct pickle *pickle, pickle_value state, size_t *visits_left);

#endif
