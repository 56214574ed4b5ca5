/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open directories.
 *
 * A directory of tensors shows one NODE_TENSOR_SET. Any other open directory has a copy of its
 * names as of the open. Handles on one node with the same names share one copy, so that memory
 * grows with the number of open directories, not with the number of handles; it is charged to the
 * budget for headers. Permission to list the directory is checked before. Callers who may not
 * follow some of its links, or not read all files that shards are re-cut from, get fewer names.
 */
#include "base/array.h"
#include "base/parallel.h"
#include "base/text.h"
#include "catalog/header_budget.h"
#include "view/access.h"
#include "view/attributes.h"
#include "view/current.h"
#include "view/index.h"
#include "view/lookup.h"
#include "view/remote_access.h"
#include "view/tensor_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How often a listing is made again because its directory changes. */
enum { LIST_RETRIES = 2 };

struct shown_name {
    size_t name; /* offset in `text` */
    mode_t type; /* S_IFREG or S_IFDIR */
    bool may_hang; /* a lookup may wait for another file system */
};

/* Immutable except for `references`. */
struct shown_names {
    uint64_t references; /* guarded by view->lock */
    struct node *node; /* counted */
    struct header_budget *budget; /* NULL: not charged */
    size_t count, length;
    char *text; /* `length` bytes: the names, each with its NUL */
    struct shown_name entries[];
};

/* Receives names, first to measure them and then to store them. */
struct names_writer {
    struct shown_names *to; /* NULL: measure only */
    size_t count, length;
};

/* Adds all names; the same ones in each call. */
typedef void list_names(void *arg, struct names_writer *writer);

static void shown_names_unref(struct view *view, struct shown_names *names);

static void
shown_names_add(struct names_writer *writer, const char *name, mode_t type, bool may_hang)
{
    struct shown_names *to = writer->to;
    size_t size = strlen(name) + 1;

    if (to) {
        to->entries[writer->count] = (struct shown_name){writer->length, type, may_hang};
        memcpy(to->text + writer->length, name, size);
    }
    writer->count++;
    writer->length += size;
}

static int
compare_shown_names(const void *a, const void *b, void *text)
{
    const struct shown_name *x = a, *y = b;

    return strcmp((char *)text + x->name, (char *)text + y->name);
}

static uint64_t
shown_names_bytes(size_t count, size_t length)
{
    return sizeof(struct shown_names) + (uint64_t)count * sizeof(struct shown_name) + length;
}

/* Stores the names that were measured. Without references. NULL: out of memory. */
static struct shown_names *
store_names(const struct names_writer *measured, list_names *list, void *arg, bool sort)
{
    struct shown_names *names = malloc(shown_names_bytes(measured->count, measured->length));
    struct names_writer writer = {names, 0, 0};

    if (!names)
        return NULL;
    *names = (struct shown_names){.count = measured->count, .length = measured->length};
    names->text = (char *)&names->entries[names->count];
    list(arg, &writer);
    if (sort && names->count)
        qsort_r(names->entries, names->count, sizeof(*names->entries), compare_shown_names,
                names->text);
    return names;
}

static bool
are_same_names(const struct shown_names *a, const struct shown_names *b)
{
    if (a->count != b->count || a->length != b->length)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (a->entries[i].name != b->entries[i].name || a->entries[i].type != b->entries[i].type ||
            a->entries[i].may_hang != b->entries[i].may_hang)
            return false;
    return memcmp(a->text, b->text, a->length) == 0;
}

/*
 * Returns the node's names if they are the same as `fresh`, else makes `fresh` the node's names and
 * returns it; with a reference. Names are compared without the lock, and so again if another thread
 * has replaced them.
 */
static struct shown_names *
share_names(struct view *view, struct node *node, struct shown_names *fresh)
{
    struct shown_names *before = NULL, *now;

    for (;;) {
        pthread_mutex_lock(&view->lock);
        now = node->shown;
        if (now == before) {
            node->shown = fresh;
            fresh->node = node;
            fresh->references = 1;
            node->references++;
            now = fresh;
        } else if (now) {
            now->references++;
        }
        pthread_mutex_unlock(&view->lock);
        shown_names_unref(view, before); /* only now: its address must not be reused earlier */
        if (now == fresh || (now && are_same_names(now, fresh)))
            return now;
        before = now;
    }
}

/* Returns the names that `list` adds; a reference. -ENOBUFS: the budget has no room for their
 * `bytes`. */
static errint_t
shown_names_get(struct view *view, struct node *node, struct header_budget *budget,
                list_names *list, void *arg, bool sort, struct shown_names **out, uint64_t *bytes)
{
    struct names_writer measured = {NULL, 0, 0};
    struct shown_names *fresh;
    errint_t error;

    list(arg, &measured);
    *bytes = shown_names_bytes(measured.count, measured.length);
    error = header_budget_take(budget, *bytes);
    if (error)
        return error;
    fresh = store_names(&measured, list, arg, sort);
    if (!fresh) {
        header_budget_settle(budget, *bytes, 0);
        return -ENOMEM;
    }
    fresh->budget = budget;
    *out = share_names(view, node, fresh);
    if (*out != fresh)
        free(fresh);
    header_budget_settle(budget, *bytes, *out == fresh ? *bytes : 0);
    return 0;
}

static void
shown_names_unref(struct view *view, struct shown_names *names)
{
    struct node *node;

    if (!names)
        return;
    node = names->node;
    pthread_mutex_lock(&view->lock);
    if (--names->references > 0) {
        pthread_mutex_unlock(&view->lock);
        return;
    }
    if (node->shown == names)
        node->shown = NULL;
    pthread_mutex_unlock(&view->lock);
    header_budget_give(names->budget, shown_names_bytes(names->count, names->length));
    free(names);
    node_unref(view, node, 1);
}

/* ---- the names of a directory of the source ---- */

/* Whether it depends on headers if the entry is shown, or as how many files. */
static bool
is_conditional(const struct dir_listing *listing, const struct dir_entry *entry)
{
    switch (entry->kind) {
    case ENTRY_RECUT:
    case ENTRY_UNCONVERTED:
        return true;
    case ENTRY_MADE:
        return (entry->made.kind != MADE_TENSOR_INDEX &&
                entry->made.kind != MADE_TENSOR_INDEX_BY_FILE) ||
               dir_entry_group(listing, entry)->container->is_converted;
    case ENTRY_TENSORS:
        return dir_entry_group(listing, entry)->container->is_converted;
    default:
        return false;
    }
}

struct conditions {
    struct view *view;
    const struct caller *caller;
    struct node *node;
    const struct dir_listing *listing;
    uint32_t *conditional; /* indices of conditional entries */
    size_t count; /* of these */
    uint32_t *files; /* by entry, the number of files of a conditional one; 0: none */
    bool any_version; /* also if files change continuously; else -ESTALE */
    _Atomic(errint_t) error; /* error_is_lack() or -ESTALE: a name would be missing; 0: none */
    struct remote_entries *remote; /* of conditional entries; NULL: the listing has no lanes */
    bool *denied; /* by link of the listing: the caller may not follow it; NULL: none */
};

/* ---- links that the caller may not follow ---- */

static bool
is_denied_name(const struct conditions *conditions, const char *name)
{
    const struct listing *listing = conditions->listing->listing;
    const char *const *link = bsearch(&name, listing->links, listing->link_count,
                                      sizeof(*listing->links), text_compare_strings);

    return link && conditions->denied[link - listing->links];
}

/* Whether the entry depends on a link that the caller may not follow. */
static bool
is_denied(const struct conditions *conditions, const struct dir_entry *entry)
{
    const struct group *group;
    bool denied;

    if (!conditions->denied)
        return false;
    switch (entry->kind) {
    case ENTRY_DIRECTORY:
    case ENTRY_SIDE_FILE:
    case ENTRY_SHARD:
    case ENTRY_INDEX:
    case ENTRY_UNCONVERTED:
        return is_denied_name(conditions, entry->name);
    default:
        group = dir_entry_group(conditions->listing, entry);
        denied = group->index && is_denied_name(conditions, group->index);
        for (uint32_t i = 0; !denied && i < group->member_count; i++)
            denied = is_denied_name(conditions, group->members[i]);
        return denied;
    }
}

/* Sets conditions->denied. In the source the caller sees only the name of such a link; an entry
 * here would reveal the type and content of its target. If storage fails, the link stays: programs
 * would otherwise use another file in its place. Links to other file systems, which may hang, are
 * not checked. */
static errint_t
find_denied_links(struct conditions *conditions, const struct caller *caller)
{
    const struct listing *listing = conditions->listing->listing;
    const char *directory = source_dir_path(conditions->node->dir);
    struct view *view = conditions->view;
    const char **local;
    size_t count = 0;
    errint_t error;

    if (!view->options.check || !listing->link_count)
        return 0;
    local = malloc(listing->link_count * sizeof(*local));
    if (!local)
        return -ENOMEM;
    for (uint32_t i = 0; i < listing->link_count; i++)
        if (!listing_lane(listing, listing->links[i]))
            local[count++] = listing->links[i];
    error = access_names(view, caller, directory, local, count);
    free(local);
    if (!error)
        return 0;
    conditions->denied = calloc(listing->link_count, sizeof(*conditions->denied));
    if (!conditions->denied)
        return -ENOMEM;
    for (uint32_t i = 0; i < listing->link_count; i++) {
        error = listing_lane(listing, listing->links[i])
                    ? 0
                    : access_name(view, caller, directory, listing->links[i]);
        if (error_is_lack(error))
            return error;
        conditions->denied[i] = error && (error == -EACCES || !error_hides_target(error));
    }
    return 0;
}

/* ---- entries that depend on headers ---- */

/* Returns how many files the entry has, or 1 if it is a directory. `is_unread`: see
 * access_generated(). */
static uint32_t
count_files(const struct conditions *conditions, const struct dir_entry *entry,
            struct checkpoint *checkpoint, bool is_unread)
{
    const struct view_options *options = &conditions->view->options;
    uint32_t parts = PARTS_UNKNOWN;
    bool is_made;
    uint64_t size;

    if (entry->kind == ENTRY_RECUT) {
        if (!is_unread)
            derived_parts(checkpoint, options, &parts);
        return parts;
    }
    if (entry->kind == ENTRY_TENSORS)
        return !checkpoint->is_absent;
    /* -ENOMEM: it may be made later, as a file that is unread. */
    is_made = is_unread || derived_size(checkpoint, options, &entry->made, &size) != -ENOENT;
    return is_made == (entry->kind == ENTRY_MADE);
}

/* Sets *checkpoint to a reference to the checkpoint of a conditional entry, and *permission to the
 * result of access_content(). */
static errint_t
get_entry_checkpoint(const struct conditions *conditions, size_t at, struct checkpoint **checkpoint,
                     errint_t *permission)
{
    const struct dir_entry *entry = &conditions->listing->entries[conditions->conditional[at]];
    errint_t error;

    if (dir_entry_lane(conditions->listing, entry))
        return remote_entries_get(conditions->remote, at, checkpoint, permission);
    error = current_checkpoint(conditions->node, conditions->listing, entry, checkpoint);
    if (!error && error_is_lack((*checkpoint)->passing_error)) {
        error = (*checkpoint)->passing_error;
        checkpoint_unref(*checkpoint);
    }
    if (!error)
        *permission = entry->kind == ENTRY_TENSORS
                          ? 0
                          : access_content(conditions->view, conditions->caller, *checkpoint,
                                           dir_entry_made_kind(entry));
    return error;
}

/* For parallel_for(): counts the files of a conditional entry. */
static void
count_entry_files(void *arg, size_t at)
{
    struct conditions *conditions = arg;
    uint32_t i = conditions->conditional[at];
    const struct dir_listing *listing = conditions->listing;
    const struct dir_entry *entry = &listing->entries[i];
    struct checkpoint *checkpoint;
    errint_t unread = 0, permission, error;

    error = get_entry_checkpoint(conditions, at, &checkpoint, &permission);
    if (error_is_lack(error))
        atomic_store(&conditions->error, error);
    if (error)
        return;
    if (entry->kind != ENTRY_TENSORS)
        error = access_listed(checkpoint, dir_entry_made_kind(entry), permission,
                              conditions->any_version, &unread);
    if (error_is_lack(error) || (error == -ESTALE && !conditions->any_version))
        atomic_store(&conditions->error, error);
    if (error) /* what exists depends on files that the caller may not or cannot read */
        conditions->files[i] = entry->kind == ENTRY_MADE;
    else
        conditions->files[i] = count_files(conditions, entry, checkpoint, unread != 0);
    checkpoint_unref(checkpoint);
}

/* Lists a re-cut file, unless another entry has the same name: a lookup finds that entry first. */
static void
list_recut_name(struct names_writer *writer, const struct dir_listing *listing, const char *name,
                bool may_hang)
{
    if (!dir_listing_find(listing, name))
        shown_names_add(writer, name, S_IFREG, may_hang);
}

static void
list_recut(struct names_writer *writer, const struct dir_listing *listing,
           const struct dir_entry *entry, uint32_t parts)
{
    const struct group *group = dir_entry_group(listing, entry);
    bool may_hang = dir_entry_lane(listing, entry) != 0;
    struct recut_files files = recut_files_of(group, entry, parts);
    char name[512];

    for (uint32_t i = 0; i < files.parts; i++) {
        index_part_name(group->stem, group->suffix, i, files.parts, name);
        list_recut_name(writer, listing, name, may_hang);
    }
    if (files.has_index) {
        dir_listing_index_name(group, name);
        list_recut_name(writer, listing, name, may_hang);
    }
}

static void
list_entries(void *arg, struct names_writer *writer)
{
    const struct conditions *conditions = arg;
    const struct dir_listing *listing = conditions->listing;

    for (uint32_t i = 0; i < listing->count + listing->recut_count; i++) {
        const struct dir_entry *entry = &listing->entries[i];
        bool is_directory = entry->kind == ENTRY_DIRECTORY || entry->kind == ENTRY_TENSORS;

        if (is_denied(conditions, entry))
            continue;
        if (entry->kind == ENTRY_RECUT)
            list_recut(writer, listing, entry, conditions->files[i]);
        else if (conditions->files[i] || !is_conditional(listing, entry))
            shown_names_add(writer, entry->name, is_directory ? S_IFDIR : S_IFREG,
                            dir_entry_lane(listing, entry) != 0);
    }
}

static errint_t
show_listing(struct view *view, const struct caller *caller, struct node *node,
             struct dir_listing *listing, bool any_version, struct shown_names **names)
{
    uint32_t count = listing->count + listing->recut_count;
    struct conditions conditions = {.view = view,
                                    .caller = caller,
                                    .node = node,
                                    .listing = listing,
                                    .any_version = any_version};
    uint64_t bytes = 0;
    errint_t error = -ENOMEM;

    conditions.conditional = malloc(((size_t)count + 1) * sizeof(*conditions.conditional));
    conditions.files = calloc((size_t)count + 1, sizeof(*conditions.files));
    if (conditions.conditional && conditions.files)
        error = find_denied_links(&conditions, caller);
    if (!error) {
        for (uint32_t i = 0; i < count; i++)
            if (is_conditional(listing, &listing->entries[i]) &&
                !is_denied(&conditions, &listing->entries[i]))
                conditions.conditional[conditions.count++] = i;
        if (listing->listing->has_lanes) {
            conditions.remote = remote_entries_load(view, caller, node, listing,
                                                    conditions.conditional, conditions.count);
            error = conditions.remote ? 0 : -ENOMEM;
        }
    }
    if (!error) {
        parallel_for(conditions.count, 8, count_entry_files, &conditions);
        error = atomic_load(&conditions.error);
    }
    if (!error)
        error = shown_names_get(view, node, catalog_budget(view->catalog), list_entries,
                                &conditions, listing->recut_count > 0, names, &bytes);
    remote_entries_free(conditions.remote);
    free(conditions.conditional);
    free(conditions.files);
    free(conditions.denied);
    if (error != -ENOBUFS)
        return error;
    dir_listing_report_no_room(listing, view->catalog, bytes);
    return -ENOMEM;
}

/* Checks the caller's permission to list. -ESTALE: the directory has changed since the listing was
 * made, which may show a name that was removed before the caller got the permission.
 * `any_version`: accept a stale listing, for a directory that changes continuously. */
static errint_t
access_listing(struct view *view, const struct caller *caller, struct node *node,
               const struct dir_listing *listing, bool any_version)
{
    struct file_identity expected = listing->listing->directory;

    if (any_version)
        expected.changed = (struct timespec){0, 0};
    return access_directory(view, caller, source_dir_path(node->dir), R_OK, &expected);
}

static errint_t
list_directory(struct view *view, const struct caller *caller, struct node *node,
               struct shown_names **names)
{
    struct dir_listing *listing;
    errint_t error;

    for (int retries = LIST_RETRIES;; retries--) {
        bool any_version = retries == 0;

        error = current_listing(view, node, &listing);
        if (error)
            return error;
        error = access_listing(view, caller, node, listing, any_version);
        if (!error)
            error = show_listing(view, caller, node, listing, any_version, names);
        dir_listing_unref(listing);
        if (error != -ESTALE || any_version)
            return error;
        source_dir_expire(node->dir);
    }
}

/* ---- open directories ---- */

struct view_directory {
    struct node *node;
    struct node *set; /* of a NODE_TENSORS; counted; NULL: it has `names` */
    struct shown_names *names; /* of any other directory; counted; else NULL */
    char file_name[FILE_NAME_SIZE]; /* returned by view_readdir() */
};

static void
list_top(void *arg, struct names_writer *writer)
{
    static const char *const sorted[] = {view_pages_name, "merged", "npy", "shards", "tensors"};

    (void)arg;
    for (size_t i = 0; i < COUNT_OF(sorted); i++)
        shown_names_add(writer, sorted[i], S_IFDIR, false);
}

static void
list_pages(void *arg, struct names_writer *writer)
{
    const struct view *view = arg;

    for (size_t i = 0; i < view->options.page_count; i++)
        shown_names_add(writer, view->options.pages[i].name, S_IFREG, false);
}

/* Fails if names would be missing because a shard or the index cannot be read now. */
static errint_t
open_tensors(struct view *view, const struct caller *caller, struct node *node, struct node **set)
{
    errint_t error = access_tensors(view, caller, node, set);
    errint_t passing = error ? 0 : (*set)->checkpoint->passing_error;

    if (error || (!error_is_lack(passing) && !(*set)->checkpoint->has_unread_index))
        return error;
    node_unref(view, *set, 1);
    *set = NULL;
    return passing;
}

static errint_t
open_directory(struct view *view, const struct caller *caller, struct node *node,
               struct view_directory *directory)
{
    uint64_t bytes;

    switch (node->kind) {
    case NODE_TOP:
        return shown_names_get(view, node, NULL, list_top, NULL, false, &directory->names, &bytes);
    case NODE_PAGES:
        return shown_names_get(view, node, NULL, list_pages, view, false, &directory->names,
                               &bytes);
    case NODE_DIRECTORY:
        return list_directory(view, caller, node, &directory->names);
    case NODE_TENSORS:
        return open_tensors(view, caller, node, &directory->set);
    default:
        return -ENOTDIR;
    }
}

errint_t
view_opendir(struct view *view, const struct caller *caller, node_id id,
             struct view_directory **out)
{
    struct node *node = node_of(view, id, NULL);
    struct view_directory *directory;
    errint_t error = current_directory(node);
    int tries = 0;

    if (error)
        return error;
    do {
        directory = calloc(1, sizeof(*directory));
        if (!directory)
            return -ENOMEM;
        directory->node = node;
        error = open_directory(view, caller, node, directory);
        if (error)
            view_closedir(view, directory);
        else
            *out = directory;
    } while (retry_after_change(node, error, &tries));
    return error;
}

void
view_closedir(struct view *view, struct view_directory *directory)
{
    node_unref(view, directory->set, 1);
    shown_names_unref(view, directory->names);
    free(directory);
}

/* Returns whether the position is that of an entry, not of "." or "..". */
static bool
is_entry_position(const struct view_directory *directory, uint64_t position, uint64_t *index)
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
    if (position < 2) {
        *name = position == 0 ? "." : "..";
        st->st_ino = position == 1 && node->parent ? node->parent->inode : node->inode;
        return 0;
    }
    if (!is_entry_position(directory, position, &index))
        return -ENOENT;
    if (directory->set) {
        tensor_set_file_name(directory->set, (uint32_t)index, directory->file_name);
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
    struct node *set = directory->set;
    uint64_t index;
    errint_t error;

    if (!is_entry_position(directory, position, &index))
        return -ENOENT;
    if (!set) {
        const struct shown_name *shown = &directory->names->entries[index];

        return shown->may_hang ? -EAGAIN
                               : lookup_in(view, NULL, directory->node,
                                           directory->names->text + shown->name, false, id, st);
    }
    error = stat_tensor(set, (uint32_t)index, st);
    if (error)
        return error;
    node_ref(view, set);
    *id = node_tensor_id(set, (uint32_t)index);
    return 0;
}
