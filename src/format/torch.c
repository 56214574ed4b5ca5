/* SPDX-License-Identifier: Apache-2.0 */
/* See torch.h. The two formats differ only in where storages are; torch_source.c finds them. */
#include "format/torch.h"

#include "format/json.h"
#include "format/pickle.h"
#include "format/torch_dtype.h"
#include "format/torch_source.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 64, /* of nested dictionaries */
    NAME_BYTES_MAX = 4096, /* of a tensor's name */
    RANK_MAX = 64, /* torch's own limit */
};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- one tensor ---- */

/* A traversal of the dictionaries of a file. */
struct torch_walk {
    const struct pickle *pickle;
    struct torch_source *source;
    struct torch_file *file;
    struct reason *reason;
    size_t visits_left; /* limits the traversal: dictionaries may contain each other */
    pickle_value skipped_key; /* of the outermost dictionary, omitted in names; or OPAQUE */
    struct st_builder *builder; /* NULL: this pass only counts */
    struct st_counts counts;
    uint32_t found; /* tensors, including refused ones */
    uint32_t with_tensors; /* entries of the outermost dictionary that contain tensors */
    pickle_value dict_with_tensors; /* key of the last of them if it is a dictionary; or OPAQUE */
    uint32_t unnamed; /* keys of the current path that cannot be part of a name */
    uint32_t depth; /* of nested dictionaries */
    bool changed; /* this pass found more than the counting pass */
    size_t name_length;
    char name[NAME_BYTES_MAX];
};

struct torch_tensor {
    uint64_t begin, end; /* offsets in the file */
    enum dtype dtype;
    uint32_t rank;
    uint64_t dims[RANK_MAX];
};

/* Counts a tensor that cannot be shown, and keeps the first reason. The file remains valid. */
static void refuse_tensor_of(struct torch_walk *walk, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void
refuse_tensor_of(struct torch_walk *walk, const char *format, ...)
{
    char shown[QUOTED_SIZE], why[160];
    va_list arguments;

    if (walk->builder || walk->file->refused_count++)
        return;
    va_start(arguments, format);
    vsnprintf(why, sizeof(why), format, arguments);
    va_end(arguments);
    snprintf(walk->file->refused, sizeof(walk->file->refused), "tensor \"%s\": %s",
             quoted(shown, walk->name, walk->name_length), why);
}

static const struct pickle_node *
node_of(const struct torch_walk *walk, pickle_value value, enum pickle_kind kind)
{
    return pickle_kind_of(walk->pickle, value) == kind ? &walk->pickle->nodes[value] : NULL;
}

/* Reads a tuple of whole numbers or a torch.Size() of one. False: the value is neither, or has more
 * than RANK_MAX elements. */
static bool
read_numbers(const struct torch_walk *walk, pickle_value tuple, uint64_t numbers[RANK_MAX],
             uint32_t *count)
{
    const struct pickle_node *call = node_of(walk, tuple, PICKLE_CALL);

    if (call && pickle_is_global(walk->pickle, call->a, "torch", "Size"))
        tuple = pickle_tuple_item(walk->pickle, call->b, 0);
    if (pickle_kind_of(walk->pickle, tuple) != PICKLE_TUPLE)
        return false;
    *count = pickle_tuple_length(walk->pickle, tuple);
    if (*count > RANK_MAX)
        return false;
    for (uint32_t i = 0; i < *count; i++)
        if (!pickle_take_number(walk->pickle, pickle_tuple_item(walk->pickle, tuple, i),
                                &numbers[i]))
            return false;
    return true;
}

/* A storage in the file. */
struct storage {
    uint64_t offset, bytes;
    unsigned dtype; /* see struct torch_element */
};

/*
 * Reads ('storage', TYPE, KEY, LOCATION, ELEMENTS). In the older format there is a sixth element:
 * None or a view of the storage, (VIEW_KEY, OFFSET, ELEMENTS).
 */
static bool
read_storage(struct torch_walk *walk, pickle_value value, struct storage *storage)
{
    const struct pickle *pickle = walk->pickle;
    const struct pickle_node *persistent = node_of(walk, value, PICKLE_PERSISTENT);
    pickle_value id = persistent ? persistent->a : PICKLE_VALUE_OPAQUE;
    struct torch_element element;
    size_t length;
    uint64_t elements, offset, view;
    pickle_value view_id;
    const char *text;

    if (!pickle_take_string(pickle, pickle_tuple_item(pickle, id, 0), &text, &length) ||
        length != 7 || memcmp(text, "storage", 7) != 0) {
        refuse_tensor_of(walk, "it has no storage");
        return false;
    }
    if (!torch_storage_class(pickle, pickle_tuple_item(pickle, id, 1), &element) ||
        !pickle_take_string(pickle, pickle_tuple_item(pickle, id, 2), &text, &length) ||
        !pickle_take_number(pickle, pickle_tuple_item(pickle, id, 4), &elements) ||
        __builtin_mul_overflow(elements, (uint64_t)element.bytes, &storage->bytes)) {
        refuse_tensor_of(walk, "the description of its storage is malformed or of an unknown type");
        return false;
    }
    storage->dtype = element.dtype;
    storage->offset = 0;
    if (storage->bytes) {
        struct reason why = {0};
        uint64_t bytes;

        if (torch_source_find(walk->source, text, length, &storage->offset, &bytes, &why)) {
            refuse_tensor_of(walk, "%.140s", why.text);
            return false;
        }
        if (bytes != storage->bytes) {
            refuse_tensor_of(walk,
                             "its storage has %" PRIu64 " bytes in the file, expected %" PRIu64,
                             bytes, storage->bytes);
            return false;
        }
    }
    view_id = pickle_tuple_item(pickle, id, 5);
    if (pickle_kind_of(pickle, view_id) != PICKLE_TUPLE)
        return true;
    if (!pickle_take_number(pickle, pickle_tuple_item(pickle, view_id, 1), &offset) ||
        !pickle_take_number(pickle, pickle_tuple_item(pickle, view_id, 2), &view) ||
        offset > elements || view > elements - offset) {
        refuse_tensor_of(walk, "the view of its storage is outside of it");
        return false;
    }
    storage->offset += offset * element.bytes;
    storage->bytes = view * element.bytes;
    return true;
}

/* Row-major without gaps. Strides of dimensions with one element are ignored. */
static bool
is_contiguous(const struct torch_tensor *tensor, const uint64_t *strides)
{
    uint64_t expected = 1;

    for (uint32_t i = 0; i < tensor->rank; i++)
        if (tensor->dims[i] == 0)
            return true;
    for (uint32_t i = tensor->rank; i-- > 0;) {
        if (tensor->dims[i] != 1 && strides[i] != expected)
            return false;
        if (__builtin_mul_overflow(expected, tensor->dims[i], &expected))
            return false;
    }
    return true;
}

/* Two float4 values are one element in torch and two in safetensors. */
static bool
double_last_dimension(struct torch_walk *walk, struct torch_tensor *tensor)
{
    if (tensor->rank && !__builtin_mul_overflow(tensor->dims[tensor->rank - 1], UINT64_C(2),
                                                &tensor->dims[tensor->rank - 1]))
        return true;
    refuse_tensor_of(walk, "float4_e2m1fn_x2 without a dimension");
    return false;
}

/* Reads (STORAGE, OFFSET, SIZE, STRIDE, REQUIRES_GRAD, HOOKS[, DTYPE][, METADATA]). */
static bool
read_strided(struct torch_walk *walk, pickle_value arguments, bool has_dtype,
             struct torch_tensor *tensor)
{
    const struct pickle *pickle = walk->pickle;
    pickle_value metadata = pickle_tuple_item(pickle, arguments, has_dtype ? 7 : 6);
    const struct pickle_node *dict = node_of(walk, metadata, PICKLE_DICT);
    uint64_t strides[RANK_MAX], offset, elements = 1, bytes, end;
    struct storage storage;
    uint32_t stride_count;
    bool overflow = false;

    if (!read_storage(walk, pickle_tuple_item(pickle, arguments, 0), &storage))
        return false;
    if (!pickle_take_number(pickle, pickle_tuple_item(pickle, arguments, 1), &offset) ||
        !read_numbers(walk, pickle_tuple_item(pickle, arguments, 2), tensor->dims, &tensor->rank) ||
        !read_numbers(walk, pickle_tuple_item(pickle, arguments, 3), strides, &stride_count) ||
        stride_count != tensor->rank) {
        refuse_tensor_of(walk, "its size, stride or offset is malformed");
        return false;
    }
    if (dict && dict->c) { /* a conjugate or negative view: the bytes are not the values */
        refuse_tensor_of(walk, "it is a lazy view (conjugate or negative)");
        return false;
    }
    if (has_dtype) {
        if (!torch_dtype(pickle, pickle_tuple_item(pickle, arguments, 6), &tensor->dtype)) {
            refuse_tensor_of(walk, "safetensors has no dtype for it");
            return false;
        }
    } else if (storage.dtype == TORCH_UNTYPED || storage.dtype == DTYPE_UNKNOWN) {
        refuse_tensor_of(walk, storage.dtype == DTYPE_UNKNOWN
                                   ? "safetensors has no dtype for its storage's elements"
                                   : "its storage has no dtype");
        return false;
    } else {
        tensor->dtype = (enum dtype)storage.dtype;
    }
    if (!is_contiguous(tensor, strides)) {
        refuse_tensor_of(walk,
                         "it is not contiguous: a view whose elements are not stored in order");
        return false;
    }
    if (tensor->dtype == DTYPE_F4 && !double_last_dimension(walk, tensor))
        return false;
    for (uint32_t i = 0; i < tensor->rank; i++)
        overflow |= __builtin_mul_overflow(elements, tensor->dims[i], &elements);
    for (uint32_t i = 0; i < tensor->rank; i++)
        if (tensor->dims[i] == 0)
            elements = 0, overflow = false;
    overflow |= __builtin_mul_overflow(elements, (uint64_t)dtype_bits(tensor->dtype), &bytes);
    bytes /= 8;
    /* The offset is in elements of torch; one of float4 is a byte with two values. */
    overflow |= __builtin_mul_overflow(
        offset, tensor->dtype == DTYPE_F4 ? UINT64_C(1) : dtype_bits(tensor->dtype) / 8, &offset);
    overflow |= __builtin_add_overflow(offset, bytes, &end);
    if (bytes && (overflow || end > storage.bytes)) {
        refuse_tensor_of(walk, "it is not within its storage of %" PRIu64 " bytes", storage.bytes);
        return false;
    }
    tensor->begin = bytes ? storage.offset + offset : 0;
    tensor->end = tensor->begin + bytes;
    return true;
}

/* Classes that add nothing to a tensor that torch.save() stores. */
static bool
is_plain_class(const struct torch_walk *walk, pickle_value global)
{
    return pickle_is_global(walk->pickle, global, "torch", "Tensor") ||
           pickle_is_global(walk->pickle, global, "torch.nn.parameter", "Parameter") ||
           pickle_is_global(walk->pickle, global, "torch.nn.parameter", "Buffer");
}

static bool
calls(const struct torch_walk *walk, const struct pickle_node *call, const char *function)
{
    return pickle_is_global(walk->pickle, call->a, "torch._utils", function);
}

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

enum tensor_verdict { NO_TENSOR, TENSOR_REFUSED, TENSOR_FOUND };

/* Whether the value is a tensor; sets its dtype, shape and offsets. */
static enum tensor_verdict
look_for_tensor(struct torch_walk *walk, pickle_value value, struct torch_tensor *tensor)
{
    const struct pickle_node *call = node_of(walk, value, PICKLE_CALL);
    unsigned wrappers = 0;

    /* Unwraps parameters. The tensor may have a class with its own function to rebuild it. */
    while (call && (calls(walk, call, "_rebuild_parameter") ||
                    calls(walk, call, "_rebuild_parameter_with_state") ||
                    calls(walk, call, "_rebuild_device_tensor_from_cpu_tensor"))) {
        if (++wrappers > 4)
            return NO_TENSOR;
        call = node_of(walk, pickle_tuple_item(walk->pickle, call->b, 0), PICKLE_CALL);
    }
    if (!call)
        return NO_TENSOR;
    for (size_t i = 0; i < COUNT_OF(refused_functions); i++)
        if (calls(walk, call, refused_functions[i].function)) {
            refuse_tensor_of(walk, "%s", refused_functions[i].why);
            return TENSOR_REFUSED;
        }
    pickle_value function = call->a, arguments = call->b;
    if (pickle_is_global(walk->pickle, call->a, "torch._tensor", "_rebuild_from_type_v2")) {
        function = pickle_tuple_item(walk->pickle, call->b, 0);
        arguments = pickle_tuple_item(walk->pickle, call->b, 2);
        if (!is_plain_class(walk, pickle_tuple_item(walk->pickle, call->b, 1))) {
            refuse_tensor_of(walk, "it is of a subclass of torch.Tensor");
            return TENSOR_REFUSED;
        }
    }
    bool has_dtype = pickle_is_global(walk->pickle, function, "torch._utils", "_rebuild_tensor_v3");
    if (!has_dtype &&
        !pickle_is_global(walk->pickle, function, "torch._utils", "_rebuild_tensor") &&
        !pickle_is_global(walk->pickle, function, "torch._utils", "_rebuild_tensor_v2"))
        return NO_TENSOR;
    return read_strided(walk, arguments, has_dtype, tensor) ? TENSOR_FOUND : TENSOR_REFUSED;
}

/* ---- dictionaries ---- */

/* Adds a tensor to the table, or counts it. */
static void
take_tensor(struct torch_walk *walk, pickle_value value)
{
    struct torch_tensor tensor;
    enum tensor_verdict verdict = look_for_tensor(walk, value, &tensor);
    size_t at;

    if (verdict == NO_TENSOR)
        return;
    walk->found++;
    if (verdict == TENSOR_REFUSED)
        return;
    if (walk->unnamed) {
        refuse_tensor_of(walk,
                         "a key in front of it is no string or number, or its name is longer "
                         "than %d bytes",
                         NAME_BYTES_MAX);
    } else if (!json_check_utf8(walk->name, walk->name_length, &at)) {
        refuse_tensor_of(walk, "its name is not UTF-8");
    } else if (walk->builder) {
        const struct st_entry entry = {walk->name,  walk->name_length, tensor.dtype, NULL,
                                       tensor.dims, tensor.rank,       tensor.begin, tensor.end};

        walk->changed |= !st_builder_add(walk->builder, &entry);
    } else {
        walk->counts.tensors++;
        walk->counts.dims += tensor.rank;
        walk->counts.text += walk->name_length;
    }
}

/* Appends ".KEY" to the name. False: the key is neither a string nor a number, or too long. */
static bool
append_key(struct torch_walk *walk, pickle_value key)
{
    const uint32_t outermost = walk->skipped_key == PICKLE_VALUE_OPAQUE ? 1 : 2;
    char digits[24];
    const char *text;
    size_t length;
    uint64_t number;

    if (pickle_take_number(walk->pickle, key, &number)) {
        length = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, number);
        text = digits;
    } else if (!pickle_take_string(walk->pickle, key, &text, &length)) {
        return false;
    }
    if (length + 1 > sizeof(walk->name) - walk->name_length)
        return false;
    if (walk->depth > outermost)
        walk->name[walk->name_length++] = '.';
    memcpy(walk->name + walk->name_length, text, length);
    walk->name_length += length;
    return true;
}

static errint_t walk_dictionary(struct torch_walk *walk, pickle_value dict);

static errint_t
walk_value(struct torch_walk *walk, pickle_value value)
{
    if (walk->visits_left == 0)
        return reason_set(walk->reason, -EBADMSG, "TorchNesting",
                          "its dictionaries contain each other too often");
    walk->visits_left--;
    if (pickle_kind_of(walk->pickle, value) == PICKLE_DICT)
        return walk_dictionary(walk, value);
    take_tensor(walk, value);
    return 0;
}

static errint_t
walk_entry(struct torch_walk *walk, const struct pickle_entry *entry)
{
    size_t name_length = walk->name_length;
    bool is_skipped = walk->depth == 1 && entry->key == walk->skipped_key;
    bool is_named = is_skipped || append_key(walk, entry->key);
    errint_t error;

    walk->unnamed += !is_named;
    error = walk_value(walk, entry->value);
    walk->unnamed -= !is_named;
    walk->name_length = name_length;
    return error;
}

static errint_t
walk_dictionary(struct torch_walk *walk, pickle_value dict)
{
    const struct pickle *pickle = walk->pickle;
    errint_t error = 0;

    if (walk->depth == DEPTH_MAX)
        return reason_set(walk->reason, -EBADMSG, "TorchNesting",
                          "dictionaries are nested more than %d deep", DEPTH_MAX);
    walk->depth++;
    for (uint32_t i = pickle->nodes[dict].a; !error && i; i = pickle->entries[i].next) {
        const struct pickle_entry *entry = &pickle->entries[i];
        uint32_t found = walk->found;

        if (walk->depth == 1 && walk->skipped_key != PICKLE_VALUE_OPAQUE &&
            entry->key != walk->skipped_key)
            continue;
        error = walk_entry(walk, entry);
        if (walk->depth == 1 && walk->found > found) {
            walk->with_tensors++;
            walk->dict_with_tensors = pickle_kind_of(pickle, entry->value) == PICKLE_DICT
                                          ? entry->key
                                          : PICKLE_VALUE_OPAQUE;
        }
    }
    walk->depth--;
    return error;
}

/* Traverses all tensors once. */
static errint_t
walk_root(struct torch_walk *walk)
{
    walk->visits_left = walk->pickle->length;
    walk->found = walk->with_tensors = 0;
    walk->counts = (struct st_counts){.metadata = 1, .text = sizeof("formatpt") - 1};
    walk->name_length = 0;
    if (pickle_kind_of(walk->pickle, walk->pickle->root) != PICKLE_DICT) {
        walk->name_length = sizeof(TORCH_SINGLE_NAME) - 1;
        memcpy(walk->name, TORCH_SINGLE_NAME, walk->name_length);
    }
    if (!walk->builder) {
        walk->file->refused_count = 0;
        walk->file->refused[0] = '\0';
    }
    return walk_value(walk, walk->pickle->root);
}

/* Chooses the skipped key, and counts tensors and the sizes of their names and shapes. */
static errint_t
count_tensors(struct torch_walk *walk)
{
    errint_t error;

    walk->skipped_key = PICKLE_VALUE_OPAQUE;
    error = walk_root(walk);
    if (error || walk->with_tensors != 1 || walk->dict_with_tensors == PICKLE_VALUE_OPAQUE)
        return error;
    walk->skipped_key = walk->dict_with_tensors;
    return walk_root(walk);
}

static errint_t
fill_torch_table(struct torch_walk *walk)
{
    uint64_t most = walk->pickle->length * TORCH_TABLE_FACTOR + TORCH_SLACK;
    struct st_builder builder;
    errint_t error;

    if (st_counts_bytes(&walk->counts) > most)
        return reason_set(walk->reason, -EBADMSG, "TorchNesting",
                          "the names of its tensors take more than %" PRIu64
                          " bytes, for a pickle of %zu",
                          most, walk->pickle->length);
    if (!st_builder_init(&builder, &walk->counts))
        return reason_set(walk->reason, -ENOMEM, "OutOfMemory", "no memory for the tensors");
    st_builder_add_metadata(&builder, "format", "pt");
    walk->builder = &builder;
    error = walk_root(walk);
    walk->builder = NULL;
    builder.table->data_length = walk->source->file_size;
    if (!error && walk->changed)
        error = reason_set(walk->reason, -ESTALE, "IoError", "the file changed while it was read");
    if (!error)
        error = st_builder_check_names(&builder, walk->reason);
    if (error) {
        st_table_free(builder.table);
        return error;
    }
    st_builder_sort(&builder);
    walk->file->table = builder.table;
    return 0;
}

/* ---- imports ---- */

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

static bool
is_allowed_global(const struct pickle *pickle, pickle_value global)
{
    struct torch_element element;
    enum dtype dtype;

    if (torch_storage_class(pickle, global, &element) || torch_dtype(pickle, global, &dtype))
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

    pickle_take_string(pickle, global->a, &module, &module_length);
    pickle_take_string(pickle, global->b, &name, &name_length);
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

/* Appends each global that is not allowed once, sorted. */
static errint_t
list_imports(const struct pickle *pickle, struct buffer *imports, struct reason *reason)
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

/* ---- the file ---- */

static errint_t
read_tensors(struct torch_source *source, struct torch_file *file, struct reason *reason)
{
    struct torch_walk *walk = calloc(1, sizeof(*walk));
    errint_t error;

    if (!walk)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the tensors");
    walk->pickle = &source->pickle;
    walk->source = source;
    walk->file = file;
    walk->reason = reason;
    error = count_tensors(walk);
    if (!error && walk->found == 0)
        error = reason_set(reason, -ENOMSG, "NoTensors", "there is no tensor in it");
    if (!error && source->is_zip)
        error = zip_check_overlap(&source->zip, reason);
    if (!error)
        error = fill_torch_table(walk);
    free(walk);
    return error;
}

errint_t
torch_read(int fd, uint64_t file_size,
           errint_t (*admit)(void *arg, uint64_t bytes, struct reason *reason), void *arg,
           struct buffer *imports, struct torch_file *file, struct reason *reason)
{
    struct torch_source source;
    errint_t error = torch_source_open(fd, file_size, admit, arg, &source, reason);

    *file = (struct torch_file){0};
    if (error)
        return error;
    if (imports)
        error = list_imports(&source.pickle, imports, reason);
    if (!error)
        error = read_tensors(&source, file, reason);
    torch_source_close(&source);
    return error;
}

void
torch_file_free(struct torch_file *file)
{
    st_table_free(file->table);
    *file = (struct torch_file){0};
}
