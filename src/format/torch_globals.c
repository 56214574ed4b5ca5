/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_globals.h. */
#include "format/torch_globals.h"

#include "base/array.h"

#include <stddef.h>

/* Storage classes; torch_storage_class() has the modules that define them. */
static const struct {
    const char *name;
    struct torch_element element;
} storage_classes[] = {
    {"DoubleStorage", {DTYPE_F64, 8}},       {"FloatStorage", {DTYPE_F32, 4}},
    {"HalfStorage", {DTYPE_F16, 2}},         {"BFloat16Storage", {DTYPE_BF16, 2}},
    {"LongStorage", {DTYPE_I64, 8}},         {"IntStorage", {DTYPE_I32, 4}},
    {"ShortStorage", {DTYPE_I16, 2}},        {"CharStorage", {DTYPE_I8, 1}},
    {"ByteStorage", {DTYPE_U8, 1}},          {"BoolStorage", {DTYPE_BOOL, 1}},
    {"ComplexFloatStorage", {DTYPE_C64, 8}}, {"ComplexDoubleStorage", {DTYPE_UNKNOWN, 16}},
    {"QInt8Storage", {DTYPE_UNKNOWN, 1}},    {"QUInt8Storage", {DTYPE_UNKNOWN, 1}},
    {"QInt32Storage", {DTYPE_UNKNOWN, 4}},   {"QUInt4x2Storage", {DTYPE_UNKNOWN, 1}},
    {"QUInt2x4Storage", {DTYPE_UNKNOWN, 1}}, {"UntypedStorage", {TORCH_UNTYPED, 1}},
    {"_UntypedStorage", {TORCH_UNTYPED, 1}},
};

/* Dtypes of tensors in untyped storages: the globals torch.NAME. */
static const struct {
    const char *name;
    enum dtype dtype;
} torch_dtypes[] = {
    {"float64", DTYPE_F64},
    {"float32", DTYPE_F32},
    {"float16", DTYPE_F16},
    {"bfloat16", DTYPE_BF16},
    {"complex64", DTYPE_C64},
    {"int64", DTYPE_I64},
    {"int32", DTYPE_I32},
    {"int16", DTYPE_I16},
    {"int8", DTYPE_I8},
    {"uint8", DTYPE_U8},
    {"uint16", DTYPE_U16},
    {"uint32", DTYPE_U32},
    {"uint64", DTYPE_U64},
    {"bool", DTYPE_BOOL},
    {"float8_e4m3fn", DTYPE_F8_E4M3},
    {"float8_e4m3fnuz", DTYPE_F8_E4M3FNUZ},
    {"float8_e5m2", DTYPE_F8_E5M2},
    {"float8_e5m2fnuz", DTYPE_F8_E5M2FNUZ},
    {"float8_e8m0fnu", DTYPE_F8_E8M0},
    {"float4_e2m1fn_x2", DTYPE_F4}, /* an element of torch has two values */
};

bool
torch_storage_class(const struct pickle *pickle, pickle_value global, struct torch_element *element)
{
    static const char *const modules[] = {"torch", "torch.storage", "torch.cuda"};

    for (size_t m = 0; m < COUNT_OF(modules); m++)
        for (size_t i = 0; i < COUNT_OF(storage_classes); i++)
            if (pickle_is_global(pickle, global, modules[m], storage_classes[i].name)) {
                *element = storage_classes[i].element;
                return true;
            }
    return false;
}

bool
torch_dtype(const struct pickle *pickle, pickle_value global, enum dtype *dtype)
{
    for (size_t i = 0; i < COUNT_OF(torch_dtypes); i++)
        if (pickle_is_global(pickle, global, "torch", torch_dtypes[i].name)) {
            *dtype = torch_dtypes[i].dtype;
            return true;
        }
    return false;
}

/* ---- calls ---- */

/* Tensors that are not stored as contiguous elements, by the function that rebuilds them. */
static const struct {
    const char *function, *why;
} refused_functions[] = {
    {"_rebuild_qtensor", "it is quantized by torch"},
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
torch_makes_tensor(const struct pickle *pickle, pickle_value function, bool *has_dtype)
{
    *has_dtype = pickle_is_global(pickle, function, "torch._utils", "_rebuild_tensor_v3");
    return *has_dtype || pickle_is_global(pickle, function, "torch._utils", "_rebuild_tensor") ||
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
