/* SPDX-License-Identifier: Apache-2.0 */
#include "view/access.h"

#include "view/current.h"
#include "view/node.h"
#include "view/permission.h"

#include <errno.h>
#include <unistd.h>

/* To read a file that has a node. */
errint_t
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
errint_t
check_page(const struct view *view, const struct caller *caller, const struct view_page *page)
{
    if (!view->options.check || caller->uid == 0 || caller->uid == view->options.owner ||
        page->mode & S_IROTH)
        return 0;
    return -EACCES;
}

/* To read a tensor file, or to be told of it. */
errint_t
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
errint_t
check_tensors(struct view *view, const struct caller *caller, const struct checkpoint *checkpoint)
{
    struct permission_request request;

    permission_begin(&request, view->options.check, caller);
    permission_need_shards(&request, checkpoint, R_OK);
    return permission_ask(&request);
}

/* access(2), where the kernel does not answer it by the modes shown. */
errint_t
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

bool
view_checks_names(struct view *view, node_id directory)
{
    const struct node *node = node_is_tensor(directory) ? NULL : node_of(view, directory);

    return view->options.check && node &&
           (node->kind == NODE_DIRECTORY || node->kind == NODE_TENSORS);
}
