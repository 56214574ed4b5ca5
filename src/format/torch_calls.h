/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognizes the calls by which pickles of torch.save() create tensors: functions of torch._utils
 * and torch._tensor. No state, no threads. Used by torch.c.
 */
#ifndef FSTFS_FORMAT_TORCH_CALLS_H
#define FSTFS_FORMAT_TORCH_CALLS_H

#include "format/pickle.h"

#include <stdbool.h>

/* Whether a PICKLE_CALL calls torch._utils.FUNCTION. */
bool torch_calls(const struct pickle *pickle, const struct pickle_node *call, const char *function);

/* Why no tensor that this function creates is shown; NULL: the function is not one of those. */
const char *torch_refusal_of(const struct pickle *pickle, const struct pickle_node *call);

/* A call that creates a tensor of a plain class. */
struct torch_tensor_call {
    pickle_value arguments;
    bool has_dtype;
};

/* Whether the call creates a tensor of contiguous or strided elements. */
bool torch_is_tensor_call(const struct pickle *pickle, pickle_value function,
                          pickle_value arguments, struct torch_tensor_call *tensor);

/* Whether a PICKLE_CALL makes another call, (FUNCTION, CLASS, ARGUMENTS, STATE), and converts its
 * result to the class. */
bool torch_is_call_from_type(const struct pickle *pickle, const struct pickle_node *call);

/* Whether the global is a class that adds nothing to a tensor that torch.save() stores. */
bool torch_is_plain_class(const struct pickle *pickle, pickle_value global);

#endif
