/* SPDX-License-Identifier: Apache-2.0 */
#include "view/current.h"

#include "view/node.h"

#include <errno.h>

/* The names of a directory as they are now; a reference. */
errint_t
directory_listing(struct view *view, struct node *node, struct dir_listing **out)
{
    struct dir_listing *fresh, *before = NULL;
    struct listing *listing;
    errint_t error = source_dir_listing(node->dir, &listing);

    if (error)
        return error;
    pthread_mutex_lock(&view->lock);
    if (node->listing && node->listing->listing == listing) {
        *out = dir_listing_ref(node->listing);
        pthread_mutex_unlock(&view->lock);
        listing_unref(listing);
        return 0;
    }
    pthread_mutex_unlock(&view->lock);
    fresh = dir_listing_new(listing, source_dir_path(node->dir), node->view, &view->options);
    if (!fresh)
        return -ENOMEM;
    pthread_mutex_lock(&view->lock);
    before = node->listing;
    node->listing = dir_listing_ref(fresh);
    pthread_mutex_unlock(&view->lock);
    dir_listing_unref(before);
    *out = fresh;
    return 0;
}

errint_t
entry_checkpoint(const struct node *node, const struct dir_listing *listing,
                 const struct dir_entry *entry, struct checkpoint **checkpoint)
{
    return group_checkpoint(node->dir, dir_entry_group(listing, entry), checkpoint);
}

/* The checkpoint of the entry `name` of a directory, if it is of this kind. */
errint_t
named_checkpoint(struct view *view, struct node *node, const char *name, enum dir_entry_kind kind,
                 struct checkpoint **checkpoint)
{
    struct dir_listing *listing;
    const struct dir_entry *entry;
    errint_t error = directory_listing(view, node, &listing);

    if (error)
        return error;
    entry = dir_listing_find(listing, name);
    if (entry && entry->kind == kind)
        error = entry_checkpoint(node, listing, entry, checkpoint);
    else
        error = -ENOENT;
    dir_listing_unref(listing);
    return error;
}

/* The tensors of a NODE_TENSORS as they are now; a reference. */
errint_t
current_tensors(struct view *view, struct node *node, struct tensor_set **set)
{
    struct checkpoint *checkpoint;
    errint_t error = named_checkpoint(view, node->parent, node->name, ENTRY_TENSORS, &checkpoint);

    if (error)
        return error;
    error = node_tensor_set(view, node, checkpoint, set);
    checkpoint_unref(checkpoint);
    return error;
}

/* The directory of the source that a directory of the mount is made of, or in which the
 * checkpoint is that it is made of; NULL: the mount's own. */
struct source_dir *
source_dir_of_node(const struct node *node)
{
    if (node->kind == NODE_TENSORS)
        node = node->parent;
    return node->kind == NODE_DIRECTORY ? node->dir : NULL;
}

/* Whether to look again, since the source has other files now than the view knew. */
bool
looks_again(const struct node *directory, errint_t error, int *tries)
{
    struct source_dir *dir = source_dir_of_node(directory);

    if (error != -ESTALE || !dir || (*tries)++ > 0)
        return false;
    source_dir_expire(dir);
    return true;
}
