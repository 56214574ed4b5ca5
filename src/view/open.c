/* SPDX-License-Identifier: Apache-2.0 */
#include "base/version.h"
#include "format/npy.h"
#include "view/access.h"
#include "view/attributes.h"
#include "view/current.h"
#include "view/node.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static errint_t
open_tensor(const struct tensor_set *set, uint32_t position, struct extent_list **list)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct tensor_ref ref = set_tensor(set, position);
    const struct shard *shard = set->checkpoint->shards[ref.shard];
    const struct st_tensor *tensor = &shard->table->tensors[ref.tensor];

    if (set->view == VIEW_NPY) {
        struct buffer header = BUFFER_INIT;
        errint_t error = npy_text(shard->table, tensor, &header);
        struct blob *blob;

        if (error)
            return error;
        blob = blob_new(header.data, header.length);
        if (!blob)
            return -ENOMEM;
        extent_builder_add_blob(&builder, blob, 0, blob->length);
        blob_unref(blob);
    }
    extent_builder_add_backing(&builder, shard->backing, shard->table->data_start + tensor->begin,
                               tensor->end - tensor->begin);
    *list = extent_builder_finish(&builder);
    return *list ? 0 : -ENOMEM;
}

/* The backing of the shard that a whole file is, as the other views read it, if
 * it is sound and still that file; a reference. */
static errint_t
shard_backing(struct view *view, const struct node *node, struct backing **backing)
{
    struct checkpoint *checkpoint;
    errint_t error = named_checkpoint(view, node->parent, node->name, ENTRY_SHARD, &checkpoint);

    if (error)
        return error == -ENOENT ? -ESTALE : error;
    error = -ESTALE;
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (strcmp(shard->name, node->name) != 0)
            continue;
        if (shard->refusal) {
            error = shard->error == -ETXTBSY ? -ETXTBSY : -EIO;
        } else if (file_identity_same_content(&node->backing->identity, &shard->file.identity)) {
            *backing = backing_ref(shard->backing);
            error = 0;
        }
    }
    checkpoint_unref(checkpoint);
    return error;
}

/* What the kernel keeps of a node is of one version. One that ended is followed by another,
 * even of a file that looks the same: that needs another node. */
static errint_t
node_serve(struct view *view, struct node *node, struct backing *backing)
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
open_whole(struct view *view, struct node *node, struct extent_list **list)
{
    struct backing *backing;
    errint_t error = 0;

    if (node->is_shard)
        error = shard_backing(view, node, &backing);
    else
        backing = backing_ref(node->backing);
    if (error)
        return error;
    if (node->is_shard)
        error = node_serve(view, node, backing);
    if (!error)
        error = list_of_backing(backing, list);
    backing_unref(backing);
    return error;
}

static errint_t
open_made(struct view *view, const struct node *node, struct extent_list **list)
{
    struct made made = {node->made, node->part};

    return opened_get(view->opened, node->checkpoint, &view->options, &made, list);
}

static errint_t
open_page(const struct node *node, struct extent_list **list)
{
    struct buffer text = BUFFER_INIT;
    errint_t error = page_text(node->page->open, node->page->arg, &text);

    return error ? error : list_of_text(&text, list);
}

static errint_t
open_node(struct view *view, const struct caller *caller, struct node *node,
          struct extent_list **list, bool *live)
{
    errint_t error = -EISDIR;

    switch (node->kind) {
    case NODE_WHOLE:
        error = check_node(view, caller, node, R_OK);
        return error ? error : open_whole(view, node, list);
    case NODE_MADE:
        error = check_node(view, caller, node, R_OK);
        return error ? error : open_made(view, node, list);
    case NODE_PAGE:
        *live = true;
        error = check_page(view, caller, node->page);
        return error ? error : open_page(node, list);
    case NODE_TOP:
    case NODE_PAGES:
    case NODE_DIRECTORY:
    case NODE_TENSORS:
        break;
    }
    return error;
}

static errint_t
open_tensor_file(struct view *view, const struct caller *caller, node_id id,
                 struct extent_list **list)
{
    uint32_t position;
    struct tensor_set *set = node_set_of(view, id, &position);
    errint_t error = check_tensor(view, caller, set, position);

    return error ? error : open_tensor(set, position, list);
}

errint_t
view_open(struct view *view, const struct caller *caller, node_id id, struct extent_list **list,
          bool *live)
{
    struct node *node;
    errint_t error;

    *live = false;
    if (node_is_tensor(id)) {
        error = open_tensor_file(view, caller, id, list);
    } else {
        node = node_of(view, id);
        error = open_node(view, caller, node, list, live);
        /* The kernel looks the path up anew, and has to find what is there now. */
        if (error == -ESTALE && node->parent && source_dir_of_node(node->parent))
            source_dir_expire(source_dir_of_node(node->parent));
    }
    if (error)
        return error;
    error = version_open_list(*list);
    if (error) {
        extent_list_unref(*list);
        *list = NULL;
        return error;
    }
    extent_list_opened(*list);
    return 0;
}

/* access(2), where the kernel does not answer it by the modes shown. */

void
view_close(struct view *view, struct extent_list *list)
{
    extent_list_closed(list);
    version_close_list(list);
    extent_list_unref(list);
    opened_trim(view->opened);
}
