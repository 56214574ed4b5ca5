/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and destruction of a view. */
#include "view/view.h"

#include "view/list_cache.h"
#include "view/node.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

const char *const view_names[VIEW_KINDS] = {"tensors", "merged", "shards", "npy"};

const char view_pages_name[] = ".fstfs";

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
    /* So that a file handle of an earlier mount matches no file of this one. */
    if (getrandom(&view->generation, sizeof(view->generation), 0) < 0)
        view->generation = (uint32_t)view->started.tv_sec;
    view->lists = list_cache_new();
    view->root = view->lists ? make_root(view) : NULL;
    if (!view->root) {
        view_free(view);
        return -ENOMEM;
    }
    *out = view;
    return 0;
}

void
view_free(struct view *view)
{
    if (!view)
        return;
    list_cache_free(view->lists);
    nodes_free(view); /* the kernel does not forget all nodes before an unmount */
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
