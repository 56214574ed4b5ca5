/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the source that a call accesses. Does not wait for storage. */
#include "view/node.h"

#include "base/hash.h"

#include <string.h>

static bool
place_in(struct view_place *place, uint64_t device, const char *directory, const char *name)
{
    place->filesystem = device;
    place->directory = hash64(directory, strlen(directory), 0);
    place->name = hash64(name, strlen(name), place->directory);
    return true;
}

static bool
place_in_directory(struct view_place *place, const struct source_dir *dir, const char *name)
{
    return place_in(place, source_dir_device(dir), source_dir_path(dir), name);
}

/* The name of a view refers to the root directory of the source. */
static bool
place_of_top(struct view *view, const char *name, struct view_place *place)
{
    struct source_dir *dir;
    bool found;

    if (!name || strcmp(name, view_pages_name) == 0)
        return false;
    dir = catalog_root(view->catalog);
    found = dir && place_in_directory(place, dir, ".");
    source_dir_unref(dir);
    return found;
}

static bool
place_of_checkpoint(struct view_place *place, const struct checkpoint *checkpoint)
{
    uint64_t device = checkpoint->shard_count ? checkpoint->shards[0]->file.identity.device : 0;

    return place_in(place, device, checkpoint->directory, checkpoint->stem);
}

bool
view_place(struct view *view, node_id id, const char *name, struct view_place *place)
{
    uint32_t position;
    const struct node *node = node_of(view, id, &position);

    switch (node->kind) {
    case NODE_TOP:
        return place_of_top(view, name, place);
    case NODE_PAGES:
    case NODE_PAGE:
        return false;
    case NODE_DIRECTORY:
        if (name && node == view->root && strcmp(name, view_pages_name) == 0)
            return false;
        return place_in_directory(place, node->dir, name ? name : ".");
    case NODE_TENSOR_SET:
        return place_of_checkpoint(place, node->checkpoint);
    default:
        return place_in_directory(place, node->parent->dir, node->name);
    }
}
