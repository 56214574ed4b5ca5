/* SPDX-License-Identifier: Apache-2.0 */
#include "view/current.h"

#include "view/tensor_set.h"

#include <errno.h>

static const struct node *
directory_of_node(const struct node *node)
{
    if (node->kind == NODE_TENSORS)
        node = node->parent;
    return node->kind == NODE_DIRECTORY ? node : NULL;
}

/* Replaces errors that depend on what is at the path now. `now` is not read after an error. */
static errint_t
check_source(const struct node *directory, const struct file_identity *now, errint_t error)
{
    if (!directory->source_inode || error_is_lack(error) || error == -EIO)
        return error;
    return error || now->device != directory->source_device || now->inode != directory->source_inode
               ? -ESTALE
               : 0;
}

errint_t
current_directory(const struct node *node)
{
    const struct node *directory = directory_of_node(node);
    struct file_identity now;

    return directory && directory->source_inode ? current_stat(directory, &now) : 0;
}

errint_t
current_stat(const struct node *directory, struct file_identity *now)
{
    return check_source(directory, now, source_dir_stat(directory->dir, now));
}

/* What the node's view shows of a listing, of which it takes the reference; a reference. */
static errint_t
view_of_listing(struct view *view, struct node *node, struct listing *listing,
                struct dir_listing **out)
{
    struct dir_listing *fresh, *before = NULL;

    pthread_mutex_lock(&view->lock);
    if (node->listing && node->listing->listing == listing) {
        *out = dir_listing_ref(node->listing);
        pthread_mutex_unlock(&view->lock);
        listing_unref(listing);
        return 0;
    }
    pthread_mutex_unlock(&view->lock);
    fresh = dir_listing_new(listing, node->view, &view->options);
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
current_listing(struct view *view, struct node *node, struct dir_listing **out)
{
    struct listing *listing = NULL;
    errint_t error = source_dir_listing(node->dir, &listing);
    struct file_identity now;

    if (error == -EACCES) { /* the daemon may not list it, or another one is at the path */
        errint_t replaced = current_stat(node, &now);

        return replaced ? replaced : error;
    }
    error = check_source(node, error ? NULL : &listing->directory, error);
    if (!error)
        return view_of_listing(view, node, listing, out);
    listing_unref(listing);
    return error;
}

struct dir_listing *
current_lanes(struct view *view, struct node *node)
{
    struct listing *listing = source_dir_last_listing(node->dir);
    struct dir_listing *shown;

    if (listing && listing->has_lanes)
        return view_of_listing(view, node, listing, &shown) == 0 ? shown : NULL;
    listing_unref(listing);
    return NULL;
}

errint_t
current_checkpoint(const struct node *node, const struct dir_listing *listing,
                   const struct dir_entry *entry, struct checkpoint **checkpoint)
{
    return group_checkpoint(node->dir, dir_entry_group(listing, entry), checkpoint);
}

errint_t
current_checkpoint_of_name(struct view *view, struct node *node, const char *name,
                           enum dir_entry_kind kind, struct checkpoint **checkpoint)
{
    struct dir_listing *listing;
    const struct dir_entry *entry;
    errint_t error = current_listing(view, node, &listing);

    if (error)
        return error;
    entry = dir_listing_find(listing, name);
    if (entry && entry->kind == kind)
        error = current_checkpoint(node, listing, entry, checkpoint);
    else
        error = -ENOENT;
    dir_listing_unref(listing);
    return error;
}

errint_t
current_tensors(struct view *view, struct node *node, struct node **set)
{
    struct checkpoint *checkpoint;
    errint_t error =
        current_checkpoint_of_name(view, node->parent, node->name, ENTRY_TENSORS, &checkpoint);

    if (error)
        return error;
    error = checkpoint->is_absent ? -ENOENT : tensor_set_get(view, node, checkpoint, set);
    checkpoint_unref(checkpoint);
    return error;
}

struct source_dir *
source_dir_of_node(const struct node *node)
{
    const struct node *directory = directory_of_node(node);

    return directory ? directory->dir : NULL;
}

bool
retry_after_change(const struct node *directory, errint_t error, int *tries)
{
    struct source_dir *dir = source_dir_of_node(directory);

    if (error != -ESTALE || !dir || (*tries)++ > 0)
        return false;
    source_dir_expire(dir);
    return true;
}
