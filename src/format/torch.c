/* SPDX-License-Identifier: Apache-2.0 */
/* See torch.h. The two formats differ only in where storages are; torch_source.c finds them. */
#include "format/torch.h"

#include "base/array.h"
#include "format/pickle.h"
#include "format/safetensors.h"
#include "format/torch_globals.h"
#include "format/torch_source.h"
#include "format/torch_state.h"
#include "format/torch_unseen.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 64, /* of nested dictionaries, lists and tuples */
    NAME_BYTES_MAX = 4096, /* of a tensor's name */
    NAME_BYTES_PER_VISIT = 16, /* a value with a longer name counts as several */
    CALL_VISITS = 16, /* and so does a call: a tensor takes more than 40 bytes of a pickle */
    RANK_MAX = 64, /* torch's own limit */
    WRAPPERS_MAX = 4, /* of a tensor: parameters, and copies to a device */
};

/* ---- one tensor ---- */

/* A traversal of the dictionaries, lists and tuples of a file: its containers. */
struct torch_walk {
    struct pickle *pickle;
    struct torch_source *source;
    struct reason *reason;
    uint32_t refused_count; /* see struct st_table */
    struct buffer refused;
    size_t visits_left; /* limits the traversal: containers may contain each other */
    pickle_value skipped_key; /* of the outermost dictionary, omitted in names; or OPAQUE */
    struct st_builder *builder; /* NULL: this pass only counts */
    struct st_counts counts;
    uint32_t found; /* tensors, including refused ones */
    uint32_t with_tensors; /* entries of the outermost dictionary that contain tensors */
    pickle_value dict_with_tensors; /* key of the last of them if it can be skipped; or OPAQUE */
    uint32_t unnamed; /* keys of the current path that cannot be part of a name */
    uint32_t unsure; /* and those that may be equal to another key of their dictionary */
    uint32_t depth; /* of nested containers */
    errint_t failed; /* reading the file failed; `reason` is set */
    bool changed; /* this pass found more than the counting pass */
    size_t name_length;
    char name[NAME_BYTES_MAX];
};

/* Counts a tensor that cannot be shown, and keeps the first reasons. The file remains valid. */
static void refuse_tensor_of(struct torch_walk *walk, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void
refuse_tensor_of(struct torch_walk *walk, const char *format, ...)
{
    char shown[QUOTED_SIZE], why[160];
    va_list arguments;

    if (walk->builder || walk->refused_count++ >= TORCH_REFUSED_NAMED)
        return;
    va_start(arguments, format);
    vsnprintf(why, sizeof(why), format, arguments);
    va_end(arguments);
    buffer_addf(&walk->refused, "tensor \"%s\": %s\n", quoted(shown, walk->name, walk->name_length),
                why);
}

static const struct pickle_node *
node_of(const struct torch_walk *walk, pickle_value value, enum pickle_kind kind)
{
    return pickle_kind_of(walk->pickle, value) == kind ? &walk->pickle->nodes[value] : NULL;
}

/* Counts the visits of a value. They are limited by the length of the pickle. */
static errint_t
count_visits(struct torch_walk *walk, size_t visits)
{
    if (walk->visits_left < visits)
        return reason_set(walk->reason, -EBADMSG, "TorchNesting",
                          "its dictionaries, lists and tuples contain each other too often, or "
                          "names are too long");
    walk->visits_left -= visits;
    return 0;
}

/* Whether the value is None or an empty dictionary. A call is neither, whatever it returns. */
static bool
is_none_or_empty(const struct torch_walk *walk, pickle_value value)
{
    const struct pickle_node *dict = node_of(walk, value, PICKLE_DICT);

    return value == PICKLE_VALUE_NONE || (dict && !dict->a);
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
        if (!pickle_get_number(walk->pickle, pickle_tuple_item(walk->pickle, tuple, i),
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
 * None or a view of the storage, (VIEW_KEY, OFFSET, ELEMENTS). Tensors with the same VIEW_KEY share
 * a view; torch_source.c has refused files in which they describe it differently.
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

    if (persistent)
        pickle->nodes[value].flags |= TORCH_SEEN;
    if (!pickle_string_is(pickle, pickle_tuple_item(pickle, id, 0), "storage")) {
        refuse_tensor_of(walk, "it has no storage");
        return false;
    }
    if (!torch_storage_class(pickle, pickle_tuple_item(pickle, id, 1), &element) ||
        !pickle_get_string(pickle, pickle_tuple_item(pickle, id, 2), &text, &length) ||
        !pickle_get_number(pickle, pickle_tuple_item(pickle, id, 4), &elements) ||
        __builtin_mul_overflow(elements, (uint64_t)element.bytes, &storage->bytes)) {
        refuse_tensor_of(walk, "the description of its storage is malformed or of an unknown type");
        return false;
    }
    storage->dtype = element.dtype;
    storage->offset = 0;
    if (storage->bytes) {
        struct reason why = {0};
        uint64_t bytes;
        errint_t error =
            torch_source_find(walk->source, text, length, &storage->offset, &bytes, &why);

        if (error && error != -EBADMSG) { /* the tensor may be sound */
            walk->failed = error;
            reason_fill(walk->reason, why.rule, "%s", why.text);
            return false;
        }
        if (error) {
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
    if (pickle_tuple_length(pickle, id) < 6 || view_id == PICKLE_VALUE_NONE)
        return true;
    if (walk->source->is_zip ||
        !pickle_get_number(pickle, pickle_tuple_item(pickle, view_id, 1), &offset) ||
        !pickle_get_number(pickle, pickle_tuple_item(pickle, view_id, 2), &view) ||
        offset > elements || view > elements - offset) {
        refuse_tensor_of(walk, "the view of its storage is malformed or outside of it");
        return false;
    }
    storage->offset += offset * element.bytes;
    storage->bytes = view * element.bytes;
    return true;
}

/* Row-major without gaps. Strides of dimensions with one element are ignored. */
static bool
is_contiguous(const struct st_entry *tensor, const uint64_t *strides)
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
double_last_dimension(struct torch_walk *walk, uint64_t *dims, uint32_t rank)
{
    if (rank && !__builtin_mul_overflow(dims[rank - 1], UINT64_C(2), &dims[rank - 1]))
        return true;
    refuse_tensor_of(walk, "float4_e2m1fn_x2 without a dimension");
    return false;
}

/* Reads (STORAGE, OFFSET, SIZE, STRIDE, REQUIRES_GRAD, HOOKS[, DTYPE][, METADATA]). */
static bool
read_strided(struct torch_walk *walk, pickle_value arguments, bool has_dtype,
             struct st_entry *tensor, uint64_t dims[RANK_MAX])
{
    const struct pickle *pickle = walk->pickle;
    const uint32_t metadata = has_dtype ? 7 : 6;
    uint64_t strides[RANK_MAX], offset, elements = 1, bytes, end;
    struct storage storage;
    uint32_t stride_count;
    bool overflow = false;

    if (!read_storage(walk, pickle_tuple_item(pickle, arguments, 0), &storage))
        return false;
    if (!pickle_get_number(pickle, pickle_tuple_item(pickle, arguments, 1), &offset) ||
        !read_numbers(walk, pickle_tuple_item(pickle, arguments, 2), dims, &tensor->rank) ||
        !read_numbers(walk, pickle_tuple_item(pickle, arguments, 3), strides, &stride_count) ||
        stride_count != tensor->rank) {
        refuse_tensor_of(walk, "its size, stride or offset is malformed");
        return false;
    }
    if (pickle_tuple_length(pickle, arguments) > metadata &&
        !is_none_or_empty(walk, pickle_tuple_item(pickle, arguments, metadata))) {
        /* Of a conjugate or negative view, the bytes are not the values. */
        refuse_tensor_of(walk, "it has metadata, like a lazy view (conjugate or negative)");
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
    if (tensor->dtype == DTYPE_F4 && !double_last_dimension(walk, dims, tensor->rank))
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

enum tensor_verdict { NO_TENSOR, TENSOR_REFUSED, TENSOR_FOUND };

/* Why a tensor whose state is not plain (torch_state.h) is refused. */
#define WITH_STATE "state is set on it, which can replace its values"

/* See torch_state.h. Fails the traversal if the state takes too many visits. */
static bool
is_plain_state(struct torch_walk *walk, pickle_value state)
{
    bool is_plain = torch_is_plain_state(walk->pickle, state, &walk->visits_left);

    if (walk->visits_left == 0)
        walk->failed = count_visits(walk, 1);
    return is_plain;
}

/* Unwraps parameters: *value is then the call that creates the tensor. Returns why the tensor is
 * refused, or NULL. *dtype is the value of a dtype that it would be converted to, or OPAQUE. */
static const char *
unwrap_parameter(struct torch_walk *walk, pickle_value *value, pickle_value *dtype)
{
    const struct pickle_node *call = node_of(walk, *value, PICKLE_CALL);
    const char *why = NULL;
    unsigned wrappers = 0;

    *dtype = PICKLE_VALUE_OPAQUE;
    for (; call; call = node_of(walk, *value, PICKLE_CALL)) {
        bool is_converted =
            torch_calls(walk->pickle, call, "_rebuild_device_tensor_from_cpu_tensor");
        bool has_state = torch_calls(walk->pickle, call, "_rebuild_parameter_with_state");

        if (call->flags & PICKLE_CALL_BUILT)
            why = WITH_STATE;
        if (!is_converted && !has_state && !torch_calls(walk->pickle, call, "_rebuild_parameter"))
            break;
        if (has_state && !is_plain_state(walk, pickle_tuple_item(walk->pickle, call->b, 3)))
            why = WITH_STATE;
        if (is_converted)
            *dtype = pickle_tuple_item(walk->pickle, call->b, 1);
        if (++wrappers > WRAPPERS_MAX)
            break; /* not a tensor; its contents count as not reached */
        *value = pickle_tuple_item(walk->pickle, call->b, 0);
    }
    return why;
}

/* Whether the value is a tensor; sets its dtype, shape and offsets. */
static enum tensor_verdict
look_for_tensor(struct torch_walk *walk, pickle_value value, struct st_entry *tensor,
                uint64_t dims[RANK_MAX])
{
    const struct pickle *pickle = walk->pickle;
    pickle_value converted, arguments;
    const char *wrapped = unwrap_parameter(walk, &value, &converted), *why;
    const struct pickle_node *call = node_of(walk, value, PICKLE_CALL);
    enum dtype dtype;
    bool has_dtype = false;

    if (!call)
        return NO_TENSOR;
    arguments = call->b;
    why = torch_refusal_of(walk->pickle, call);
    if (!why && torch_is_call_from_type(walk->pickle, call)) {
        if (!torch_is_plain_class(walk->pickle, pickle_tuple_item(pickle, call->b, 1)))
            why = "it is of a subclass of torch.Tensor";
        else if (!torch_makes_tensor(pickle, pickle_tuple_item(pickle, call->b, 0), &has_dtype))
            return NO_TENSOR;
        else if (!is_plain_state(walk, pickle_tuple_item(pickle, call->b, 3)))
            why = WITH_STATE;
        arguments = pickle_tuple_item(pickle, call->b, 2);
    } else if (!why && !torch_makes_tensor(pickle, call->a, &has_dtype)) {
        return NO_TENSOR;
    }
    if (!why)
        why = wrapped;
    if (why) {
        torch_mark_parts(walk->pickle, value, &walk->visits_left);
        refuse_tensor_of(walk, "%s", why);
        return TENSOR_REFUSED;
    }
    pickle->nodes[value].flags |= TORCH_SEEN;
    if (!read_strided(walk, arguments, has_dtype, tensor, dims))
        return TENSOR_REFUSED;
    if (converted != PICKLE_VALUE_OPAQUE &&
        (!torch_dtype(pickle, converted, &dtype) || dtype != tensor->dtype)) {
        refuse_tensor_of(walk, "it is stored in a dtype other than its own");
        return TENSOR_REFUSED;
    }
    return TENSOR_FOUND;
}

/* ---- containers ---- */

/* Adds a tensor to the table, or counts it. */
static void
take_tensor(struct torch_walk *walk, pickle_value value)
{
    uint64_t dims[RANK_MAX];
    struct st_entry tensor = {.name = walk->name, .name_length = walk->name_length, .dims = dims};
    enum tensor_verdict verdict = look_for_tensor(walk, value, &tensor, dims);
    const char *refusal;

    if (verdict == NO_TENSOR)
        return;
    walk->found++;
    if (verdict == TENSOR_REFUSED)
        return;
    if (walk->unnamed) {
        refuse_tensor_of(walk,
                         "a key in its path is not a string or an integer of 64 bits, or its "
                         "name is longer than %d bytes",
                         NAME_BYTES_MAX);
    } else if (walk->unsure) {
        refuse_tensor_of(walk, "a key in its path may equal another key, whose value is not known");
    } else if ((refusal = st_name_refusal(walk->name, walk->name_length))) {
        refuse_tensor_of(walk, "its name %s", refusal);
    } else if (walk->builder) {

        walk->changed |= !st_builder_add(walk->builder, &tensor);
    } else {
        walk->counts.tensors++;
        walk->counts.dims += tensor.rank;
        walk->counts.text += walk->name_length;
    }
}

/* Appends ".KEY" to the name. False: the key is neither a string nor an integer of 64 bits, or the
 * name would be too long. */
static bool
append_key(struct torch_walk *walk, pickle_value key)
{
    const uint32_t outermost = walk->skipped_key == PICKLE_VALUE_OPAQUE ? 1 : 2;
    const bool has_dot = walk->depth > outermost;
    char digits[24];
    const char *text;
    size_t length;
    int64_t number;

    if (pickle_get_integer(walk->pickle, key, &number)) {
        length = (size_t)snprintf(digits, sizeof(digits), "%" PRId64, number);
        text = digits;
    } else if (!pickle_get_string(walk->pickle, key, &text, &length)) {
        return false;
    }
    if (length + has_dot > sizeof(walk->name) - walk->name_length)
        return false;
    if (has_dot)
        walk->name[walk->name_length++] = '.';
    memcpy(walk->name + walk->name_length, text, length);
    walk->name_length += length;
    return true;
}

static bool
is_container(const struct torch_walk *walk, pickle_value value)
{
    enum pickle_kind kind = pickle_kind_of(walk->pickle, value);

    return kind == PICKLE_DICT || kind == PICKLE_LIST || kind == PICKLE_TUPLE;
}

static errint_t walk_container(struct torch_walk *walk, pickle_value container);

static errint_t
walk_value(struct torch_walk *walk, pickle_value value)
{
    const struct pickle_node *call = node_of(walk, value, PICKLE_CALL);
    const bool is_named = call && pickle_kind_of(walk->pickle, call->a) == PICKLE_GLOBAL;
    const size_t visits = (is_named ? CALL_VISITS : 1) + walk->name_length / NAME_BYTES_PER_VISIT;
    errint_t error = count_visits(walk, visits);

    if (error)
        return error;
    if (is_container(walk, value))
        return walk_container(walk, value);
    take_tensor(walk, value);
    return 0;
}

/* Whether names may omit this key of the root: root and value are dictionaries, and the key is a
 * string or an integer. Other keys are not compared with each other, so the dictionary may have
 * another entry of an equal key. */
static bool
can_be_skipped(const struct torch_walk *walk, pickle_value key, pickle_value value)
{
    const struct pickle *pickle = walk->pickle;
    enum pickle_kind kind = pickle_kind_of(pickle, key);

    return pickle_kind_of(pickle, pickle->root) == PICKLE_DICT &&
           pickle_kind_of(pickle, value) == PICKLE_DICT &&
           (kind == PICKLE_STRING || kind == PICKLE_NUMBER);
}

static errint_t
walk_entry(struct torch_walk *walk, const struct pickle_node *container, pickle_value key,
           pickle_value value)
{
    const bool is_unsure = container->kind == PICKLE_DICT && container->flags & PICKLE_DICT_UNSURE;
    size_t name_length = walk->name_length;
    uint32_t found = walk->found;
    bool is_one_kept = walk->depth == 1 && walk->skipped_key != PICKLE_VALUE_OPAQUE;
    bool is_skipped = is_one_kept && key == walk->skipped_key, is_named;
    errint_t error;

    if (is_one_kept && !is_skipped)
        return 0;
    if (!is_container(walk, value) && pickle_kind_of(walk->pickle, value) != PICKLE_CALL)
        return count_visits(walk, 1); /* no tensor, so its name does not matter */
    is_named = is_skipped || append_key(walk, key);
    walk->unnamed += !is_named;
    walk->unsure += is_unsure;
    error = walk_value(walk, value);
    walk->unsure -= is_unsure;
    walk->unnamed -= !is_named;
    walk->name_length = name_length;
    if (walk->depth == 1 && walk->found > found) {
        walk->with_tensors++;
        walk->dict_with_tensors = can_be_skipped(walk, key, value) ? key : PICKLE_VALUE_OPAQUE;
    }
    return error;
}

static errint_t
walk_container(struct torch_walk *walk, pickle_value container)
{
    const struct pickle *pickle = walk->pickle;
    const struct pickle_node *node = &pickle->nodes[container];
    errint_t error = 0;

    if (walk->depth == DEPTH_MAX)
        return reason_set(walk->reason, -EBADMSG, "TorchNesting",
                          "dictionaries, lists and tuples are nested more than %d deep", DEPTH_MAX);
    walk->depth++;
    if (node->kind == PICKLE_TUPLE)
        for (uint32_t i = 0; !error && i < node->b; i++)
            error = walk_entry(walk, node, PICKLE_NUMBER_BIT | i, pickle->items[node->a + i]);
    else
        for (uint32_t i = node->a; !error && i; i = pickle->entries[i].next)
            error = walk_entry(walk, node, pickle->entries[i].key, pickle->entries[i].value);
    walk->depth--;
    return error;
}

/* Traverses all tensors once. */
static errint_t
walk_root(struct torch_walk *walk)
{
    errint_t error;

    walk->visits_left = walk->pickle->length + TORCH_SLACK;
    walk->found = walk->with_tensors = 0;
    walk->counts = (struct st_counts){.metadata = 1, .text = sizeof("formatpt") - 1};
    walk->name_length = 0;
    if (!is_container(walk, walk->pickle->root)) {
        walk->name_length = sizeof(TORCH_SINGLE_NAME) - 1;
        memcpy(walk->name, TORCH_SINGLE_NAME, walk->name_length);
    }
    if (!walk->builder) {
        walk->refused_count = 0;
        buffer_free(&walk->refused);
    }
    error = walk_value(walk, walk->pickle->root);
    return error ? error : walk->failed;
}

/*
 * The entry "state_dict" of a checkpoint of PyTorch Lightning: its other entries,
 * "optimizer_states", "callbacks" and so on, are the state of the training run (dump_checkpoint()
 * in lightning/pytorch/trainer/connectors/checkpoint_connector.py). 0: it is no such checkpoint.
 */
static uint32_t
find_lightning_weights(const struct pickle *pickle)
{
    uint32_t weights;

    if (!pickle_find_key(pickle, pickle->root, "pytorch-lightning_version"))
        return 0;
    weights = pickle_find_key(pickle, pickle->root, "state_dict");
    if (weights && pickle_kind_of(pickle, pickle->entries[weights].value) == PICKLE_DICT)
        return weights;
    return 0;
}

/* Counts a tensor or storage that the traversal has not reached, and keeps the first reasons. */
static void
refuse_unseen(void *arg, const char *line)
{
    struct torch_walk *walk = arg;

    if (walk->refused_count++ < TORCH_REFUSED_NAMED)
        buffer_addf(&walk->refused, "%s\n", line);
}

/* Chooses the skipped key, and counts tensors and the sizes of their names and shapes. */
static errint_t
count_tensors(struct torch_walk *walk)
{
    const uint32_t weights = find_lightning_weights(walk->pickle);
    pickle_value all = walk->pickle->root;
    errint_t error;

    walk->skipped_key = PICKLE_VALUE_OPAQUE;
    if (weights) {
        walk->skipped_key = walk->pickle->entries[weights].key;
        all = walk->pickle->entries[weights].value;
    }
    error = walk_root(walk);
    if (!error && !weights && walk->with_tensors == 1 &&
        walk->dict_with_tensors != PICKLE_VALUE_OPAQUE) {
        walk->skipped_key = walk->dict_with_tensors;
        error = walk_root(walk);
    }
    return error ? error
                 : torch_refuse_unseen(walk->pickle, all, &walk->visits_left, refuse_unseen, walk,
                                       walk->reason);
}

static errint_t
fill_torch_table(struct torch_walk *walk, struct st_table **table)
{
    uint64_t most = walk->pickle->length * TORCH_TABLE_FACTOR + TORCH_SLACK;
    struct st_builder builder;
    errint_t error;

    if (st_counts_bytes(&walk->counts) > most)
        return reason_set(walk->reason, -EBADMSG, "TorchNesting",
                          "the names of its tensors take more than %" PRIu64
                          " bytes, for a pickle of %zu",
                          most, walk->pickle->length);
    if (walk->refused_count)
        walk->counts.text += walk->refused.length + 1;
    if (buffer_failed(&walk->refused) || !st_builder_init(&builder, &walk->counts))
        return reason_no_memory(walk->reason);
    if (walk->refused_count)
        st_builder_set_refused(&builder, walk->refused_count, walk->refused.data);
    st_builder_add_pair(&builder, (struct st_text){"format", 6}, (struct st_text){"pt", 2}, false);
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
    *table = builder.table;
    return 0;
}

/* ---- the file ---- */

static errint_t
read_tensors(struct torch_source *source, struct st_table **table, struct reason *reason)
{
    struct torch_walk *walk = calloc(1, sizeof(*walk));
    errint_t error;

    if (!walk)
        return reason_no_memory(reason);
    walk->pickle = &source->pickle;
    walk->source = source;
    walk->reason = reason;
    if (source->is_zip)
        zip_locate_all(&source->zip);
    error = count_tensors(walk);
    if (!error && walk->found == 0)
        error = reason_set(reason, -ENOMSG, "NoTensors",
                           "it contains no tensor in dictionaries, lists and tuples");
    if (!error && source->is_zip)
        error = zip_check_members(&source->zip, reason);
    if (!error)
        error = fill_torch_table(walk, table);
    buffer_free(&walk->refused);
    free(walk);
    return error;
}

errint_t
torch_read(int fd, uint64_t file_size, st_admit *admit, void *arg, struct buffer *imports,
           struct torch_file *file, struct reason *reason)
{
    struct torch_imports list = {0};
    struct torch_source source;
    errint_t error =
        torch_source_open(fd, file_size, admit, arg, imports ? &list : NULL, &source, reason);

    *file = (struct torch_file){.is_zip = source.is_zip};
    if (!error && imports && source.is_zip)
        error = torch_source_check_version(&source, &file->version, reason);
    if (!error)
        error = read_tensors(&source, &file->table, reason);
    torch_source_close(&source);
    if (imports)
        torch_imports_write(&list, imports);
    file->imports_incomplete = list.is_incomplete;
    torch_imports_free(&list);
    return error;
}

void
torch_file_free(struct torch_file *file)
{
    st_table_free(file->table);
    *file = (struct torch_file){0};
}
