/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes, which describe where the bytes of a file are stored and in which version. */
#include "format/json.h"
#include "view/access.h"
#include "view/current.h"
#include "view/index.h"
#include "view/tensor_set.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/limits.h>
#include <string.h>
#include <unistd.h>

enum xattr {
    XATTR_NAME,
    XATTR_DTYPE,
    XATTR_SHAPE,
    XATTR_GGUF_NAME,
    XATTR_GGUF_TYPE,
    XATTR_GGUF_SHAPE,
    XATTR_EXTENTS,
    XATTR_SOURCE,
    XATTRS
};

static const char *const xattr_names[XATTRS] = {
    "user.safetensors.name", "user.safetensors.dtype", "user.safetensors.shape",
    "user.gguf.name",        "user.gguf.type",         "user.gguf.shape",
    "user.fstfs.extents",    "user.fstfs.source",
};

/* Tensors of GGUF files have xattrs of their own, and user.safetensors.* if safetensors has their
 * type. */
static bool
tensor_has_xattr(const struct node *set, uint32_t position, enum xattr xattr)
{
    const struct set_tensor at = tensor_set_at(set, position);

    switch (xattr) {
    case XATTR_NAME:
    case XATTR_DTYPE:
    case XATTR_SHAPE:
        return !at.shard->table->gguf || at.tensor->dtype != DTYPE_UNKNOWN;
    case XATTR_GGUF_NAME:
    case XATTR_GGUF_TYPE:
    case XATTR_GGUF_SHAPE:
        return at.shard->table->gguf != NULL;
    default:
        return xattr == XATTR_EXTENTS;
    }
}

/* `position`: of a tensor file. */
static bool
has_xattr(const struct node *node, uint32_t position, enum xattr xattr)
{
    switch (node->kind) {
    case NODE_TENSOR_SET:
        return tensor_has_xattr(node, position, xattr);
    case NODE_SOURCE_FILE:
        return xattr == XATTR_EXTENTS;
    case NODE_TENSORS:
        return xattr == XATTR_SOURCE;
    case NODE_MADE_FILE:
        return xattr == XATTR_SOURCE &&
               (node->made.kind == MADE_MERGED || node->made.kind == MADE_PART ||
                node->made.kind == MADE_SHARD);
    default:
        return false;
    }
}

/* Adds a file name: as a JSON string if it is UTF-8, else in hexadecimal under the key `KEY_hex`.
 */
static void
add_file_name(const char *key, const char *name, size_t length, struct buffer *value)
{
    size_t at;

    if (json_check_utf8(name, length, &at)) {
        buffer_addf(value, "\"%s\": ", key);
        buffer_add_json_string(value, name, length);
        return;
    }
    buffer_addf(value, "\"%s_hex\": \"", key);
    for (size_t i = 0; i < length; i++)
        buffer_addf(value, "%02x", (unsigned char)name[i]);
    buffer_add_char(value, '"');
}

/* Adds the absolute path of a file of the source. */
static void
add_source_path(const struct view *view, const char *key, const char *path, struct buffer *value)
{
    struct buffer whole = BUFFER_INIT;

    buffer_add_text(&whole, catalog_source(view->catalog));
    if (*path) {
        buffer_add_char(&whole, '/');
        buffer_add_text(&whole, path);
    }
    if (buffer_failed(&whole))
        value->failed = true;
    else
        add_file_name(key, whole.data, whole.length, value);
    buffer_free(&whole);
}

static void
add_extents_xattr(const struct view *view, const struct backing *backing, uint64_t offset,
                  uint64_t length, struct buffer *value)
{
    buffer_add_text(value, "[{");
    add_source_path(view, "path", backing->path, value);
    buffer_add_text(value, ", \"offset\": ");
    buffer_add_u64(value, offset);
    buffer_add_text(value, ", \"length\": ");
    buffer_add_u64(value, length);
    buffer_addf(value, ", \"version\": \"%016llx\"}]",
                (unsigned long long)file_identity_hash(&backing->identity, 0));
}

/* Adds the file names of the shards, sorted, and their versions. */
static void
add_shard_list(const struct checkpoint *checkpoint, struct buffer *value)
{
    buffer_add_text(value, ", \"shards\": [");
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        buffer_add_text(value, i ? ", {" : "{");
        add_file_name("file", shard->name, strlen(shard->name), value);
        buffer_addf(value, ", \"version\": \"%016llx\"}",
                    (unsigned long long)file_identity_hash(&shard->identity, 0));
    }
    buffer_add_char(value, ']');
}

static void
add_shard_versions(const struct checkpoint *checkpoint, struct buffer *value)
{
    buffer_add_text(value, ", \"versions\": [");
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        buffer_addf(value, "%s\"%016llx\"", i ? "," : "",
                    (unsigned long long)file_identity_hash(&checkpoint->shards[i]->identity, 0));
    buffer_add_char(value, ']');
}

/* Of the shards, adds what fits into an xattr: names and versions, versions only, or nothing. */
static void
add_source_xattr(const struct view *view, const struct checkpoint *checkpoint, struct buffer *value)
{
    const char *fault = checkpoint_fault(checkpoint);
    size_t end;

    buffer_add_char(value, '{');
    add_source_path(view, "directory", checkpoint->directory, value);
    buffer_add_text(value, ", ");
    add_file_name("checkpoint", checkpoint->stem, strlen(checkpoint->stem), value);
    buffer_addf(value, ", \"version\": \"%016llx\"", (unsigned long long)checkpoint->version);
    buffer_addf(value, ", \"tensors\": %" PRIu32, checkpoint->tensor_count);
    if (fault) {
        buffer_add_text(value, ", \"unsound\": ");
        buffer_add_json_string(value, fault, strlen(fault));
    }
    end = value->length;
    add_shard_list(checkpoint, value);
    if (value->length >= XATTR_SIZE_MAX) {
        value->length = end;
        add_shard_versions(checkpoint, value);
    }
    if (value->length >= XATTR_SIZE_MAX)
        value->length = end;
    buffer_add_char(value, '}');
}

static void
add_tensor_xattr(const struct view *view, const struct node *set, uint32_t position,
                 enum xattr xattr, struct buffer *value)
{
    struct set_tensor at = tensor_set_at(set, position);
    const struct st_table *table = at.shard->table;
    const char *dtype;
    size_t length;

    if (xattr == XATTR_NAME || xattr == XATTR_GGUF_NAME) {
        buffer_add(value, table->text + at.tensor->name, at.tensor->name_length);
    } else if (xattr == XATTR_DTYPE || xattr == XATTR_GGUF_TYPE) {
        dtype = st_dtype_text(table, at.tensor, &length);
        buffer_add(value, dtype, length);
    } else if (xattr == XATTR_SHAPE || xattr == XATTR_GGUF_SHAPE) {
        index_add_shape(table, at.tensor, value);
    } else {
        add_extents_xattr(view, at.shard->backing, at.offset, at.length, value);
    }
}

static errint_t
add_tensors_directory_xattr(struct view *view, const struct caller *caller, struct node *node,
                            struct buffer *value)
{
    struct node *set;
    errint_t error = current_directory(node);

    if (!error)
        error = access_tensors(view, caller, node, &set);
    if (error)
        return error;
    add_source_xattr(view, set->checkpoint, value);
    node_unref(view, set, 1);
    return 0;
}

/* XATTRS: the file has none with this name. */
static enum xattr
find_xattr(const struct node *node, uint32_t position, const char *name)
{
    enum xattr xattr = 0;

    while (xattr < XATTRS &&
           (strcmp(name, xattr_names[xattr]) != 0 || !has_xattr(node, position, xattr)))
        xattr++;
    return xattr;
}

bool
view_has_xattr(struct view *view, node_id id, const char *name)
{
    uint32_t position;
    const struct node *node = node_of(view, id, &position);

    return find_xattr(node, position, name) != XATTRS;
}

errint_t
view_getxattr(struct view *view, const struct caller *caller, node_id id, const char *name,
              struct buffer *value)
{
    uint32_t position;
    struct node *node = node_of(view, id, &position);
    const enum xattr xattr = find_xattr(node, position, name);
    errint_t error;

    if (xattr == XATTRS)
        return -ENODATA;
    if (node->kind == NODE_TENSORS)
        error = add_tensors_directory_xattr(view, caller, node, value);
    else
        error = access_file(view, caller, node, position, R_OK);
    if (error)
        return error;
    if (node->kind == NODE_TENSOR_SET)
        add_tensor_xattr(view, node, position, xattr, value);
    else if (node->kind == NODE_SOURCE_FILE)
        add_extents_xattr(view, node->backing, 0, node->backing->identity.size, value);
    else if (node->kind == NODE_MADE_FILE)
        add_source_xattr(view, node->checkpoint, value);
    return buffer_failed(value) ? -ENOMEM : 0;
}

errint_t
view_listxattr(struct view *view, node_id id, struct buffer *names)
{
    uint32_t position;
    const struct node *node = node_of(view, id, &position);

    for (enum xattr xattr = 0; xattr < XATTRS; xattr++)
        if (has_xattr(node, position, xattr))
            buffer_add(names, xattr_names[xattr], strlen(xattr_names[xattr]) + 1);
    return buffer_failed(names) ? -ENOMEM : 0;
}
