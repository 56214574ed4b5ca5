/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_state.h. */
#include "format/torch_state.h"

#include "base/array.h"

enum { STATE_DEPTH_MAX = 4 }; /* of lists and tuples in a value */

/*
 * Attributes of torch.Tensor that are data descriptors. torch assigns state with setattr()
 * (torch/_utils.py, `_set_obj_state`), which calls the setter of these: `real` and `imag` overwrite
 * the elements, others change how the tensor is used, most raise an exception. An attribute with
 * another name is stored in the tensor's __dict__. Source: torch 2.15, and earlier versions for
 * `names`.
 */
static const char *const tensor_descriptors[] = {
    "H",
    "T",
    "__class__",
    "__cuda_array_interface__",
    "__dict__",
    "__weakref__",
    "_backward_hooks",
    "_base",
    "_cdata",
    "_grad",
    "_grad_fn",
    "_has_grad_dtype_override",
    "_has_symbolic_sizes_strides",
    "_post_accumulate_grad_hooks",
    "_python_dispatch",
    "_version",
    "data",
    "device",
    "dtype",
    "grad",
    "grad_dtype",
    "grad_fn",
    "imag",
    "is_cpu",
    "is_cuda",
    "is_ipu",
    "is_leaf",
    "is_maia",
    "is_meta",
    "is_mkldnn",
    "is_mps",
    "is_mtia",
    "is_nested",
    "is_quantized",
    "is_sparse",
    "is_sparse_csr",
    "is_vulkan",
    "is_xla",
    "is_xpu",
    "itemsize",
    "layout",
    "mH",
    "mT",
    "name",
    "names",
    "nbytes",
    "ndim",
    "output_nr",
    "real",
    "requires_grad",
    "retains_grad",
    "shape",
    "volatile",
};

static bool
is_plain_attribute(const struct pickle *pickle, pickle_value key)
{
    for (size_t i = 0; i < COUNT_OF(tensor_descriptors); i++)
        if (pickle_string_is(pickle, key, tensor_descriptors[i]))
            return false;
    return pickle_kind_of(pickle, key) == PICKLE_STRING;
}

static bool
is_plain_value(const struct pickle *pickle, pickle_value value, unsigned depth, size_t *visits_left)
{
    const struct pickle_node *node;

    if (depth > STATE_DEPTH_MAX || *visits_left == 0)
        return false;
    --*visits_left;
    switch (pickle_kind_of(pickle, value)) {
    case PICKLE_NONE:
    case PICKLE_BOOL:
    case PICKLE_NUMBER:
    case PICKLE_LONG:
    case PICKLE_FLOAT:
    case PICKLE_STRING:
        return true;
    case PICKLE_TUPLE:
        for (uint32_t i = 0; i < pickle_tuple_length(pickle, value); i++)
            if (!is_plain_value(pickle, pickle_tuple_item(pickle, value, i), depth + 1,
                                visits_left))
                return false;
        return true;
    case PICKLE_LIST:
        node = &pickle->nodes[value];
        for (uint32_t i = node->a; i; i = pickle->entries[i].next)
            if (!is_plain_value(pickle, pickle->entries[i].value, depth + 1, visits_left))
                return false;
        return true;
    default:
        return false;
    }
}

bool
torch_is_plain_state(const struct pickle *pickle, pickle_value state, size_t *visits_left)
{
    const struct pickle_node *dict;

    if (pickle_tuple_length(pickle, state) == 2 &&
        pickle_tuple_item(pickle, state, 1) == PICKLE_VALUE_NONE)
        state = pickle_tuple_item(pickle, state, 0);
    if (state == PICKLE_VALUE_NONE)
        return true;
    if (pickle_kind_of(pickle, state) != PICKLE_DICT)
        return false;
    dict = &pickle->nodes[state];
    /* Held entries are attributes of the dictionary, which can replace its items(). */
    if (dict->a && dict->c)
        return false;
    /* Includes items that the pickle adds to the dictionary after it has created the tensor. */
    for (uint32_t i = dict->a; i; i = pickle->entries[i].next)
        if (!is_plain_attribute(pickle, pickle->entries[i].key) ||
            !is_plain_value(pickle, pickle->entries[i].value, 0, visits_left))
            return false;
    return true;
}
