/* SPDX-License-Identifier: Apache-2.0 */
#include "format/json.h"
#include "view/access.h"
#include "view/current.h"
#include "view/node.h"

#include <errno.h>
#include <linux/limits.h>
#include <string.h>
#include <unistd.h>

static const char *const xattr_names[] = {
    "user.safetensors.name",
    "user.safetensors.dtype",
    "user.safetensors.shape",
    "user.fstfs.extents",
};
static const char xattr_source[] = "user.fstfs.source";

static void
add_shape(const struct st_table *table, const struct st_tensor *tensor, struct buffer *value)
{
    buffer_add_char(value, '[');
    for (uint32_t i = 0; i < tensor->rank; i++) {
        if (i)
            buffer_add_text(value, ", ");
        buffer_add_u64(value, table->dims[tensor->shape + i]);
    }
    buffer_add_char(value, ']');
}

/* A name from the file system: as text where it is UTF-8; else, since JSON has no string
 * for it, in hexadecimal, and its key says so. */
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

/* Of what is in the source, the real path. */
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
add_extents(const struct view *view, const struct backing *backing, uint64_t offset,
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

/* The file names of the shards, sorted; nothing where the xattr would be longer than the kernel
 * allows: a reader then lists the directory. */
static void
add_shards(const struct checkpoint *checkpoint, struct buffer *value)
{
    size_t before = value->length;

    buffer_add_text(value, ", \"shards\": [");
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const char *name = checkpoint->shards[i]->name;

        buffer_add_text(value, i ? ", {" : "{");
        add_file_name("file", name, strlen(name), value);
        buffer_add_char(value, '}');
    }
    buffer_add_char(value, ']');
    if (value->length >= XATTR_SIZE_MAX)
        value->length = before;
}

static void
add_source(const struct view *view, const struct checkpoint *checkpoint, struct buffer *value)
{
    buffer_add_char(value, '{');
    add_source_path(view, "directory", checkpoint->directory, value);
    buffer_add_text(value, ", ");
    add_file_name("checkpoint", checkpoint->stem, strlen(checkpoint->stem), value);
    buffer_addf(value, ", \"version\": \"%016llx\"",
                (unsigned long long)checkpoint_version(checkpoint));
    add_shards(checkpoint, value);
    buffer_add_char(value, '}');
}

static errint_t
tensor_xattr(struct view *view, const struct caller *caller, node_id id, const char *name,
             struct buffer *value)
{
    const struct st_tensor *tensor;
    const struct shard *shard;
    struct tensor_set *set;
    struct tensor_ref ref;
    const char *dtype;
    uint32_t position;
    errint_t error;
    size_t length;

    set = node_set_of(view, id, &position);
    error = check_tensor(view, caller, set, position);
    if (error)
        return error;
    ref = set_tensor(set, position);
    shard = set->checkpoint->shards[ref.shard];
    tensor = &shard->table->tensors[ref.tensor];
    if (strcmp(name, xattr_names[0]) == 0) {
        buffer_add(value, shard->table->text + tensor->name, tensor->name_length);
    } else if (strcmp(name, xattr_names[1]) == 0) {
        dtype = st_dtype_text(shard->table, tensor, &length);
        buffer_add(value, dtype, length);
    } else if (strcmp(name, xattr_names[2]) == 0) {
        add_shape(shard->table, tensor, value);
    } else if (strcmp(name, xattr_names[3]) == 0) {
        add_extents(view, shard->backing, shard->table->data_start + tensor->begin,
                    tensor->end - tensor->begin, value);
    } else {
        return -ENODATA;
    }
    return 0;
}

/* Which of the xattrs a node has that is not a tensor's; NULL: none. */
static const char *
node_xattr(const struct node *node)
{
    if (node->kind == NODE_WHOLE)
        return xattr_names[3];
    if (node->kind == NODE_TENSORS ||
        (node->kind == NODE_MADE && (node->made == MADE_MERGED || node->made == MADE_PART)))
        return xattr_source;
    return NULL;
}

static errint_t
add_node_xattr(struct view *view, const struct caller *caller, struct node *node,
               struct buffer *value)
{
    struct tensor_set *set;
    errint_t error;

    if (view->options.check) {
        error = access_node(view, caller, node, R_OK);
        if (error)
            return error;
    }
    if (node->kind == NODE_WHOLE) {
        add_extents(view, node->backing, 0, node->backing->identity.size, value);
    } else if (node->kind == NODE_MADE) {
        add_source(view, node->checkpoint, value);
    } else {
        error = current_tensors(view, node, &set);
        if (error)
            return error;
        add_source(view, set->checkpoint, value);
        node_set_unref(view, set, 1);
    }
    return 0;
}

errint_t
view_getxattr(struct view *view, const struct caller *caller, node_id id, const char *name,
              struct buffer *value)
{
    const char *has;
    errint_t error;

    if (node_is_tensor(id)) {
        error = tensor_xattr(view, caller, id, name, value);
    } else {
        has = node_xattr(node_of(view, id));
        if (!has || strcmp(name, has) != 0)
            return -ENODATA;
        error = add_node_xattr(view, caller, node_of(view, id), value);
    }
    return !error && buffer_failed(value) ? -ENOMEM : error;
}

errint_t
view_listxattr(struct view *view, node_id id, struct buffer *names)
{
    const char *has;

    if (node_is_tensor(id)) {
        for (size_t i = 0; i < sizeof(xattr_names) / sizeof(xattr_names[0]); i++)
            buffer_add(names, xattr_names[i], strlen(xattr_names[i]) + 1);
    } else {
        has = node_xattr(node_of(view, id));
        if (has)
            buffer_add(names, has, strlen(has) + 1);
    }
    return buffer_failed(names) ? -ENOMEM : 0;
}
