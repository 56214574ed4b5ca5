/* SPDX-License-Identifier: Apache-2.0 */
#include "view/lookup.h"

#include "catalog/group.h"
#include "view/access.h"
#include "view/attributes.h"
#include "view/current.h"
#include "view/index.h"
#include "view/node.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* A name that was looked up, with its attributes. */
struct found {
    struct node *node; /* its lookup count is incremented */
    struct stat st;
    struct file_identity directory; /* of a directory of the source: which one has `st` */
};

/* Finds or makes the child that `wanted` describes. */
static errint_t
give_out(struct view *view, struct node *parent, const char *name, struct node *wanted,
         struct node **node)
{
    wanted->inode = node_child_inode(parent->inode, name, strlen(name));
    *node = node_find_or_add(view, parent, name, wanted);
    return *node ? 0 : -ENOMEM;
}

/* As give_out(), of a directory of the source that must be there. */
static errint_t
give_out_directory(struct view *view, struct node *parent, const char *name, struct node *wanted,
                   struct found *found)
{
    errint_t error = give_out(view, parent, name, wanted, &found->node);

    if (error)
        return error;
    error = stat_directory(found->node, &found->st, &found->directory);
    if (error)
        node_unref(view, found->node, 1);
    return error;
}

static errint_t
lookup_pages(struct view *view, struct node *parent, struct found *found)
{
    struct node wanted = {.kind = NODE_PAGES};
    errint_t error = give_out(view, parent, view_pages_name, &wanted, &found->node);

    if (!error)
        fill_own_stat(view, &found->st, found->node->inode, S_IFDIR | 0555);
    return error;
}

static errint_t
lookup_top(struct view *view, struct node *parent, const char *name, struct found *found)
{
    if (strcmp(name, view_pages_name) == 0)
        return lookup_pages(view, parent, found);
    for (int kind = 0; kind < VIEW_KINDS; kind++) {
        struct node wanted = {.kind = NODE_DIRECTORY, .view = (enum view_kind)kind};

        if (strcmp(name, view_names[kind]) != 0)
            continue;
        wanted.dir = catalog_root(view->catalog);
        if (!wanted.dir)
            return -ENOMEM;
        return give_out_directory(view, parent, name, &wanted, found);
    }
    return -ENOENT;
}

static errint_t
lookup_page(struct view *view, struct node *parent, const char *name, struct found *found)
{
    for (size_t i = 0; i < view->options.page_count; i++) {
        struct node wanted = {.kind = NODE_PAGE, .page = &view->options.pages[i]};
        errint_t error;

        if (strcmp(name, wanted.page->name) != 0)
            continue;
        error = give_out(view, parent, name, &wanted, &found->node);
        if (error)
            return error;
        error = stat_page(view, found->node, &found->st);
        if (error)
            node_unref(view, found->node, 1);
        return error;
    }
    return -ENOENT;
}

static errint_t
lookup_subdirectory(struct view *view, struct node *parent, const char *name, struct found *found)
{
    struct node wanted = {.kind = NODE_DIRECTORY, .view = parent->view};

    wanted.dir = source_dir_child(parent->dir, name);
    if (!wanted.dir)
        return -ENOMEM;
    return give_out_directory(view, parent, name, &wanted, found);
}

static errint_t
lookup_whole(struct view *view, struct node *parent, const char *name, bool is_shard,
             struct found *found)
{
    struct node wanted = {.kind = NODE_WHOLE, .view = parent->view, .is_shard = is_shard};
    struct source_file file;
    errint_t error = source_dir_file(parent->dir, name, &file);

    if (error)
        return error;
    wanted.ownership = file.ownership;
    wanted.backing = source_dir_backing(parent->dir, name, &file);
    if (!wanted.backing)
        return -ENOMEM;
    error = give_out(view, parent, name, &wanted, &found->node);
    if (!error)
        stat_file(view, found->node, &found->st);
    return error;
}

static errint_t
lookup_tensors(struct view *view, struct node *parent, const char *name,
               const struct dir_listing *listing, const struct dir_entry *entry,
               struct found *found)
{
    struct node wanted = {.kind = NODE_TENSORS, .view = parent->view};
    struct checkpoint *checkpoint;
    errint_t error = entry_checkpoint(parent, listing, entry, &checkpoint);

    if (error)
        return error;
    error = give_out(view, parent, name, &wanted, &found->node);
    if (!error)
        stat_tensors(found->node, checkpoint, &found->st);
    checkpoint_unref(checkpoint);
    return error;
}

/* What is not there may only be left out while a shard is being written. */
static errint_t
absent_or_busy(const struct checkpoint *checkpoint, errint_t error)
{
    return error == -ENOENT && checkpoint->busy ? -ETXTBSY : error;
}

static errint_t
lookup_made(struct view *view, struct node *parent, const char *name,
            const struct dir_listing *listing, const struct dir_entry *entry, enum made_kind kind,
            uint32_t part, struct found *found)
{
    struct node wanted = {.kind = NODE_MADE, .view = parent->view, .made = kind, .part = part};
    struct made made = {kind, part};
    errint_t error = entry_checkpoint(parent, listing, entry, &wanted.checkpoint);

    if (error)
        return error;
    error = derived_size(wanted.checkpoint, &view->options, &made, &wanted.size);
    if (error) {
        error = absent_or_busy(wanted.checkpoint, error);
        checkpoint_unref(wanted.checkpoint);
        return error;
    }
    error = give_out(view, parent, name, &wanted, &found->node);
    if (!error)
        stat_file(view, found->node, &found->st);
    return error;
}

enum made_kind
made_kind_of(enum dir_entry_kind kind)
{
    if (kind == ENTRY_TENSOR_INDEX)
        return MADE_TENSOR_INDEX;
    if (kind == ENTRY_MERGED_INDEX)
        return MADE_MERGED_INDEX;
    return kind == ENTRY_SHARD_INDEX ? MADE_SHARD_INDEX : MADE_MERGED;
}

bool
has_part_index(const struct dir_entry *entry, uint32_t parts)
{
    return parts > 1 || entry->is_indexed;
}

/* Whether the file of this name is the part `part` of the re-cut checkpoint, or its index. */
static errint_t
match_recut(struct view *view, struct node *parent, const char *name,
            const struct dir_listing *listing, const struct dir_entry *entry, enum made_kind kind,
            uint32_t part)
{
    const struct group *group = dir_entry_group(listing, entry);
    struct checkpoint *checkpoint;
    char expected[512];
    uint32_t parts;
    errint_t error = entry_checkpoint(parent, listing, entry, &checkpoint);

    if (error)
        return error;
    error = absent_or_busy(checkpoint, derived_parts(checkpoint, &view->options, &parts));
    checkpoint_unref(checkpoint);
    if (error)
        return error;
    if (kind == MADE_PART)
        index_part_name(group->stem, group->suffix, part, parts, expected);
    else if (has_part_index(entry, parts))
        dir_listing_index_name(group, expected);
    else
        return -ENOENT;
    return strcmp(name, expected) == 0 ? 0 : -ENOENT;
}

/* The re-cut checkpoint of this stem that has a file of this name. */
static errint_t
find_recut_of(struct view *view, struct node *parent, const char *name, const char *stem,
              const struct dir_listing *listing, const struct dir_entry **entry,
              enum made_kind kind, uint32_t part)
{
    uint32_t end = listing->count + listing->recut_count;
    errint_t error = -ENOENT;

    for (uint32_t i = dir_listing_find_recut(listing, stem); error && i < end; i++) {
        *entry = &listing->entries[i];
        if (strcmp(dir_entry_group(listing, *entry)->stem, stem) != 0)
            break;
        error = match_recut(view, parent, name, listing, *entry, kind, part);
    }
    return error;
}

/* A name that may be of a re-cut: whose, and which of its files. One that looks like
 * a numbered shard may be the only file of a stem that looks so. */
static errint_t
find_recut(struct view *view, struct node *parent, const char *name,
           const struct dir_listing *listing, const struct dir_entry **entry, enum made_kind *kind,
           uint32_t *part)
{
    uint32_t number, of;
    char stem[256];
    errint_t error;

    if (listing->recut_count == 0)
        return -ENOENT;
    *part = 0;
    if (group_index_name(name, stem)) {
        *kind = MADE_PART_INDEX;
        return find_recut_of(view, parent, name, stem, listing, entry, *kind, 0);
    }
    *kind = MADE_PART;
    if (group_numbered_name(name, stem, &number, &of)) {
        *part = number - 1;
        error = find_recut_of(view, parent, name, stem, listing, entry, *kind, *part);
        if (error != -ENOENT)
            return error;
        *part = 0;
    }
    if (!group_single_name(name, stem))
        return -ENOENT;
    return find_recut_of(view, parent, name, stem, listing, entry, *kind, 0);
}

static errint_t
lookup_entry(struct view *view, struct node *parent, const char *name,
             const struct dir_listing *listing, struct found *found)
{
    const struct dir_entry *entry = dir_listing_find(listing, name);
    enum made_kind made;
    uint32_t part = 0;
    errint_t error;

    if (!entry) {
        error = find_recut(view, parent, name, listing, &entry, &made, &part);
        if (error)
            return error;
        return lookup_made(view, parent, name, listing, entry, made, part, found);
    }
    switch (entry->kind) {
    case ENTRY_DIRECTORY:
        return lookup_subdirectory(view, parent, name, found);
    case ENTRY_SIDE_FILE:
    case ENTRY_INDEX:
        return lookup_whole(view, parent, name, false, found);
    case ENTRY_SHARD:
        return lookup_whole(view, parent, name, true, found);
    case ENTRY_TENSORS:
        return lookup_tensors(view, parent, name, listing, entry, found);
    case ENTRY_TENSOR_INDEX:
        part = entry->named_by_file;
        break;
    case ENTRY_MERGED:
    case ENTRY_MERGED_INDEX:
    case ENTRY_SHARD_INDEX:
    case ENTRY_RECUT:
        break;
    }
    return lookup_made(view, parent, name, listing, entry, made_kind_of(entry->kind), part, found);
}

static errint_t
lookup_listed(struct view *view, struct node *parent, const char *name, struct found *found)
{
    struct dir_listing *listing;
    errint_t error = directory_listing(view, parent, &listing);

    if (error)
        return error;
    error = lookup_entry(view, parent, name, listing, found);
    dir_listing_unref(listing);
    return error;
}

static errint_t
lookup_directory(struct view *view, struct node *parent, const char *name, struct found *found)
{
    errint_t error;

    if (parent == view->root && strcmp(name, view_pages_name) == 0)
        return lookup_pages(view, parent, found);
    error = lookup_listed(view, parent, name, found);
    if (error != -ENOENT)
        return error;
    /* It may have come since the source was last looked at. */
    source_dir_expire_listing(parent->dir);
    return lookup_listed(view, parent, name, found);
}

/* The place of a name among the tensors of a directory, which the caller may be told of. */
static errint_t
find_tensor(struct view *view, const struct caller *caller, const struct tensor_set *set,
            const char *name, uint32_t *position)
{
    errint_t error = absent_or_busy(set->checkpoint, set_find(set, name, position)), refused;

    if (error)
        refused = check_tensors(view, caller, set->checkpoint);
    else
        refused = check_tensor(view, caller, set, *position);
    return refused ? refused : error;
}

static errint_t
lookup_tensor_now(struct view *view, const struct caller *caller, struct node *parent,
                  const char *name, node_id *id, struct stat *st)
{
    struct tensor_set *set;
    uint32_t position;
    errint_t error = current_tensors(view, parent, &set);

    if (error)
        return error;
    error = find_tensor(view, caller, set, name, &position);
    if (!error)
        error = stat_tensor(set, position, name, strlen(name), st);
    if (error) {
        node_set_unref(view, set, 1);
        return error;
    }
    *id = node_tensor_id(set, position); /* the reference is the kernel's now */
    return 0;
}

static errint_t
lookup_tensor(struct view *view, const struct caller *caller, struct node *parent, const char *name,
              node_id *id, struct stat *st)
{
    errint_t error = lookup_tensor_now(view, caller, parent, name, id, st);

    if (error != -ENOENT)
        return error;
    source_dir_expire_listing(parent->parent->dir); /* as lookup_directory() */
    return lookup_tensor_now(view, caller, parent, name, id, st);
}

/* Finds any name but a tensor's. */
static errint_t
find_name(struct view *view, struct node *parent, const char *name, struct found *found)
{
    switch (parent->kind) {
    case NODE_TOP:
        return lookup_top(view, parent, name, found);
    case NODE_PAGES:
        return lookup_page(view, parent, name, found);
    case NODE_DIRECTORY:
        return lookup_directory(view, parent, name, found);
    case NODE_TENSORS:
    case NODE_PAGE:
    case NODE_WHOLE:
    case NODE_MADE:
        break;
    }
    return -ENOTDIR;
}

/* To be told of what was found in a directory of the source, or that it is not there. */
static errint_t
check_found(struct view *view, const struct caller *caller, struct node *parent, const char *name,
            const struct found *found)
{
    struct permission_request request;
    struct checkpoint *checkpoint = NULL;
    errint_t error = 0;

    permission_begin(&request, view->options.check, caller);
    switch (found->node ? found->node->kind : NODE_TOP) {
    case NODE_DIRECTORY:
        permission_need_directory(&request, source_dir_path(found->node->dir), 0,
                                  &found->directory);
        break;
    case NODE_WHOLE:
        permission_need_backing(&request, found->node->backing, 0);
        break;
    case NODE_MADE:
        permission_need_shards(&request, found->node->checkpoint, 0);
        break;
    case NODE_TENSORS:
        error = named_checkpoint(view, parent, name, ENTRY_TENSORS, &checkpoint);
        if (!error)
            permission_need_shards(&request, checkpoint, 0);
        break;
    case NODE_TOP:
    case NODE_PAGES:
    case NODE_PAGE:
        break;
    }
    /* The way to a file leads through the directory; without a file the right to search it is
     * what counts. */
    if (request.count == 0)
        permission_need_directory(&request, source_dir_path(parent->dir), X_OK, NULL);
    if (!error)
        error = permission_ask(&request);
    checkpoint_unref(checkpoint);
    return error;
}

/* Looks up any name but a tensor's. */
errint_t
lookup_name(struct view *view, const struct caller *caller, struct node *parent, const char *name,
            node_id *id, struct stat *st)
{
    struct found found = {.node = NULL};
    errint_t error = find_name(view, parent, name, &found), refused = 0;

    if (error)
        found.node = NULL;
    if (parent->kind == NODE_DIRECTORY && view->options.check)
        refused = check_found(view, caller, parent, name, &found);
    if (refused && found.node)
        node_unref(view, found.node, 1);
    if (refused || error)
        return refused ? refused : error;
    *id = node_id_of(found.node);
    *st = found.st;
    return 0;
}

errint_t
view_lookup(struct view *view, const struct caller *caller, node_id parent_id, const char *name,
            node_id *id, struct stat *st)
{
    struct node *parent;
    errint_t error;
    int tries = 0;

    if (node_is_tensor(parent_id))
        return -ENOTDIR;
    if (strlen(name) > 255)
        return -ENAMETOOLONG;
    parent = node_of(view, parent_id);
    do
        error = parent->kind == NODE_TENSORS ? lookup_tensor(view, caller, parent, name, id, st)
                                             : lookup_name(view, caller, parent, name, id, st);
    while (looks_again(parent, error, &tries));
    return error;
}

void
view_forget(struct view *view, node_id id, uint64_t count)
{
    uint32_t position;

    if (node_is_tensor(id))
        node_set_unref(view, node_set_of(view, id, &position), count);
    else
        node_unref(view, node_of(view, id), count);
}

void
view_ref(struct view *view, node_id id)
{
    uint32_t position;

    if (node_is_tensor(id)) {
        node_set_ref(view, node_set_of(view, id, &position), 1);
        return;
    }
    pthread_mutex_lock(&view->lock);
    node_of(view, id)->references++;
    pthread_mutex_unlock(&view->lock);
}
