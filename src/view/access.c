/* SPDX-License-Identifier: Apache-2.0 */
#include "view/access.h"

#include "base/file.h"
#include "view/current.h"
#include "view/tensor_set.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

errint_t
access_directory(struct view *view, const struct caller *caller, const char *path, int mask,
                 const struct file_identity *expected)
{
    struct permission_query query = {.path = path, .mask = mask};

    if (!view->options.check)
        return 0;
    if (expected) {
        query.device = expected->device;
        query.inode = expected->inode;
        if (mask & R_OK)
            query.changed = expected->changed;
    }
    return view->options.check(caller, &query, 1);
}

errint_t
access_names(struct view *view, const struct caller *caller, const char *directory,
             const char *const *names, size_t count)
{
    struct permission_query *queries;
    errint_t error = 0;
    char **paths;

    if (!view->options.check || count == 0)
        return 0;
    queries = calloc(count, sizeof(*queries));
    paths = calloc(count, sizeof(*paths));
    if (!queries || !paths)
        error = -ENOMEM;
    for (size_t i = 0; !error && i < count; i++) {
        queries[i].path = paths[i] = path_join(directory, names[i]);
        if (!paths[i])
            error = -ENOMEM;
    }
    if (!error)
        error = view->options.check(caller, queries, count);
    for (size_t i = 0; paths && i < count; i++)
        free(paths[i]);
    free(paths);
    free(queries);
    return error;
}

errint_t
access_name(struct view *view, const struct caller *caller, const char *directory, const char *name)
{
    return access_names(view, caller, directory, &name, 1);
}

static struct permission_query
query_of_file(const char *path, const struct file_identity *identity, int mask)
{
    return (struct permission_query){.path = path,
                                     .mask = mask,
                                     .device = identity->device,
                                     .inode = identity->inode,
                                     .changed = identity->changed};
}

errint_t
access_backing(struct view *view, const struct caller *caller, const struct backing *backing,
               int mask)
{
    struct permission_query query;

    if (!view->options.check)
        return 0;
    query = query_of_file(backing->path, &backing->identity, mask);
    return view->options.check(caller, &query, 1);
}

static errint_t
check_one_by_one(struct view *view, const struct caller *caller,
                 const struct permission_query *queries, size_t count, void (*progress)(void *arg),
                 void *arg)
{
    errint_t error = 0;

    for (size_t i = 0; !error && i < count; i++) {
        error = view->options.check(caller, &queries[i], 1);
        progress(arg);
    }
    return error;
}

/* Unread files need no read permission, because nothing that is shown depends on their content. An
 * unread index is not checked at all. */
static errint_t
access_files(struct view *view, const struct caller *caller, const struct checkpoint *checkpoint,
             int mask, void (*progress)(void *arg), void *arg)
{
    bool has_index = checkpoint->index_name && !checkpoint->has_unread_index;
    struct permission_query *queries;
    char *index = NULL;
    size_t count = 0;
    errint_t error;

    if (!view->options.check)
        return 0;
    queries = malloc((checkpoint->shard_count + 1) * sizeof(*queries));
    if (queries && has_index)
        index = path_join(checkpoint->directory, checkpoint->index_name);
    if (!queries || (has_index && !index)) {
        free(queries);
        return -ENOMEM;
    }
    if (index)
        queries[count++] = query_of_file(index, &checkpoint->index_identity, mask);
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct backing *backing = checkpoint->shards[i]->backing;

        if (backing)
            queries[count++] = query_of_file(backing->path, &backing->identity,
                                             checkpoint->shards[i]->is_refused_unread ? 0 : mask);
    }
    if (!count)
        error = access_directory(view, caller, checkpoint->directory, X_OK, NULL);
    else if (!progress)
        error = view->options.check(caller, queries, count);
    else
        error = check_one_by_one(view, caller, queries, count, progress, arg);
    free(index);
    free(queries);
    return error;
}

errint_t
access_shards(struct view *view, const struct caller *caller, const struct checkpoint *checkpoint,
              int mask)
{
    return access_files(view, caller, checkpoint, mask, NULL, NULL);
}

errint_t
access_shards_slowly(struct view *view, const struct caller *caller,
                     const struct checkpoint *checkpoint, void (*progress)(void *arg), void *arg)
{
    return access_files(view, caller, checkpoint, R_OK, progress, arg);
}

bool
access_depends_on_content(const struct checkpoint *checkpoint, enum made_kind kind)
{
    return made_is_recut(kind) || checkpoint->shard_count + (checkpoint->index_name != NULL) > 1;
}

errint_t
access_content(struct view *view, const struct caller *caller, const struct checkpoint *checkpoint,
               enum made_kind kind)
{
    return access_depends_on_content(checkpoint, kind)
               ? access_shards(view, caller, checkpoint, R_OK)
               : 0;
}

errint_t
access_existence(struct view *view, const struct caller *caller,
                 const struct checkpoint *checkpoint)
{
    errint_t error = access_shards(view, caller, checkpoint, 0);

    return error == -EACCES ? -ENOENT : error;
}

/* Whether the caller may look up the name, but nothing that depends on content: without read
 * permission, or if storage fails. -ESTALE can also mean that the file was replaced; after a retry
 * it is an error of the storage. */
static bool
makes_unread(errint_t error, bool is_retry)
{
    return error_hides_target(error) && !error_is_lack(error) && (error != -ESTALE || is_retry);
}

errint_t
access_listed(const struct checkpoint *checkpoint, enum made_kind kind, errint_t permission,
              bool is_retry, errint_t *unread)
{
    *unread = 0;
    if (makes_unread(permission, is_retry)) {
        *unread = permission == -EACCES ? permission : -EIO;
        return 0;
    }
    if (derived_is_unread(checkpoint, kind))
        *unread = checkpoint_passing_error(checkpoint, -EIO);
    return permission;
}

errint_t
access_generated(struct view *view, const struct caller *caller,
                 const struct checkpoint *checkpoint, enum made_kind kind, bool is_retry,
                 errint_t *unread)
{
    errint_t error = access_content(view, caller, checkpoint, kind);

    error = access_listed(checkpoint, kind, error, is_retry, unread);
    if (error || (access_depends_on_content(checkpoint, kind) && !*unread))
        return error;
    return access_existence(view, caller, checkpoint);
}

bool
access_is_owner(const struct view *view, const struct caller *caller)
{
    return !view->options.check || caller->uid == 0 || caller->uid == view->options.owner;
}

/* A page without permission bits for others is readable only by root and the mounting user. */
static errint_t
access_page(const struct view *view, const struct caller *caller, const struct view_page *page)
{
    return page->mode & S_IROTH || access_is_owner(view, caller) ? 0 : -EACCES;
}

errint_t
access_file(struct view *view, const struct caller *caller, const struct node *node,
            uint32_t position, int mask)
{
    switch (node->kind) {
    case NODE_PAGE:
        return access_page(view, caller, node->page);
    case NODE_TENSOR_SET:
        return access_backing(view, caller, tensor_set_at(node, position).shard->backing, mask);
    case NODE_SOURCE_FILE:
        return access_backing(view, caller, node->backing, mask);
    case NODE_MADE_FILE:
        return access_shards(view, caller, node->checkpoint, mask);
    default:
        return -EISDIR;
    }
}

errint_t
access_hide_error(struct view *view, const struct caller *caller, const struct node *tensors,
                  errint_t error)
{
    errint_t refused =
        access_directory(view, caller, source_dir_path(tensors->parent->dir), X_OK, NULL);

    return refused ? refused : error;
}

/* A tensor file. Whether it exists depends on the names in the other shards, too. If the rights of
 * these do not differ, a caller who may look them up and read its own shard may read them all. */
static errint_t
access_tensor(struct view *view, const struct caller *caller, const struct node *set,
              uint32_t position)
{
    const struct checkpoint *checkpoint = set->checkpoint;
    errint_t error = 0;

    if (checkpoint->rights_differ)
        return access_shards(view, caller, checkpoint, R_OK);
    if (checkpoint->shard_count > 1)
        error = access_shards(view, caller, checkpoint, 0);
    return error ? error : access_file(view, caller, set, position, R_OK);
}

errint_t
access_set(struct view *view, const struct caller *caller, const struct node *tensors,
           const struct node *set, uint32_t position)
{
    errint_t error = position == NODE_ITSELF ? access_shards(view, caller, set->checkpoint, R_OK)
                                             : access_tensor(view, caller, set, position);

    /* As in a lookup of the directory's name: if links among the shards lead to where the caller
     * may not look, the tensors do not exist for them. */
    if (error == -EACCES && access_shards(view, caller, set->checkpoint, 0) == -EACCES)
        return access_hide_error(view, caller, tensors, -ENOENT);
    return error;
}

errint_t
access_tensors(struct view *view, const struct caller *caller, struct node *tensors,
               struct node **set)
{
    struct node *current;
    errint_t error = current_tensors(view, tensors, &current);

    if (error)
        return access_hide_error(view, caller, tensors, error);
    error = access_set(view, caller, tensors, current, NODE_ITSELF);
    if (error)
        node_unref(view, current, 1);
    else
        *set = current;
    return error;
}

errint_t
view_access(struct view *view, const struct caller *caller, node_id id, int mask)
{
    uint32_t position;
    struct node *node = node_of(view, id, &position), *set;
    errint_t error;

    if (mask & W_OK)
        return -EROFS;
    if (!view->options.check || mask == 0)
        return 0;
    error = current_directory(node);
    if (error)
        return error;
    switch (node->kind) {
    case NODE_TOP:
    case NODE_PAGES:
        return 0;
    case NODE_DIRECTORY:
        return access_directory(view, caller, source_dir_path(node->dir), mask, NULL);
    case NODE_TENSORS:
        error = access_tensors(view, caller, node, &set);
        if (!error)
            node_unref(view, set, 1);
        return error;
    case NODE_PAGE:
    case NODE_TENSOR_SET:
        if (mask & X_OK)
            return -EACCES;
        break;
    default:
        break;
    }
    return access_file(view, caller, node, position, mask);
}

bool
view_checks_names(struct view *view, node_id directory)
{
    const struct node *node = node_of(view, directory, NULL);

    return view->options.check && (node->kind == NODE_DIRECTORY || node->kind == NODE_TENSORS);
}
