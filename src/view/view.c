/* SPDX-License-Identifier: Apache-2.0 */
#include "view/view.h"

#include "base/parallel.h"
#include "catalog/group.h"
#include "format/json.h"
#include "format/npy.h"
#include "view/index.h"
#include "view/names.h"
#include "view/node.h"

#include <errno.h>
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
            checkpoint_unref(node->checkpoint);
            free(node);
        }
    }
    for (uint32_t i = 0; i < view->set_capacity; i++) {
        if (!view->sets[i])
            continue;
        checkpoint_unref(view->sets[i]->checkpoint);
        free(view->sets[i]->order);
        free(view->sets[i]);
    }
    free(view->sets);
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
fill_stat(struct stat *st, uint64_t inode, mode_t type, struct access access, uint64_t size,
          const struct timespec *modified)
{
    memset(st, 0, sizeof(*st));
    st->st_ino = inode;
    st->st_mode = type | access.mode;
    st->st_nlink = 1; /* of directories too: it says nothing of how many are inside */
    st->st_uid = access.owner;
    st->st_gid = access.group;
    st->st_size = (off_t)size;
    st->st_blksize = 4096;
    st->st_blocks = (blkcnt_t)((size + 511) / 512);
    st->st_atim = st->st_mtim = st->st_ctim = *modified;
}

/* A directory may be searched by those who may read what it is made of. */
static struct access
search_too(struct access access)
{
    access.mode |= (access.mode & 0444) >> 2;
    return access;
}

static void
fill_own_stat(const struct view *view, struct stat *st, uint64_t inode, mode_t mode)
{
    struct access access = {view->options.owner, view->options.group, mode & 0777};

    fill_stat(st, inode, mode & S_IFMT, access, 0, &view->started);
}

/* The kernel is told for whom a directory is: see check_rights(). */
static void
tell_rights(struct view *view, struct node *node, struct access access)
{
    if (!catalog_shared(view->catalog))
        return;
    pthread_mutex_lock(&view->lock);
    node->told = access;
    node->told_at = now_ms();
    pthread_mutex_unlock(&view->lock);
}

static errint_t
stat_directory(struct view *view, struct node *node, struct stat *st)
{
    struct access access;
    struct stat source;
    errint_t error = source_dir_stat(node->dir, &source, &access);

    if (error)
        return error;
    fill_stat(st, node->inode, S_IFDIR, access, 0, &source.st_mtim);
    tell_rights(view, node, access);
    return 0;
}

static void
stat_tensors(struct view *view, struct node *node, const struct checkpoint *checkpoint,
             struct stat *st)
{
    tell_rights(view, node, checkpoint->access);
    fill_stat(st, node->inode, S_IFDIR, search_too(checkpoint->access), 0, &checkpoint->modified);
}

static void
stat_file(struct view *view, struct node *node, struct stat *st)
{
    struct access access;

    if (node->kind == NODE_MADE) {
        fill_stat(st, node->inode, S_IFREG, node->checkpoint->access, node->size,
                  &node->checkpoint->modified);
        return;
    }
    pthread_mutex_lock(&view->lock);
    access = node->access;
    pthread_mutex_unlock(&view->lock);
    fill_stat(st, node->inode, S_IFREG, access, node->backing->identity.size,
              &node->backing->identity.modified);
}

static errint_t
page_text(const struct view_page *page, struct buffer *text)
{
    page->write(page->arg, text);
    if (!buffer_failed(text))
        return 0;
    buffer_free(text);
    return -ENOMEM;
}

static errint_t
stat_page(struct view *view, const struct node *node, struct stat *st)
{
    struct buffer text = BUFFER_INIT;
    errint_t error = page_text(node->page, &text);

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
    fill_stat(st, node_child_inode(set->inode, name, length), S_IFREG, shard->file.access, size,
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
    return group_checkpoint(node->dir, &listing->listing->groups[entry->group], checkpoint);
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

/* ---- rights ---- */

/* Whether the kernel may still let people in by other rights than these. After that time
 * it asks before it does. */
static bool
told_otherwise(struct view *view, struct node *node, struct access access)
{
    bool otherwise;

    pthread_mutex_lock(&view->lock);
    otherwise =
        now_ms() - node->told_at <= 2 * VIEW_BELIEVED_MS && !access_equal(node->told, access);
    pthread_mutex_unlock(&view->lock);
    return otherwise;
}

/*
 * The kernel lets people into a directory by the rights that it was told, for a moment also
 * where another directory has taken its place. So what is found there is given out only
 * when these are the rights that the directory has, and those above it have; ESTALE makes
 * the kernel ask for the whole path anew. To be called when it has been found. `set`: of a
 * directory of tensors, what was.
 */
static errint_t
check_rights(struct view *view, struct node *node, const struct tensor_set *set)
{
    struct access access;
    struct stat st;
    errint_t error;

    if (!catalog_shared(view->catalog))
        return 0;
    if (set && told_otherwise(view, node, set->checkpoint->access))
        return -ESTALE;
    for (; node && node != view->root; node = node->parent) {
        if (node->kind != NODE_DIRECTORY)
            continue;
        error = source_dir_stat(node->dir, &st, &access);
        if (error)
            return error;
        if (told_otherwise(view, node, access))
            return -ESTALE;
    }
    return 0;
}

/* ---- lookup ---- */

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
                   struct node **node, struct stat *st)
{
    errint_t error = give_out(view, parent, name, wanted, node);

    if (error)
        return error;
    error = stat_directory(view, *node, st);
    if (error)
        node_unref(view, *node, 1);
    return error;
}

static errint_t
lookup_pages(struct view *view, struct node *parent, struct node **node, struct stat *st)
{
    struct node wanted = {.kind = NODE_PAGES};
    errint_t error = give_out(view, parent, pages_name, &wanted, node);

    if (!error)
        fill_own_stat(view, st, (*node)->inode, S_IFDIR | 0555);
    return error;
}

static errint_t
lookup_top(struct view *view, struct node *parent, const char *name, struct node **node,
           struct stat *st)
{
    if (strcmp(name, pages_name) == 0)
        return lookup_pages(view, parent, node, st);
    for (int kind = 0; kind < VIEW_KINDS; kind++) {
        struct node wanted = {.kind = NODE_DIRECTORY, .view = (enum view_kind)kind};

        if (strcmp(name, view_names[kind]) != 0)
            continue;
        wanted.dir = catalog_root(view->catalog);
        if (!wanted.dir)
            return -ENOMEM;
        return give_out_directory(view, parent, name, &wanted, node, st);
    }
    return -ENOENT;
}

static errint_t
lookup_page(struct view *view, struct node *parent, const char *name, struct node **node,
            struct stat *st)
{
    for (size_t i = 0; i < view->options.page_count; i++) {
        struct node wanted = {.kind = NODE_PAGE, .page = &view->options.pages[i]};
        errint_t error;

        if (strcmp(name, wanted.page->name) != 0)
            continue;
        error = give_out(view, parent, name, &wanted, node);
        if (error)
            return error;
        error = stat_page(view, *node, st);
        if (error)
            node_unref(view, *node, 1);
        return error;
    }
    return -ENOENT;
}

static errint_t
lookup_subdirectory(struct view *view, struct node *parent, const char *name, struct node **node,
                    struct stat *st)
{
    struct node wanted = {.kind = NODE_DIRECTORY, .view = parent->view};

    wanted.dir = source_dir_child(parent->dir, name);
    if (!wanted.dir)
        return -ENOMEM;
    return give_out_directory(view, parent, name, &wanted, node, st);
}

static errint_t
lookup_whole(struct view *view, struct node *parent, const char *name, bool is_shard,
             struct node **node, struct stat *st)
{
    struct node wanted = {.kind = NODE_WHOLE, .view = parent->view, .is_shard = is_shard};
    struct source_file file;
    errint_t error = source_dir_file(parent->dir, name, &file);

    if (error)
        return error;
    wanted.access = file.access;
    wanted.backing = source_dir_backing(parent->dir, name, &file);
    if (!wanted.backing)
        return -ENOMEM;
    error = give_out(view, parent, name, &wanted, node);
    if (!error)
        stat_file(view, *node, st);
    return error;
}

static errint_t
lookup_tensors(struct view *view, struct node *parent, const char *name,
               const struct dir_listing *listing, const struct dir_entry *entry, struct node **node,
               struct stat *st)
{
    struct node wanted = {.kind = NODE_TENSORS, .view = parent->view};
    struct checkpoint *checkpoint;
    errint_t error = entry_checkpoint(parent, listing, entry, &checkpoint);

    if (error)
        return error;
    error = give_out(view, parent, name, &wanted, node);
    if (!error)
        stat_tensors(view, *node, checkpoint, st);
    checkpoint_unref(checkpoint);
    return error;
}

/* The directory whose tensors an index in tensors/ lists. */
static void
index_directory(const char *name, char directory[FILE_NAME_SIZE])
{
    snprintf(directory, FILE_NAME_SIZE, "%.*s", (int)(strlen(name) - strlen(".index.json")), name);
}

static errint_t
lookup_made(struct view *view, struct node *parent, const char *name,
            const struct dir_listing *listing, const struct dir_entry *entry, enum made_kind kind,
            uint32_t part, struct node **node, struct stat *st)
{
    struct node wanted = {.kind = NODE_MADE, .view = parent->view, .made = kind, .part = part};
    char directory[FILE_NAME_SIZE] = "";
    struct made made = {kind, part, directory};
    errint_t error = entry_checkpoint(parent, listing, entry, &wanted.checkpoint);

    if (error)
        return error;
    if (kind == MADE_TENSOR_INDEX)
        index_directory(name, directory);
    error = derived_size(wanted.checkpoint, &view->options, &made, &wanted.size);
    if (error) {
        checkpoint_unref(wanted.checkpoint);
        return error;
    }
    error = give_out(view, parent, name, &wanted, node);
    if (!error)
        stat_file(view, *node, st);
    return error;
}

/* Whether the re-cut checkpoint of this stem has a file of this name, its part `part`. */
static errint_t
find_recut_of(struct view *view, struct node *parent, const char *name, const char *stem,
              const struct dir_listing *listing, const struct dir_entry **entry,
              enum made_kind kind, uint32_t part)
{
    struct checkpoint *checkpoint;
    char expected[512];
    uint32_t parts;
    errint_t error;

    *entry = dir_listing_find_recut(listing, stem);
    if (!*entry)
        return -ENOENT;
    error = entry_checkpoint(parent, listing, *entry, &checkpoint);
    if (error)
        return error;
    error = derived_parts(checkpoint, &view->options, &parts);
    checkpoint_unref(checkpoint);
    if (error)
        return error;
    if (kind == MADE_PART)
        index_part_name(stem, part, parts, expected);
    else
        group_name_index(stem, expected);
    return strcmp(name, expected) == 0 ? 0 : -ENOENT;
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
             const struct dir_listing *listing, struct node **node, struct stat *st)
{
    const struct dir_entry *entry = dir_listing_find(listing, name);
    enum made_kind made = MADE_MERGED;
    uint32_t part = 0;
    errint_t error;

    if (!entry) {
        error = find_recut(view, parent, name, listing, &entry, &made, &part);
        if (error)
            return error;
        return lookup_made(view, parent, name, listing, entry, made, part, node, st);
    }
    switch (entry->kind) {
    case ENTRY_DIRECTORY:
        return lookup_subdirectory(view, parent, name, node, st);
    case ENTRY_SIDE_FILE:
    case ENTRY_INDEX:
        return lookup_whole(view, parent, name, false, node, st);
    case ENTRY_SHARD:
        return lookup_whole(view, parent, name, true, node, st);
    case ENTRY_TENSORS:
        return lookup_tensors(view, parent, name, listing, entry, node, st);
    case ENTRY_TENSOR_INDEX:
        made = MADE_TENSOR_INDEX;
        break;
    case ENTRY_SHARD_INDEX:
        made = MADE_SHARD_INDEX;
        break;
    case ENTRY_MERGED:
    case ENTRY_RECUT:
        break;
    }
    return lookup_made(view, parent, name, listing, entry, made, 0, node, st);
}

static errint_t
lookup_directory(struct view *view, struct node *parent, const char *name, struct node **node,
                 struct stat *st)
{
    struct dir_listing *listing;
    errint_t error;

    if (parent == view->root && strcmp(name, pages_name) == 0)
        return lookup_pages(view, parent, node, st);
    error = directory_listing(view, parent, &listing);
    if (error)
        return error;
    error = lookup_entry(view, parent, name, listing, node, st);
    dir_listing_unref(listing);
    return error;
}

static errint_t
lookup_tensor(struct view *view, struct node *parent, const char *name, node_id *id,
              struct stat *st)
{
    struct tensor_set *set;
    uint32_t position;
    errint_t error = current_tensors(view, parent, &set);

    if (error)
        return error;
    error = check_rights(view, parent, set);
    if (!error)
        error = set_find(set, name, &position);
    if (!error)
        error = stat_tensor(set, position, name, strlen(name), st);
    if (error) {
        node_set_unref(view, set, 1);
        return error;
    }
    *id = node_tensor_id(set, position); /* the reference is the kernel's now */
    return 0;
}

/* As view_lookup(), but for the rights to anything that is no tensor. */
static errint_t
look_up(struct view *view, struct node *parent, const char *name, node_id *id, struct stat *st)
{
    errint_t error = -ENOTDIR;
    struct node *node;

    if (strlen(name) > 255)
        return -ENAMETOOLONG;
    switch (parent->kind) {
    case NODE_TOP:
        error = lookup_top(view, parent, name, &node, st);
        break;
    case NODE_PAGES:
        error = lookup_page(view, parent, name, &node, st);
        break;
    case NODE_DIRECTORY:
        error = lookup_directory(view, parent, name, &node, st);
        break;
    case NODE_TENSORS:
        return lookup_tensor(view, parent, name, id, st);
    case NODE_PAGE:
    case NODE_WHOLE:
    case NODE_MADE:
        break;
    }
    if (!error)
        *id = node_id_of(view, node);
    return error;
}

errint_t
view_lookup(struct view *view, node_id parent_id, const char *name, node_id *id, struct stat *st)
{
    struct node *parent;
    errint_t error, refused;

    if (node_is_tensor(parent_id))
        return -ENOTDIR;
    parent = node_of(view, parent_id);
    error = look_up(view, parent, name, id, st);
    if (parent->kind != NODE_DIRECTORY)
        return error;
    refused = check_rights(view, parent, NULL);
    if (refused && !error)
        view_forget(view, *id, 1);
    return refused ? refused : error;
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
        return stat_directory(view, node, st);
    case NODE_TENSORS:
        error = current_tensors(view, node, &set);
        if (error)
            return error;
        stat_tensors(view, node, set->checkpoint, st);
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

struct view_entry {
    size_t name; /* place in the directory's names */
    mode_t type;
};

struct view_directory {
    struct node *node;
    struct tensor_set *set; /* of a NODE_TENSORS, counted; else NULL and: */
    struct view_entry *entries;
    size_t count, capacity;
    struct buffer names;
    char file_name[FILE_NAME_SIZE];
};

static errint_t
list_name(struct view_directory *directory, const char *name, mode_t type)
{
    if (directory->count == directory->capacity) {
        size_t capacity = directory->capacity ? 2 * directory->capacity : 32;
        struct view_entry *entries = realloc(directory->entries, capacity * sizeof(*entries));

        if (!entries)
            return -ENOMEM;
        directory->entries = entries;
        directory->capacity = capacity;
    }
    directory->entries[directory->count++] = (struct view_entry){directory->names.length, type};
    buffer_add(&directory->names, name, strlen(name) + 1);
    return buffer_failed(&directory->names) ? -ENOMEM : 0;
}

static bool
is_conditional(enum dir_entry_kind kind)
{
    return kind == ENTRY_MERGED || kind == ENTRY_SHARD_INDEX || kind == ENTRY_RECUT;
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
        struct made made = {entry->kind == ENTRY_MERGED ? MADE_MERGED : MADE_SHARD_INDEX, 0, ""};

        conditions->parts[i] = derived_size(checkpoint, options, &made, &size) == 0;
    }
    checkpoint_unref(checkpoint);
}

static errint_t
list_recut(struct view_directory *directory, const char *stem, uint32_t parts)
{
    char name[512];
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < parts; i++) {
        index_part_name(stem, i, parts, name);
        error = list_name(directory, name, S_IFREG);
    }
    if (!error && parts > 1) {
        group_name_index(stem, name);
        error = list_name(directory, name, S_IFREG);
    }
    return error;
}

static errint_t
list_entries(struct view_directory *directory, const struct conditions *conditions)
{
    const struct dir_listing *listing = conditions->listing;
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < listing->count + listing->recut_count; i++) {
        const struct dir_entry *entry = &listing->entries[i];

        if (is_conditional(entry->kind) && !conditions->parts[i])
            continue;
        if (entry->kind == ENTRY_RECUT)
            error = list_recut(directory, listing->listing->groups[entry->group].stem,
                               conditions->parts[i]);
        else
            error = list_name(
                directory, entry->name,
                entry->kind == ENTRY_DIRECTORY || entry->kind == ENTRY_TENSORS ? S_IFDIR : S_IFREG);
    }
    return error;
}

static int
compare_entries(const void *a, const void *b, void *names)
{
    const struct view_entry *x = a, *y = b;

    return strcmp((char *)names + x->name, (char *)names + y->name);
}

static errint_t
list_directory(struct view *view, struct node *node, struct view_directory *directory)
{
    struct conditions conditions = {view, node, NULL, NULL};
    struct dir_listing *listing;
    errint_t error = directory_listing(view, node, &listing);
    uint32_t count;

    if (error)
        return error;
    count = listing->count + listing->recut_count;
    conditions.listing = listing;
    conditions.parts = calloc(count + 1, sizeof(*conditions.parts));
    if (!conditions.parts) {
        dir_listing_unref(listing);
        return -ENOMEM;
    }
    if (node->view == VIEW_MERGED || node->view == VIEW_SHARDS)
        parallel_for(count, 8, work_out_condition, &conditions);
    error = list_entries(directory, &conditions);
    if (!error && listing->recut_count && directory->count)
        /* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): count is not 0 */
        qsort_r(directory->entries, directory->count, sizeof(*directory->entries), compare_entries,
                directory->names.data);
    free(conditions.parts);
    dir_listing_unref(listing);
    return error;
}

static errint_t
list_top(struct view_directory *directory)
{
    static const char *const sorted[] = {pages_name, "merged", "npy", "shards", "tensors"};
    errint_t error = 0;

    for (size_t i = 0; !error && i < sizeof(sorted) / sizeof(sorted[0]); i++)
        error = list_name(directory, sorted[i], S_IFDIR);
    return error;
}

static errint_t
list_pages(struct view *view, struct view_directory *directory)
{
    errint_t error = 0;

    for (size_t i = 0; !error && i < view->options.page_count; i++)
        error = list_name(directory, view->options.pages[i].name, S_IFREG);
    return error;
}

errint_t
view_opendir(struct view *view, node_id id, struct view_directory **out)
{
    struct view_directory *directory;
    errint_t error = -ENOTDIR;

    if (node_is_tensor(id))
        return -ENOTDIR;
    directory = calloc(1, sizeof(*directory));
    if (!directory)
        return -ENOMEM;
    directory->node = node_of(view, id);
    switch (directory->node->kind) {
    case NODE_TOP:
        error = list_top(directory);
        break;
    case NODE_PAGES:
        error = list_pages(view, directory);
        break;
    case NODE_DIRECTORY:
        error = list_directory(view, directory->node, directory);
        break;
    case NODE_TENSORS:
        error = current_tensors(view, directory->node, &directory->set);
        break;
    case NODE_PAGE:
    case NODE_WHOLE:
    case NODE_MADE:
        break;
    }
    if (!error)
        error = check_rights(view, directory->node, directory->set);
    if (error) {
        view_closedir(view, directory);
        return error;
    }
    *out = directory;
    return 0;
}

void
view_closedir(struct view *view, struct view_directory *directory)
{
    if (directory->set)
        node_set_unref(view, directory->set, 1);
    free(directory->entries);
    buffer_free(&directory->names);
    free(directory);
}

/* The position less "." and "..", if it is one of an entry. */
static bool
entry_at(const struct view_directory *directory, uint64_t position, uint64_t *index)
{
    *index = position - 2;
    return position >= 2 && *index < (directory->set ? directory->set->count : directory->count);
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
        *name = directory->names.data + directory->entries[index].name;
        st->st_mode = directory->entries[index].type;
    }
    st->st_ino = node_child_inode(node->inode, *name, strlen(*name));
    return 0;
}

bool
view_readdir_attributes(struct view *view, const struct view_directory *directory)
{
    return check_rights(view, directory->node, directory->set) == 0;
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
        return look_up(view, directory->node,
                       directory->names.data + directory->entries[index].name, id, st);
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
            error = -EIO;
        } else if (file_identity_same_content(&node->backing->identity, &shard->file.identity)) {
            *backing = backing_ref(shard->backing);
            error = 0;
        }
    }
    checkpoint_unref(checkpoint);
    return error;
}

static errint_t
open_whole(struct view *view, const struct node *node, struct extent_list **list)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct backing *backing;
    errint_t error = 0;

    if (node->is_shard)
        error = shard_backing(view, node, &backing);
    else
        backing = backing_ref(node->backing);
    if (error)
        return error;
    extent_builder_add_backing(&builder, backing, 0, backing->identity.size);
    backing_unref(backing);
    *list = extent_builder_finish(&builder);
    return *list ? 0 : -ENOMEM;
}

static errint_t
open_made(struct view *view, const struct node *node, struct extent_list **list)
{
    char directory[FILE_NAME_SIZE] = "";
    struct made made = {node->made, node->part, directory};

    if (node->made == MADE_TENSOR_INDEX)
        index_directory(node->name, directory);
    return opened_get(view->opened, node->checkpoint, &view->options, &made, list);
}

static errint_t
open_page(const struct node *node, struct extent_list **list)
{
    struct buffer text = BUFFER_INIT;
    errint_t error = page_text(node->page, &text);

    return error ? error : list_of_text(&text, list);
}

static errint_t
open_file(struct view *view, node_id id, struct extent_list **list, bool *live)
{
    struct node *node;
    uint32_t position;

    if (node_is_tensor(id)) {
        struct tensor_set *set = node_set_of(view, id, &position);

        return open_tensor(set, position, list);
    }
    node = node_of(view, id);
    switch (node->kind) {
    case NODE_WHOLE:
        return open_whole(view, node, list);
    case NODE_MADE:
        return open_made(view, node, list);
    case NODE_PAGE:
        *live = true;
        return open_page(node, list);
    case NODE_TOP:
    case NODE_PAGES:
    case NODE_DIRECTORY:
    case NODE_TENSORS:
        break;
    }
    return -EISDIR;
}

errint_t
view_open(struct view *view, node_id id, struct extent_list **list, bool *live)
{
    errint_t error;

    *live = false;
    error = open_file(view, id, list, live);
    if (!error)
        extent_list_opened(*list);
    return error;
}

void
view_close(struct view *view, struct extent_list *list)
{
    extent_list_closed(list);
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

static void
add_source(const struct view *view, const struct checkpoint *checkpoint, struct buffer *value)
{
    buffer_add_char(value, '{');
    add_source_path(view, "directory", checkpoint->directory, value);
    buffer_add_text(value, ", ");
    add_file_name("checkpoint", checkpoint->stem, strlen(checkpoint->stem), value);
    buffer_addf(value, ", \"version\": \"%016llx\"}",
                (unsigned long long)checkpoint_version(checkpoint));
}

static errint_t
tensor_xattr(struct view *view, node_id id, const char *name, struct buffer *value)
{
    const struct st_tensor *tensor;
    const struct shard *shard;
    struct tensor_set *set;
    struct tensor_ref ref;
    const char *dtype;
    uint32_t position;
    size_t length;

    set = node_set_of(view, id, &position);
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
add_node_xattr(struct view *view, struct node *node, struct buffer *value)
{
    struct tensor_set *set;
    errint_t error;

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
view_getxattr(struct view *view, node_id id, const char *name, struct buffer *value)
{
    const char *has;
    errint_t error;

    if (node_is_tensor(id)) {
        error = tensor_xattr(view, id, name, value);
    } else {
        has = node_xattr(node_of(view, id));
        if (!has || strcmp(name, has) != 0)
            return -ENODATA;
        error = add_node_xattr(view, node_of(view, id), value);
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
