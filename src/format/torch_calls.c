/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_calls.h. */
#include "format/torch_calls.h"

#include "base/array.h"

/* Tensors that are not stored as contiguous elements, by the function that rebuilds them. */
static const struct {
    const char *function, *why;
} refused_functions[] = {
    {"_rebuild_qtensor", "it is quantised by torch"},
    {"_rebuild_sparse_tensor", "it is sparse"},
    {"_rebuild_sparse_csr_tensor", "it is sparse"},
    {"_rebuild_nested_tensor", "it is a nested tensor"},
    {"_rebuild_meta_tensor_no_storage", "it is a meta tensor, without data"},
    {"_rebuild_wrapper_subclass", "it is of a subclass of torch.Tensor"},
    {"_rebuild_device_tensor_from_numpy", "it is stored as a NumPy array"},
    {"_rebuild_xla_tensor", "it is stored as a NumPy array"},
};

bool
torch_calls(const struct pickle *pickle, const struct pickle_node *call, const char *function)
{
    return pickle_is_global(pickle, call->a, "torch._utils", function);
}

const char *
torch_refusal_of(const struct pickle *pickle, const struct pickle_node *call)
{
    for (size_t i = 0; i < COUNT_OF(refused_functions); i++)
        if (torch_calls(pickle, call, refused_functions[i].function))
            return refused_functions[i].why;
    return NULL;
}

bool
torch_is_tensor_call(const struct pickle *pickle, pickle_value function, pickle_value arguments,
                     struct torch_tensor_call *tensor)
{
    tensor->arguments = arguments;
    tensor->has_dtype = pickle_is_global(pickle, function, "torch._utils", "_rebuild_tensor_v3");
    return tensor->has_dtype ||
           pickle_is_global(pickle, function, "torch._utils", "_rebuild_tensor") ||
           pickle_is_global(pickle, function, "torch._utils", "_rebuild_tensor_v2");
}

bool
torch_is_call_from_type(const struct pickle *pickle, const struct pickle_node *call)
{
    return pickle_is_global(pickle, call->a, "torch._tensor", "_rebuild_from_type_v2") ||
           pickle_is_global(pickle, call->a, "torch._tensor", "_rebuild_from_type");
}

bool
torch_is_plain_class(const struct pickle *pickle, pickle_value global)
{
    return pickle_is_global(pickle, global, "torch", "Tensor") ||
           pickle_is_global(pickle, global, "torch.nn.parameter", "Parameter") ||
           pickle_is_global(pickle, global, "torch.nn.parameter", "Buffer");
}
