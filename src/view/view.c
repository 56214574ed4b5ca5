/* SPDX-License-Identifier: Apache-2.0 */
#include "view/view.h"

#include "view/node.h"

#include <errno.h>
#include <stdlib.h>

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
