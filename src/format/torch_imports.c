/* SPDX-License-Identifier: Apache-2.0 */
#include "format/torch_imports.h"

#include "base/array.h"
#include "format/torch_dtype.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Globals that torch.load(weights_only=True) allows, besides storage classes and dtypes
 * (torch/_weights_only_unpickler.py, `_get_allowed_globals`). */
static const struct {
    const char *module, *name;
} allowed_globals[] = {
    {"collections", "OrderedDict"},
    {"collections", "Counter"},
    {"torch.nn.parameter", "Parameter"},
    {"torch.serialization", "_get_layout"},
    {"torch", "Size"},
    {"torch", "Tensor"},
    {"torch", "device"},
    {"_codecs", "encode"},
    {"builtins", "bytearray"},
    {"__builtin__", "bytearray"},
    {"builtins", "set"},
    {"__builtin__", "set"},
    {"builtins", "complex"},
    {"__builtin__", "complex"},
    {"torch.storage", "TypedStorage"},
    {"torch", "complex128"},
    {"torch", "complex32"},
    {"torch", "bcomplex32"},
    {"torch", "bits1x8"},
    {"torch", "bits2x4"},
    {"torch", "bits4x2"},
    {"torch", "bits8"},
    {"torch", "bits16"},
    {"torch", "int1"},
    {"torch", "int2"},
    {"torch", "int3"},
    {"torch", "int4"},
    {"torch", "int5"},
    {"torch", "int6"},
    {"torch", "int7"},
    {"torch", "uint1"},
    {"torch", "uint2"},
    {"torch", "uint3"},
    {"torch", "uint4"},
    {"torch", "uint5"},
    {"torch", "uint6"},
    {"torch", "uint7"},
    {"torch", "qint8"},
    {"torch", "qint32"},
    {"torch", "quint8"},
    {"torch", "quint4x2"},
    {"torch", "quint2x4"},
    {"torch", "per_tensor_affine"},
    {"torch", "per_tensor_symmetric"},
    {"torch", "per_channel_affine"},
    {"torch", "per_channel_symmetric"},
    {"torch", "per_channel_affine_float_qparams"},
    {"torch._tensor", "_rebuild_from_type_v2"},
    {"torch._utils", "_rebuild_parameter"},
    {"torch._utils", "_rebuild_parameter_with_state"},
    {"torch._utils", "_rebuild_qtensor"},
    {"torch._utils", "_rebuild_tensor"},
    {"torch._utils", "_rebuild_tensor_v2"},
    {"torch._utils", "_rebuild_tensor_v3"},
    {"torch._utils", "_rebuild_sparse_tensor"},
    {"torch._utils", "_rebuild_meta_tensor_no_storage"},
    {"torch._utils", "_rebuild_wrapper_subclass"},
    {"torch._utils", "_rebuild_device_tensor_from_numpy"},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor"},
};

/* Classes such as torch.cuda.FloatTensor, which stand for a dtype and a device. */
static bool
is_tensor_type(const struct pickle *pickle, pickle_value global)
{
    static const char *const modules[] = {"torch", "torch.cuda", "torch.sparse",
                                          "torch.cuda.sparse"};
    static const char *const names[] = {"BFloat16Tensor", "BoolTensor",  "ByteTensor", "CharTensor",
                                        "DoubleTensor",   "FloatTensor", "HalfTensor", "IntTensor",
                                        "LongTensor",     "ShortTensor"};

    for (size_t m = 0; m < COUNT_OF(modules); m++)
        for (size_t i = 0; i < COUNT_OF(names); i++)
            if (pickle_is_global(pickle, global, modules[m], names[i]))
                return true;
    return false;
}

static bool
is_allowed_global(const struct pickle *pickle, pickle_value global)
{
    struct torch_element element;
    enum dtype dtype;

    if (torch_storage_class(pickle, global, &element) || torch_dtype(pickle, global, &dtype) ||
        is_tensor_type(pickle, global))
        return true;
    for (size_t i = 0; i < COUNT_OF(allowed_globals); i++)
        if (pickle_is_global(pickle, global, allowed_globals[i].module, allowed_globals[i].name))
            return true;
    return false;
}

static int
compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static char *
global_text(const struct pickle *pickle, const struct pickle_node *global)
{
    struct buffer line = BUFFER_INIT;
    const char *module = "", *name = "";
    size_t module_length = 0, name_length = 0;

    pickle_get_string(pickle, global->a, &module, &module_length);
    pickle_get_string(pickle, global->b, &name, &name_length);
    buffer_add_quoted(&line, module, module_length, 100);
    buffer_add_char(&line, '.');
    buffer_add_quoted(&line, name, name_length, 100);
    if (buffer_failed(&line)) {
        buffer_free(&line);
        return NULL;
    }
    return line.data;
}

enum { IMPORTS_MAX = 1000 }; /* most imports that are listed, duplicates included */

errint_t
torch_list_imports(const struct pickle *pickle, struct buffer *imports, struct reason *reason)
{
    char **lines = calloc(IMPORTS_MAX, sizeof(*lines));
    size_t count = 0;
    errint_t error = lines ? 0 : -ENOMEM;

    for (uint32_t i = 0; !error && i < pickle->node_count && count < IMPORTS_MAX; i++) {
        if (pickle->nodes[i].kind != PICKLE_GLOBAL || is_allowed_global(pickle, i))
            continue;
        lines[count] = global_text(pickle, &pickle->nodes[i]);
        if (lines[count])
            count++;
        else
            error = -ENOMEM;
    }
    if (count)
        qsort(lines, count, sizeof(char *), compare_lines);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(lines[i - 1], lines[i]) != 0) {
            buffer_add_text(imports, lines[i]);
            buffer_add_char(imports, '\n');
        }
    for (size_t i = 0; i < count; i++)
        free(lines[i]);
    free(lines);
    if (error || buffer_failed(imports))
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the list of imports");
    return 0;
}
