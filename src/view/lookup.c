/* SPDX-License-Identifier: Apache-2.0 */
#include "view/lookup.h"

#include "catalog/group.h"
#include "view/access.h"
#include "view/attributes.h"
#include "view/current.h"
#include "view/index.h"
#include "view/tensor_set.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* One attempt to look up a name. */
struct lookup {
    struct view *view;
    const struct caller *caller;
    struct node *parent;
    const char *name;
    uint64_t inode; /* of the name */
    bool is_checked; /* other users can access the mount, and the name is in the source */
    bool is_retry; /* after -ESTALE */
    node_id *id; /* results */
    struct stat *st;
};

/* Finds or adds the node that `wanted` describes; takes ownership of what it holds. */
static errint_t
lookup_node(struct lookup *lookup, struct node *wanted)
{
    struct node *node;

    wanted->inode = lookup->inode;
    node = node_find_or_add(lookup->view, lookup->parent, lookup->name, wanted);
    if (!node)
        return -ENOMEM;
    *lookup->id = node_id_of(node);
    return 0;
}

/* ---- names that are not in the source ---- */

static errint_t
lookup_pages_directory(struct lookup *lookup)
{
    struct node wanted = {.kind = NODE_PAGES};

    stat_own(lookup->view, lookup->inode, S_IFDIR | 0555, lookup->st);
    return lookup_node(lookup, &wanted);
}

static errint_t
lookup_page(struct lookup *lookup)
{
    const struct view_options *options = &lookup->view->options;

    for (size_t i = 0; i < options->page_count; i++) {
        struct node wanted = {.kind = NODE_PAGE, .page = &options->pages[i]};
        errint_t error;

        if (strcmp(lookup->name, wanted.page->name) != 0)
            continue;
        error = stat_page(lookup->view, wanted.page, lookup->inode, lookup->st);
        return error ? error : lookup_node(lookup, &wanted);
    }
    return -ENOENT;
}

/* ---- names in a directory of the source ---- */

/* Takes ownership of `dir`; NULL: out of memory. */
static errint_t
lookup_source_directory(struct lookup *lookup, struct source_dir *dir, enum view_kind kind)
{
    struct node wanted = {.kind = NODE_DIRECTORY, .view = kind, .dir = dir};
    struct file_identity source;
    errint_t error = dir ? source_dir_stat(dir, &source) : -ENOMEM;

    if (!error && lookup->is_checked) {
        wanted.source_device = source.device;
        wanted.source_inode = source.inode;
        error = access_directory(lookup->view, lookup->caller, source_dir_path(dir), 0, &source);
    }
    if (error) {
        source_dir_unref(dir);
        return error;
    }
    stat_directory(&source, lookup->inode, lookup->st);
    return lookup_node(lookup, &wanted);
}

static errint_t
lookup_top(struct lookup *lookup)
{
    if (strcmp(lookup->name, view_pages_name) == 0)
        return lookup_pages_directory(lookup);
    for (int kind = 0; kind < VIEW_KINDS; kind++)
        if (strcmp(lookup->name, view_names[kind]) == 0)
            return lookup_source_directory(lookup, catalog_root(lookup->view->catalog),
                                           (enum view_kind)kind);
    return -ENOENT;
}

static errint_t
lookup_source_file(struct lookup *lookup, bool is_shard)
{
    struct source_dir *dir = lookup->parent->dir;
    struct node wanted = {
        .kind = NODE_SOURCE_FILE, .view = lookup->parent->view, .is_shard = is_shard};
    struct file_identity file;
    errint_t error = source_dir_file(dir, lookup->name, &file);

    if (error)
        return error;
    wanted.inode = lookup->inode;
    wanted.ownership = ownership_of(&file);
    wanted.backing = source_dir_backing(dir, lookup->name, &file);
    if (!wanted.backing)
        return -ENOMEM;
    error = access_backing(lookup->view, lookup->caller, wanted.backing, 0);
    if (error) {
        backing_unref(wanted.backing);
        return error;
    }
    stat_file(lookup->view, &wanted, lookup->st);
    return lookup_node(lookup, &wanted);
}

/* Permission to search the directory. */
static errint_t
access_search(struct lookup *lookup)
{
    return access_directory(lookup->view, lookup->caller, source_dir_path(lookup->parent->dir),
                            X_OK, NULL);
}

/* Replaces -ENOENT if the file is missing only because a shard cannot be opened now. */
static errint_t
absent_or_passing(const struct checkpoint *checkpoint, errint_t error)
{
    return error == -ENOENT ? checkpoint_passing_error(checkpoint, error) : error;
}

static errint_t
lookup_tensors_directory(struct lookup *lookup, const struct dir_listing *listing,
                         const struct dir_entry *entry)
{
    struct node wanted = {.kind = NODE_TENSORS, .view = lookup->parent->view};
    struct checkpoint *checkpoint;
    errint_t error = current_checkpoint(lookup->parent, listing, entry, &checkpoint);

    if (error)
        return error;
    /* Whether the directory exists does not depend on tensor names, so search permission is
     * enough. */
    error = access_existence(lookup->view, lookup->caller, checkpoint);
    if (!error && checkpoint->is_absent)
        error = absent_or_passing(checkpoint, -ENOENT);
    if (!error) {
        stat_tensors(checkpoint, lookup->inode, lookup->st);
        error = lookup_node(lookup, &wanted);
    }
    checkpoint_unref(checkpoint);
    return error;
}

/* The size of the shards whose size is known. Not 0: GNU tar does not open empty files. */
static uint64_t
estimate_size(const struct checkpoint *checkpoint)
{
    uint64_t size = 0;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        size += checkpoint->shards[i]->identity.size;
        if (size > INT64_MAX)
            size = INT64_MAX;
    }
    return size ? size : 1;
}

/* Looks the name up as a file made of a checkpoint, after access_generated(). stat(2) of an unread
 * file must succeed, also if there is no memory for it: programs take a failure for a missing file
 * and load another one. Takes the reference to the checkpoint. */
static errint_t
lookup_made_of(struct lookup *lookup, struct checkpoint *checkpoint, struct made made,
               bool is_unread)
{
    struct view *view = lookup->view;
    struct node wanted = {.kind = NODE_MADE_FILE,
                          .view = lookup->parent->view,
                          .made = made,
                          .inode = lookup->inode,
                          .is_unread = is_unread,
                          .checkpoint = checkpoint};
    errint_t error = 0;

    if (!is_unread) {
        error = derived_size(checkpoint, &view->options, &made, &wanted.size);
        wanted.is_unread = error == -ENOMEM;
    }
    if (wanted.is_unread) {
        wanted.size = estimate_size(checkpoint);
    } else if (error) {
        error = absent_or_passing(checkpoint, error);
        checkpoint_unref(checkpoint);
        return error;
    }
    stat_file(view, &wanted, lookup->st);
    return lookup_node(lookup, &wanted);
}

static errint_t
lookup_made_file(struct lookup *lookup, const struct dir_listing *listing,
                 const struct dir_entry *entry)
{
    struct checkpoint *checkpoint;
    errint_t error = current_checkpoint(lookup->parent, listing, entry, &checkpoint);
    errint_t unread;

    if (error)
        return error;
    error = access_generated(lookup->view, lookup->caller, checkpoint, entry->made.kind,
                             lookup->is_retry, &unread);
    if (!error)
        return lookup_made_of(lookup, checkpoint, entry->made, unread != 0);
    checkpoint_unref(checkpoint);
    return error;
}

/* Looks up a file that is shown only if it cannot be converted. */
static errint_t
lookup_unconverted_file(struct lookup *lookup, const struct dir_listing *listing,
                        const struct dir_entry *entry)
{
    struct checkpoint *checkpoint;
    uint64_t size;
    errint_t error = current_checkpoint(lookup->parent, listing, entry, &checkpoint);
    errint_t unread;

    if (error)
        return error;
    error = access_generated(lookup->view, lookup->caller, checkpoint, entry->made.kind,
                             lookup->is_retry, &unread);
    if (!error && unread) {
        error = unread;
    } else if (!error) {
        error = derived_size(checkpoint, &lookup->view->options, &entry->made, &size);
        if (error == -ENOENT)
            error = lookup_source_file(lookup, false);
        else if (!error)
            error = -ENOENT;
    }
    checkpoint_unref(checkpoint);
    return error;
}

/* Whether the name looked up is that of this file of a checkpoint that is re-cut into `parts`. */
static bool
is_recut_name(const struct lookup *lookup, const struct dir_listing *listing,
              const struct dir_entry *entry, struct made made, uint32_t parts)
{
    const struct group *group = dir_entry_group(listing, entry);
    struct recut_files files = recut_files_of(group, entry, parts);
    char expected[512];

    if (made.kind == MADE_PART ? made.part >= files.parts : !files.has_index)
        return false;
    if (made.kind == MADE_PART)
        index_part_name(group->stem, group->suffix, made.part, files.parts, expected);
    else
        dir_listing_index_name(group, expected);
    return strcmp(lookup->name, expected) == 0;
}

/* Looks the name up as this file of a re-cut checkpoint. -ENOENT: the file has another name. */
static errint_t
lookup_recut_file(struct lookup *lookup, const struct dir_listing *listing,
                  const struct dir_entry *entry, struct made made)
{
    struct checkpoint *checkpoint;
    uint32_t parts = PARTS_UNKNOWN;
    errint_t error = current_checkpoint(lookup->parent, listing, entry, &checkpoint);
    errint_t unread;

    if (error)
        return error;
    error = access_generated(lookup->view, lookup->caller, checkpoint, made.kind, lookup->is_retry,
                             &unread);
    if (!error && !unread) {
        error = derived_parts(checkpoint, &lookup->view->options, &parts);
        if (parts == PARTS_UNKNOWN) /* as in lookup_made_of() */
            unread = error;
        error = unread ? 0 : absent_or_passing(checkpoint, error);
    }
    if (!error && is_recut_name(lookup, listing, entry, made, parts))
        return lookup_made_of(lookup, checkpoint, made, unread != 0);
    if (!error)
        error = unread ? unread : -ENOENT;
    checkpoint_unref(checkpoint);
    return error;
}

static errint_t
lookup_recut_of_stem(struct lookup *lookup, const struct dir_listing *listing, const char *stem,
                     struct made made)
{
    uint32_t end = listing->count + listing->recut_count;
    errint_t error, first = -ENOENT;

    for (uint32_t i = dir_listing_find_recut(listing, stem); i < end; i++) {
        const struct dir_entry *entry = &listing->entries[i];

        if (strcmp(dir_entry_group(listing, entry)->stem, stem) != 0)
            break;
        error = lookup_recut_file(lookup, listing, entry, made);
        if (!error)
            return 0;
        if (first == -ENOENT)
            first = error;
    }
    return first;
}

/* The name of a re-cut file has the form of an index, of a numbered shard, or of a single file,
 * whose stem may have the form of a numbered shard. */
static errint_t
lookup_recut(struct lookup *lookup, const struct dir_listing *listing)
{
    char stem[256];
    uint32_t number, of;
    errint_t error = -ENOENT;

    if (listing->recut_count == 0)
        return -ENOENT;
    if (group_index_name(lookup->name, stem))
        return lookup_recut_of_stem(lookup, listing, stem, (struct made){MADE_PART_INDEX, 0});
    if (group_numbered_name(lookup->name, stem, &number, &of))
        error = lookup_recut_of_stem(lookup, listing, stem, (struct made){MADE_PART, number - 1});
    if (error == -ENOENT && group_single_name(lookup->name, stem))
        error = lookup_recut_of_stem(lookup, listing, stem, (struct made){MADE_PART, 0});
    return error;
}

/* Whether the lookup of a name may read headers. `entry` is NULL if the name is not listed: it may
 * be that of a re-cut file. */
static bool
lookup_reads_headers(const struct dir_listing *listing, const struct dir_entry *entry)
{
    switch (entry ? entry->kind : ENTRY_RECUT) {
    case ENTRY_DIRECTORY:
    case ENTRY_SIDE_FILE:
    case ENTRY_INDEX:
    case ENTRY_SHARD:
        return false;
    case ENTRY_RECUT:
        return listing->recut_count > 0;
    default:
        return true;
    }
}

static errint_t
lookup_entry(struct lookup *lookup, const struct dir_listing *listing,
             const struct dir_entry *entry)
{
    struct node *parent = lookup->parent;

    switch (entry ? entry->kind : ENTRY_RECUT) {
    case ENTRY_DIRECTORY:
        return lookup_source_directory(lookup, source_dir_child(parent->dir, lookup->name),
                                       parent->view);
    case ENTRY_SIDE_FILE:
    case ENTRY_INDEX:
    case ENTRY_SHARD:
        return lookup_source_file(lookup, entry->kind == ENTRY_SHARD);
    case ENTRY_UNCONVERTED:
        return lookup_unconverted_file(lookup, listing, entry);
    case ENTRY_TENSORS:
        return lookup_tensors_directory(lookup, listing, entry);
    case ENTRY_MADE:
        return lookup_made_file(lookup, listing, entry);
    case ENTRY_RECUT:
        return lookup_recut(lookup, listing);
    }
    return -ENOENT;
}

static errint_t
lookup_listed(struct lookup *lookup)
{
    struct dir_listing *listing;
    const struct dir_entry *entry;
    errint_t error = current_listing(lookup->view, lookup->parent, &listing);

    if (error)
        return error;
    entry = dir_listing_find(listing, lookup->name);
    /* Otherwise the time that it takes would reveal which names exist. */
    if (lookup_reads_headers(listing, entry))
        error = access_search(lookup);
    if (!error)
        error = lookup_entry(lookup, listing, entry);
    dir_listing_unref(listing);
    return error;
}

/* Checks, before reporting that a name does not exist, that the caller can follow it in the source:
 * otherwise the error would reveal what a link leads to. Links to other file systems, which may
 * hang, are not followed. */
static errint_t
access_missing_name(struct lookup *lookup)
{
    struct source_dir *dir = lookup->parent->dir;
    struct dir_listing *listing;
    bool is_remote;
    errint_t error, refused;

    if (!lookup->is_checked)
        return 0;
    error = current_listing(lookup->view, lookup->parent, &listing);
    if (error) {
        refused = access_search(lookup);
        return refused ? refused : error;
    }
    is_remote = listing_lane(listing->listing, lookup->name) != 0;
    dir_listing_unref(listing);
    if (is_remote)
        return access_search(lookup);
    error = access_name(lookup->view, lookup->caller, source_dir_path(dir), lookup->name);
    /* -ELOOP: the link leads into the mount itself, and is left out. */
    return error == -ENOENT || error == -ELOOP ? 0 : error;
}

static errint_t
lookup_in_directory(struct lookup *lookup)
{
    errint_t error, refused = 0;

    if (lookup->parent == lookup->view->root && strcmp(lookup->name, view_pages_name) == 0) {
        error = access_search(lookup);
        return error ? error : lookup_pages_directory(lookup);
    }
    error = lookup_listed(lookup);
    if (error == -ENOENT) {
        /* The file may be newer than the listing. */
        source_dir_expire_listing(lookup->parent->dir);
        error = lookup_listed(lookup);
    }
    if (error && error != -EACCES)
        refused = access_missing_name(lookup);
    return refused ? refused : error;
}

/* ---- tensors ---- */

static errint_t
lookup_in_tensors_once(struct lookup *lookup)
{
    struct view *view = lookup->view;
    struct node *set;
    uint32_t position;
    errint_t refused, of_all, error = current_tensors(view, lookup->parent, &set);

    if (error)
        return access_hide_error(view, lookup->caller, lookup->parent, error);
    error = absent_or_passing(set->checkpoint, tensor_set_find(set, lookup->name, &position));
    refused = access_set(view, lookup->caller, lookup->parent, set, error ? NODE_ITSELF : position);
    if (refused && !error) { /* as for a name that does not exist */
        of_all = access_set(view, lookup->caller, lookup->parent, set, NODE_ITSELF);
        refused = of_all ? of_all : refused;
    }
    if (refused)
        error = refused;
    if (!error)
        error = stat_tensor(set, position, lookup->st);
    if (error)
        node_unref(view, set, 1);
    else
        *lookup->id = node_tensor_id(set, position); /* the kernel owns the reference to the set */
    return error;
}

static errint_t
lookup_in_tensors(struct lookup *lookup)
{
    errint_t error = lookup_in_tensors_once(lookup);

    if (error != -ENOENT)
        return error;
    source_dir_expire_listing(lookup->parent->parent->dir); /* as in lookup_in_directory() */
    return lookup_in_tensors_once(lookup);
}

/* ---- lookups ---- */

errint_t
lookup_in(struct view *view, const struct caller *caller, struct node *parent, const char *name,
          bool is_retry,
          /* NOLINTNEXTLINE(readability-non-const-parameter): written through lookup.id */
          node_id *id, struct stat *st)
{
    struct lookup lookup = {.view = view,
                            .caller = caller,
                            .parent = parent,
                            .name = name,
                            .inode = node_child_inode(parent->inode, name, strlen(name)),
                            .is_checked = view->options.check && parent->kind == NODE_DIRECTORY,
                            .is_retry = is_retry,
                            .id = id,
                            .st = st};

    switch (parent->kind) {
    case NODE_TOP:
        return lookup_top(&lookup);
    case NODE_PAGES:
        return lookup_page(&lookup);
    case NODE_DIRECTORY:
        return lookup_in_directory(&lookup);
    case NODE_TENSORS:
        return lookup_in_tensors(&lookup);
    default:
        return -ENOTDIR;
    }
}

errint_t
view_lookup(struct view *view, const struct caller *caller, node_id parent_id, const char *name,
            node_id *id, struct stat *st)
{
    struct node *parent = node_of(view, parent_id, NULL);
    errint_t error;
    int tries = 0;

    if (strlen(name) > 255)
        return -ENAMETOOLONG;
    error = current_directory(parent);
    if (error)
        return error;
    do
        error = lookup_in(view, caller, parent, name, tries > 0, id, st);
    while (retry_after_change(parent, error, &tries));
    return error;
}

uint32_t
view_generation(struct view *view, node_id id)
{
    return node_of(view, id, NULL)->generation;
}

void
view_forget(struct view *view, node_id id, uint64_t count)
{
    node_unref(view, node_of(view, id, NULL), count);
}

enum view_kind
view_kind_of(struct view *view, node_id id)
{
    return node_of(view, id, NULL)->view;
}

void
view_ref(struct view *view, node_id id)
{
    node_ref(view, node_of(view, id, NULL));
}
