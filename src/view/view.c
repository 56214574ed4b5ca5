/* SPDX-License-Identifier: Apache-2.0 */
#include "view/view.h"

#include "base/parallel.h"
#include "base/version.h"
#include "catalog/group.h"
#include "format/json.h"
#include "format/npy.h"
#include "view/directory.h"
#include "view/index.h"
#include "view/names.h"
#include "view/node.h"
#include "view/permission.h"

#include <errno.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const view_names[VIEW_KINDS] = {"tensors", "merged", "shards", "npy"};

static const char pages_name[] = ".fstfs";

/* ---- the view ---- */

static struct node *
make_root(struct view *view)
{
    struct node root = {.kind = NODE_TOP, .inode = VIEW_ROOT_ID};

    if (view->options.root >= 0) {
        root.kind = NODE_DIRECTORY;
        root.view = (enum view_kind)view->options.root;
        root.dir = catalog_root(view->catalog);
        if (!root.dir)
            return NULL;
    }
    return node_find_or_add(view, NULL, "", &root);
}

errint_t
view_new(struct catalog *catalog, const struct view_options *options, struct view **out)
{
    struct view *view = calloc(1, sizeof(*view));

    if (!view)
        return -ENOMEM;
    view->catalog = catalog;
    view->options = *options;
    pthread_mutex_init(&view->lock, NULL);
    clock_gettime(CLOCK_REALTIME, &view->started);
    view->opened = opened_new();
    view->root = view->opened ? make_root(view) : NULL;
    if (!view->root) {
        view_free(view);
        return -ENOMEM;
    }
    *out = view;
    return 0;
}

/* The kernel does not take every id back before it goes: whatever is left goes
 * with the view. */
static void
free_nodes(struct view *view)
{
    for (size_t i = 0; i < NODE_BUCKETS; i++) {
        struct node *next;

        for (struct node *node = view->buckets[i]; node; node = next) {
            next = node->next;
            source_dir_unref(node->dir);
            dir_listing_unref(node->listing);
            backing_unref(node->backing);
            backing_unref(node->served);
            checkpoint_unref(node->checkpoint);
            free(node);
        }
    }
    for (uint32_t i = 0; i < view->set_capacity; i++) {
        if (view->sets[i])
            set_free(view->sets[i]);
    }
    free(view->sets);
    node_slots_free(&view->slots);
}

void
view_free(struct view *view)
{
    if (!view)
        return;
    opened_free(view->opened);
    free_nodes(view);
    pthread_mutex_destroy(&view->lock);
    free(view);
}

void
view_counters(struct view *view, uint64_t *nodes, uint64_t *sets)
{
    pthread_mutex_lock(&view->lock);
    *nodes = view->node_count;
    *sets = view->set_count;
    pthread_mutex_unlock(&view->lock);
}

/* ---- attributes ---- */

static void
fill_stat(struct stat *st, uint64_t inode, mode_t type, struct ownership ownership, uint64_t size,
          const struct timespec *modified)
{
    memset(st, 0, sizeof(*st));
    st->st_ino = inode;
    st->st_mode = type | ownership.mode;
    st->st_nlink = 1; /* of directories too: it says nothing of how many are inside */
    st->st_uid = ownership.owner;
    st->st_gid = ownership.group;
    st->st_size = (off_t)size;
    st->st_blksize = 4096;
    st->st_blocks = (blkcnt_t)((size + 511) / 512);
    st->st_atim = st->st_mtim = st->st_ctim = *modified;
}

/* A directory may be searched by those who may read what it is made of. */
static struct ownership
ownership_of_directory(struct ownership ownership)
{
    ownership.mode |= (ownership.mode & 0444) >> 2;
    return ownership;
}

static void
fill_own_stat(const struct view *view, struct stat *st, uint64_t inode, mode_t mode)
{
    struct ownership own = {view->options.owner, view->options.group, mode & 0777};

    fill_stat(st, inode, mode & S_IFMT, own, 0, &view->started);
}

/* `identity`: of the directory that the attributes are of. */
static errint_t
stat_directory(const struct node *node, struct stat *st, struct file_identity *identity)
{
    struct stat source;
    errint_t error = source_dir_stat(node->dir, &source);

    if (error)
        return error;
    fill_stat(st, node->inode, S_IFDIR, ownership_from_stat(&source), 0, &source.st_mtim);
    file_identity_from_stat(identity, &source);
    return 0;
}

static void
stat_tensors(const struct node *node, const struct checkpoint *checkpoint, struct stat *st)
{
    fill_stat(st, node->inode, S_IFDIR, ownership_of_directory(checkpoint->ownership), 0,
              &checkpoint->modified);
}

static void
stat_file(struct view *view, struct node *node, struct stat *st)
{
    struct ownership ownership;

    if (node->kind == NODE_MADE) {
        fill_stat(st, node->inode, S_IFREG, node->checkpoint->ownership, node->size,
                  &node->checkpoint->modified);
        return;
    }
    pthread_mutex_lock(&view->lock);
    ownership = node->ownership;
    pthread_mutex_unlock(&view->lock);
    fill_stat(st, node->inode, S_IFREG, ownership, node->backing->identity.size,
              &node->backing->identity.modified);
}

static errint_t
page_text(void (*write)(void *arg, struct buffer *out), void *arg, struct buffer *text)
{
    write(arg, text);
    if (!buffer_failed(text))
        return 0;
    buffer_free(text);
    return -ENOMEM;
}

static errint_t
stat_page(struct view *view, const struct node *node, struct stat *st)
{
    struct buffer text = BUFFER_INIT;
    errint_t error = page_text(node->page->write, node->page->arg, &text);

    if (error)
        return error;
    fill_own_stat(view, st, node->inode, S_IFREG | node->page->mode);
    st->st_size = (off_t)text.length;
    clock_gettime(CLOCK_REALTIME, &st->st_mtim);
    buffer_free(&text);
    return 0;
}

/* ---- tensors as files ---- */

static errint_t
npy_text(const struct st_table *table, const struct st_tensor *tensor, struct buffer *header)
{
    errint_t error = npy_header(header, (enum dtype)tensor->dtype, table->dims + tensor->shape,
                                tensor->rank, tensor->end - tensor->begin);

    if (error)
        buffer_free(header);
    return error;
}

static errint_t
stat_tensor(const struct tensor_set *set, uint32_t position, const char *name, size_t length,
            struct stat *st)
{
    struct tensor_ref ref = set_tensor(set, position);
    const struct shard *shard = set->checkpoint->shards[ref.shard];
    const struct st_tensor *tensor = &shard->table->tensors[ref.tensor];
    uint64_t size = tensor->end - tensor->begin;

    if (set->view == VIEW_NPY) {
        struct buffer header = BUFFER_INIT;
        errint_t error = npy_text(shard->table, tensor, &header);

        if (error)
            return error;
        size += header.length;
        buffer_free(&header);
    }
    fill_stat(st, node_child_inode(set->inode, name, length), S_IFREG, shard->file.ownership, size,
              &shard->file.identity.modified);
    return 0;
}

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

/* ---- listings ---- */

/* The names of a directory as they are now; a reference. */
static errint_t
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

static errint_t
entry_checkpoint(const struct node *node, const struct dir_listing *listing,
                 const struct dir_entry *entry, struct checkpoint **checkpoint)
{
    return group_checkpoint(node->dir, dir_entry_group(listing, entry), checkpoint);
}

/* The checkpoint of the entry `name` of a directory, if it is of this kind. */
static errint_t
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
static errint_t
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

/* ---- permissions ---- */

/* The directory of the source that a directory of the mount is made of, or in which the
 * checkpoint is that it is made of; NULL: the mount's own. */
static struct source_dir *
source_dir_of_node(const struct node *node)
{
    if (node->kind == NODE_TENSORS)
        node = node->parent;
    return node->kind == NODE_DIRECTORY ? node->dir : NULL;
}

/* Whether to look again, since the source has other files now than the view knew. */
static bool
looks_again(const struct node *directory, errint_t error, int *tries)
{
    struct source_dir *dir = source_dir_of_node(directory);

    if (error != -ESTALE || !dir || (*tries)++ > 0)
        return false;
    source_dir_expire(dir);
    return true;
}

/* To read a file that has a node. */
static errint_t
check_node(struct view *view, const struct caller *caller, const struct node *node, int mask)
{
    struct permission_request request;

    permission_begin(&request, view->options.check, caller);
    if (node->kind == NODE_WHOLE)
        permission_need_backing(&request, node->backing, mask);
    else if (node->kind == NODE_MADE)
        permission_need_shards(&request, node->checkpoint, mask);
    return permission_ask(&request);
}

/* To read a page of .fstfs. */
static errint_t
check_page(const struct view *view, const struct caller *caller, const struct view_page *page)
{
    if (!view->options.check || caller->uid == 0 || caller->uid == view->options.owner ||
        page->mode & S_IROTH)
        return 0;
    return -EACCES;
}

/* To read a tensor file, or to be told of it. */
static errint_t
check_tensor(struct view *view, const struct caller *caller, const struct tensor_set *set,
             uint32_t position)
{
    struct permission_request request;

    permission_begin(&request, view->options.check, caller);
    permission_need_backing(
        &request, set->checkpoint->shards[set_tensor(set, position).shard]->backing, R_OK);
    return permission_ask(&request);
}

/* To be told which tensors a checkpoint has. */
static errint_t
check_tensors(struct view *view, const struct caller *caller, const struct checkpoint *checkpoint)
{
    struct permission_request request;

    permission_begin(&request, view->options.check, caller);
    permission_need_shards(&request, checkpoint, R_OK);
    return permission_ask(&request);
}

/* ---- lookup ---- */

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
    errint_t error = give_out(view, parent, pages_name, &wanted, &found->node);

    if (!error)
        fill_own_stat(view, &found->st, found->node->inode, S_IFDIR | 0555);
    return error;
}

static errint_t
lookup_top(struct view *view, struct node *parent, const char *name, struct found *found)
{
    if (strcmp(name, pages_name) == 0)
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

static bool
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

/* What the file of an entry is that is made, a re-cut's apart. */
static enum made_kind
made_kind_of(enum dir_entry_kind kind)
{
    if (kind == ENTRY_TENSOR_INDEX)
        return MADE_TENSOR_INDEX;
    if (kind == ENTRY_MERGED_INDEX)
        return MADE_MERGED_INDEX;
    return kind == ENTRY_SHARD_INDEX ? MADE_SHARD_INDEX : MADE_MERGED;
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

    if (parent == view->root && strcmp(name, pages_name) == 0)
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
static errint_t
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

bool
view_checks_names(struct view *view, node_id directory)
{
    const struct node *node = node_is_tensor(directory) ? NULL : node_of(view, directory);

    return view->options.check && node &&
           (node->kind == NODE_DIRECTORY || node->kind == NODE_TENSORS);
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

errint_t
view_getattr(struct view *view, node_id id, struct stat *st)
{
    struct file_identity identity;
    struct tensor_set *set;
    char name[FILE_NAME_SIZE];
    struct node *node;
    uint32_t position;
    errint_t error;

    if (node_is_tensor(id)) {
        set = node_set_of(view, id, &position);
        return stat_tensor(set, position, name, set_file_name(set, position, name), st);
    }
    node = node_of(view, id);
    switch (node->kind) {
    case NODE_TOP:
    case NODE_PAGES:
        fill_own_stat(view, st, node->inode, S_IFDIR | 0555);
        return 0;
    case NODE_PAGE:
        return stat_page(view, node, st);
    case NODE_DIRECTORY:
        return stat_directory(node, st, &identity);
    case NODE_TENSORS:
        error = current_tensors(view, node, &set);
        if (error)
            return error;
        stat_tensors(node, set->checkpoint, st);
        node_set_unref(view, set, 1);
        return 0;
    case NODE_WHOLE:
    case NODE_MADE:
        stat_file(view, node, st);
        return 0;
    }
    return -EIO;
}

/* ---- reading directories ---- */

struct view_directory {
    struct node *node;
    struct tensor_set *set; /* of a NODE_TENSORS, counted; else NULL and: */
    struct shown_names *names; /* counted */
    char file_name[FILE_NAME_SIZE];
};

static bool
is_conditional(enum dir_entry_kind kind)
{
    return kind == ENTRY_MERGED || kind == ENTRY_MERGED_INDEX || kind == ENTRY_SHARD_INDEX ||
           kind == ENTRY_RECUT;
}

/* Whether each conditional entry has its file, worked out side by side; for a
 * re-cut, of how many parts. */
struct conditions {
    struct view *view;
    struct node *node;
    const struct dir_listing *listing;
    uint32_t *parts; /* by entry; 0: no file */
};

static void
work_out_condition(void *arg, size_t i)
{
    struct conditions *conditions = arg;
    const struct dir_entry *entry = &conditions->listing->entries[i];
    const struct view_options *options = &conditions->view->options;
    struct checkpoint *checkpoint;
    uint64_t size;

    if (!is_conditional(entry->kind) ||
        entry_checkpoint(conditions->node, conditions->listing, entry, &checkpoint) != 0)
        return;
    if (entry->kind == ENTRY_RECUT) {
        if (derived_parts(checkpoint, options, &conditions->parts[i]) != 0)
            conditions->parts[i] = 0;
    } else {
        struct made made = {made_kind_of(entry->kind), 0};

        conditions->parts[i] = derived_size(checkpoint, options, &made, &size) == 0;
    }
    checkpoint_unref(checkpoint);
}

static void
list_recut(struct names_writer *writer, const struct dir_listing *listing,
           const struct dir_entry *entry, uint32_t parts)
{
    const struct group *group = dir_entry_group(listing, entry);
    char name[512];

    for (uint32_t i = 0; i < parts; i++) {
        index_part_name(group->stem, group->suffix, i, parts, name);
        shown_names_add(writer, name, S_IFREG);
    }
    if (parts && has_part_index(entry, parts)) {
        dir_listing_index_name(group, name);
        shown_names_add(writer, name, S_IFREG);
    }
}

static void
list_entries(void *arg, struct names_writer *writer)
{
    const struct conditions *conditions = arg;
    const struct dir_listing *listing = conditions->listing;

    for (uint32_t i = 0; i < listing->count + listing->recut_count; i++) {
        const struct dir_entry *entry = &listing->entries[i];

        if (is_conditional(entry->kind) && !conditions->parts[i])
            continue;
        if (entry->kind == ENTRY_RECUT)
            list_recut(writer, listing, entry, conditions->parts[i]);
        else
            shown_names_add(
                writer, entry->name,
                entry->kind == ENTRY_DIRECTORY || entry->kind == ENTRY_TENSORS ? S_IFDIR : S_IFREG);
    }
}

/* The names are the same for all who may list the directory. */
static errint_t
show_listing(struct view *view, struct node *node, struct dir_listing *listing,
             struct shown_names **names)
{
    uint32_t count = listing->count + listing->recut_count;
    struct conditions conditions = {view, node, listing,
                                    calloc((size_t)count + 1, sizeof(*conditions.parts))};
    uint64_t bytes;
    errint_t error;

    if (!conditions.parts)
        return -ENOMEM;
    if (node->view == VIEW_MERGED || node->view == VIEW_SHARDS)
        parallel_for(count, 8, work_out_condition, &conditions);
    error = shown_names_get(view, node, catalog_budget(view->catalog), list_entries, &conditions,
                            listing->recut_count > 0, names, &bytes);
    free(conditions.parts);
    if (error != -ENOBUFS)
        return error;
    dir_listing_report_no_room(listing, view->catalog, source_dir_path(node->dir), bytes);
    return -ENOMEM;
}

static errint_t
list_directory(struct view *view, const struct caller *caller, struct node *node,
               struct shown_names **names)
{
    struct permission_request request;
    struct dir_listing *listing;
    errint_t error = directory_listing(view, node, &listing);

    if (error)
        return error;
    permission_begin(&request, view->options.check, caller);
    permission_need_directory(&request, source_dir_path(node->dir), R_OK,
                              listing_directory(listing->listing));
    error = permission_ask(&request);
    if (!error)
        error = show_listing(view, node, listing, names);
    dir_listing_unref(listing);
    return error;
}

static void
list_top(void *arg, struct names_writer *writer)
{
    static const char *const sorted[] = {pages_name, "merged", "npy", "shards", "tensors"};

    (void)arg;
    for (size_t i = 0; i < sizeof(sorted) / sizeof(sorted[0]); i++)
        shown_names_add(writer, sorted[i], S_IFDIR);
}

static void
list_pages(void *arg, struct names_writer *writer)
{
    const struct view *view = arg;

    for (size_t i = 0; i < view->options.page_count; i++)
        shown_names_add(writer, view->options.pages[i].name, S_IFREG);
}

static errint_t
list_tensors(struct view *view, const struct caller *caller, struct node *node,
             struct view_directory *directory)
{
    errint_t error = current_tensors(view, node, &directory->set);

    if (error)
        directory->set = NULL;
    return error ? error : check_tensors(view, caller, directory->set->checkpoint);
}

static errint_t
open_directory(struct view *view, const struct caller *caller, struct node *node,
               struct view_directory **out)
{
    struct view_directory *directory = calloc(1, sizeof(*directory));
    errint_t error = -ENOTDIR;
    uint64_t bytes;

    if (!directory)
        return -ENOMEM;
    directory->node = node;
    switch (node->kind) {
    case NODE_TOP:
        error = shown_names_get(view, node, NULL, list_top, NULL, false, &directory->names, &bytes);
        break;
    case NODE_PAGES:
        error =
            shown_names_get(view, node, NULL, list_pages, view, false, &directory->names, &bytes);
        break;
    case NODE_DIRECTORY:
        error = list_directory(view, caller, node, &directory->names);
        break;
    case NODE_TENSORS:
        error = list_tensors(view, caller, node, directory);
        break;
    case NODE_PAGE:
    case NODE_WHOLE:
    case NODE_MADE:
        break;
    }
    if (error) {
        view_closedir(view, directory);
        return error;
    }
    *out = directory;
    return 0;
}

errint_t
view_opendir(struct view *view, const struct caller *caller, node_id id,
             struct view_directory **directory)
{
    errint_t error;
    int tries = 0;

    if (node_is_tensor(id))
        return -ENOTDIR;
    do
        error = open_directory(view, caller, node_of(view, id), directory);
    while (looks_again(node_of(view, id), error, &tries));
    return error;
}

void
view_closedir(struct view *view, struct view_directory *directory)
{
    if (directory->set)
        node_set_unref(view, directory->set, 1);
    shown_names_unref(view, directory->names);
    free(directory);
}

/* The position less "." and "..", if it is one of an entry. */
static bool
entry_at(const struct view_directory *directory, uint64_t position, uint64_t *index)
{
    *index = position - 2;
    return position >= 2 &&
           *index < (directory->set ? directory->set->count : directory->names->count);
}

errint_t
view_readdir(struct view *view, struct view_directory *directory, uint64_t position,
             const char **name, struct stat *st)
{
    struct node *node = directory->node;
    uint64_t index;

    memset(st, 0, sizeof(*st));
    st->st_mode = S_IFDIR;
    if (position == 0) {
        *name = ".";
        st->st_ino = node->inode;
        return 0;
    }
    if (position == 1) {
        *name = "..";
        st->st_ino = node->parent ? node->parent->inode : node->inode;
        return 0;
    }
    if (!entry_at(directory, position, &index))
        return -ENOENT;
    if (directory->set) {
        set_file_name(directory->set, (uint32_t)index, directory->file_name);
        *name = directory->file_name;
        st->st_mode = S_IFREG;
    } else {
        *name = directory->names->text + directory->names->entries[index].name;
        st->st_mode = directory->names->entries[index].type;
    }
    st->st_ino = node_child_inode(node->inode, *name, strlen(*name));
    return 0;
}

errint_t
view_readdir_lookup(struct view *view, struct view_directory *directory, uint64_t position,
                    node_id *id, struct stat *st)
{
    struct tensor_set *set = directory->set;
    uint64_t index;
    errint_t error;

    if (!entry_at(directory, position, &index))
        return -ENOENT;
    if (!set)
        return lookup_name(view, NULL, directory->node,
                           directory->names->text + directory->names->entries[index].name, id, st);
    error = stat_tensor(set, (uint32_t)index, directory->file_name,
                        set_file_name(set, (uint32_t)index, directory->file_name), st);
    if (error)
        return error;
    node_set_ref(view, set, 1);
    *id = node_tensor_id(set, (uint32_t)index);
    return 0;
}

/* ---- opening files ---- */

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
static errint_t
access_node(struct view *view, const struct caller *caller, struct node *node, int mask)
{
    struct permission_request request;
    struct tensor_set *set;
    errint_t error;

    switch (node->kind) {
    case NODE_TOP:
    case NODE_PAGES:
        return 0;
    case NODE_PAGE:
        return (mask & X_OK) ? -EACCES : check_page(view, caller, node->page);
    case NODE_DIRECTORY:
        permission_begin(&request, view->options.check, caller);
        permission_need_directory(&request, source_dir_path(node->dir), mask, NULL);
        return permission_ask(&request);
    case NODE_TENSORS:
        error = current_tensors(view, node, &set);
        if (error)
            return error;
        error = check_tensors(view, caller, set->checkpoint);
        node_set_unref(view, set, 1);
        return error;
    case NODE_WHOLE:
    case NODE_MADE:
        return check_node(view, caller, node, mask);
    }
    return -EIO;
}

errint_t
view_access(struct view *view, const struct caller *caller, node_id id, int mask)
{
    struct tensor_set *set;
    uint32_t position;

    if (mask & W_OK)
        return -EROFS;
    if (!view->options.check || mask == 0)
        return 0;
    if (!node_is_tensor(id))
        return access_node(view, caller, node_of(view, id), mask);
    set = node_set_of(view, id, &position);
    return (mask & X_OK) ? -EACCES : check_tensor(view, caller, set, position);
}

void
view_close(struct view *view, struct extent_list *list)
{
    extent_list_closed(list);
    version_close_list(list);
    extent_list_unref(list);
    opened_trim(view->opened);
}

/* ---- xattrs ---- */

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
