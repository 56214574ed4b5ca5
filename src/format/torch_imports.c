/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_imports.h. */
#include "format/torch_imports.h"

#include "base/array.h"
#include "format/torch_globals.h"

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

/* Modules whose functions run programs, evaluate code, or access files and networks, with their
 * submodules; or single functions. */
static const char *const dangerous[] = {
    "os",
    "posix",
    "nt",
    "subprocess",
    "_posixsubprocess",
    "commands",
    "pty",
    "multiprocessing",
    "sys",
    "builtins.eval",
    "builtins.exec",
    "builtins.compile",
    "builtins.open",
    "builtins.getattr",
    "builtins.setattr",
    "builtins.__import__",
    "__builtin__.eval",
    "__builtin__.execfile",
    "__builtin__.compile",
    "__builtin__.open",
    "__builtin__.file",
    "__builtin__.getattr",
    "__builtin__.setattr",
    "__builtin__.__import__",
    "importlib",
    "imp",
    "runpy",
    "code",
    "codeop",
    "bdb",
    "pdb",
    "timeit",
    "cProfile",
    "profile",
    "ctypes",
    "marshal",
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "operator",
    "_operator",
    "io",
    "_io",
    "pathlib",
    "shutil",
    "tempfile",
    "socket",
    "_socket",
    "http",
    "urllib",
    "requests",
    "asyncio",
    "webbrowser",
    "pip",
    "torch.hub",
};

struct torch_import {
    char *line; /* MODULE.NAME, escaped; malloc'ed */
    bool is_dangerous;
};

static bool
is_dangerous_line(const char *line)
{
    for (size_t i = 0; i < COUNT_OF(dangerous); i++) {
        size_t length = strlen(dangerous[i]);

        if (strncmp(line, dangerous[i], length) == 0 &&
            (line[length] == '.' || line[length] == '\0'))
            return true;
    }
    return false;
}

static int
compare_imports(const struct torch_import *a, const struct torch_import *b)
{
    if (a->is_dangerous != b->is_dangerous)
        return a->is_dangerous ? -1 : 1;
    return strcmp(a->line, b->line);
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

/* Adds the import, whose line the list then owns. If the list is full, the import that is last in
 * the order of the list is dropped, which may be this one. */
static void
add_import(struct torch_imports *imports, struct torch_import import)
{
    size_t low = 0, high = imports->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_imports(&imports->list[middle], &import);

        if (order == 0) {
            free(import.line);
            return;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (imports->count == TORCH_IMPORTS_MAX) {
        imports->is_incomplete = true;
        if (low == imports->count) {
            free(import.line);
            return;
        }
        free(imports->list[--imports->count].line);
    }
    memmove(imports->list + low + 1, imports->list + low,
            (imports->count - low) * sizeof(*imports->list));
    imports->list[low] = import;
    imports->count++;
}

errint_t
torch_imports_add(struct torch_imports *imports, const struct pickle *pickle, struct reason *reason)
{
    if (!imports->list)
        imports->list = calloc(TORCH_IMPORTS_MAX, sizeof(*imports->list));
    if (!imports->list)
        return reason_no_memory(reason);
    for (uint32_t i = 0; i < pickle->node_count; i++) {
        struct torch_import import;

        if (pickle->nodes[i].kind != PICKLE_GLOBAL || is_allowed_global(pickle, i))
            continue;
        import.line = global_text(pickle, &pickle->nodes[i]);
        if (!import.line)
            return reason_no_memory(reason);
        import.is_dangerous = is_dangerous_line(import.line);
        add_import(imports, import);
    }
    return 0;
}

void
torch_imports_write(const struct torch_imports *imports, struct buffer *out)
{
    for (size_t i = 0; i < imports->count; i++) {
        buffer_add_text(out, imports->list[i].line);
        buffer_add_char(out, '\n');
    }
}

void
torch_imports_free(struct torch_imports *imports)
{
    for (size_t i = 0; i < imports->count; i++)
        free(imports->list[i].line);
    free(imports->list);
    *imports = (struct torch_imports){0};
}
