/* SPDX-License-Identifier: Apache-2.0 */
/* Open files: a tensor file, page, file of the source or generated file as an extent list. */
#include "base/version.h"
#include "view/access.h"
#include "view/current.h"
#include "view/list_cache.h"
#include "view/tensor_set.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static errint_t
list_of_tensor(const struct node *set, uint32_t position, struct extent_list **list)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct set_tensor at = tensor_set_at(set, position);
    struct buffer header = BUFFER_INIT;
    errint_t error = tensor_set_header(set, position, &header);

    if (error) {
        buffer_free(&header);
        return error;
    }
    if (header.length)
        extent_builder_add_buffer(&builder, &header);
    extent_builder_add_backing(&builder, at.shard->backing, at.offset, at.length);
    *list = extent_builder_finish(&builder);
    return *list ? 0 : -ENOMEM;
}

/* The backing that the other views read for this shard, if the shard is still the same file; a
 * reference. For a refused shard of a kept container: the node's own backing. */
static errint_t
shard_backing(struct view *view, const struct node *node, struct backing **backing)
{
    struct checkpoint *checkpoint;
    errint_t error =
        current_checkpoint_of_name(view, node->parent, node->name, ENTRY_SHARD, &checkpoint);

    if (error)
        return error == -ENOENT ? -ESTALE : error;
    error = -ESTALE;
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (strcmp(shard->name, node->name) != 0)
            continue;
        if (shard->refusal && checkpoint->container->is_kept && shard->error != -ETXTBSY) {
            *backing = backing_ref(node->backing);
            error = 0;
        } else if (shard->refusal) {
            error = shard->error == -ETXTBSY ? -ETXTBSY : -EIO;
        } else if (file_identity_same_content(&node->backing->identity, &shard->identity)) {
            *backing = backing_ref(shard->backing);
            error = 0;
        }
    }
    checkpoint_unref(checkpoint);
    return error;
}

/* Everything that the kernel caches for a node must be of one version. If the shard has another
 * version, even with the same attributes, the next lookup must find another node. */
static errint_t
serve_one_version(struct view *view, struct node *node, struct backing *backing)
{
    bool same;

    pthread_mutex_lock(&view->lock);
    if (!node->served)
        node->served = backing_ref(backing);
    same = node->served == backing;
    pthread_mutex_unlock(&view->lock);
    if (!same)
        atomic_store(&node->backing->stale, true);
    return same ? 0 : -ESTALE;
}

static errint_t
list_of_source_file(struct view *view, struct node *node, struct extent_list **list)
{
    struct backing *backing;
    errint_t error;

    if (!node->is_shard)
        return list_of_backing(node->backing, list);
    error = shard_backing(view, node, &backing);
    if (error)
        return error;
    error = serve_one_version(view, node, backing);
    if (!error)
        error = list_of_backing(backing, list);
    backing_unref(backing);
    return error;
}

static errint_t
list_of_page(const struct view_page *page, bool for_owner, struct extent_list **list)
{
    struct buffer text = BUFFER_INIT;

    page->open(page->arg, for_owner, &text);
    return list_of_text(&text, list);
}

/* -ESTALE: only the check of a caller had failed, or there was no memory. The kernel then repeats
 * the lookup, which finds another node. */
static errint_t
error_of_unread(struct view *view, struct node *node)
{
    uint64_t size;

    if (node->checkpoint->passing_error)
        return node->checkpoint->passing_error;
    return derived_size(node->checkpoint, &view->options, &node->made, &size) == -ENOMEM ? -ENOMEM
                                                                                         : -ESTALE;
}

static errint_t
list_of_node(struct view *view, const struct caller *caller, struct node *node, uint32_t position,
             struct extent_list **list)
{
    switch (node->kind) {
    case NODE_PAGE:
        return list_of_page(node->page, access_is_owner(view, caller), list);
    case NODE_TENSOR_SET:
        return list_of_tensor(node, position, list);
    case NODE_SOURCE_FILE:
        return list_of_source_file(view, node, list);
    case NODE_MADE_FILE:
        if (node->is_unread)
            return error_of_unread(view, node);
        return list_cache_get(view->lists, node->checkpoint, &view->options, &node->made, list);
    default:
        return -EISDIR;
    }
}

errint_t
view_open(struct view *view, const struct caller *caller, node_id id, struct extent_list **list,
          bool *live)
{
    uint32_t position;
    struct node *node = node_of(view, id, &position);
    errint_t error = access_file(view, caller, node, position, R_OK);

    *live = node->kind == NODE_PAGE;
    if (!error)
        error = list_of_node(view, caller, node, position, list);
    /* After ESTALE the kernel repeats the lookup, which must find the current file. */
    if (error == -ESTALE && node->parent && source_dir_of_node(node->parent))
        source_dir_expire(source_dir_of_node(node->parent));
    if (error)
        return error;
    error = version_open_list(*list, NULL);
    if (error) {
        extent_list_unref(*list);
        *list = NULL;
        return error;
    }
    extent_list_opened(*list);
    return 0;
}

void
view_close(struct view *view, struct extent_list *list)
{
    extent_list_closed(list);
    version_close_list(list);
    extent_list_unref(list);
    list_cache_trim(view->lists);
}
