/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the file system, directory and name that a call accesses, by which calls are scheduled.
 * Does not wait for storage. */
#include "base/hash.h"
#include "view/current.h"

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

/* The lane of a call for a name in a directory of the source; 0: it has none, or is not listed. */
static uint64_t
lane_of_name(struct view *view, struct node *directory, const char *name, bool is_open)
{
    struct dir_listing *listing = current_lanes(view, directory);
    const struct dir_entry *entry;
    uint64_t lane = 0;

    if (!listing)
        return 0;
    entry = dir_listing_find(listing, name);
    if (entry && entry->kind == ENTRY_SHARD && is_open)
        lane = dir_entry_group(listing, entry)->lane;
    else if (entry)
        lane = dir_entry_lane(listing, entry);
    dir_listing_unref(listing);
    return lane;
}

/* A name of a NODE_DIRECTORY. */
static bool
place_of_name(struct view *view, struct view_place *place, struct node *directory, const char *name,
              bool is_open)
{
    uint64_t lane = lane_of_name(view, directory, name, is_open);

    place_in_directory(place, directory->dir, name);
    if (lane) {
        place->filesystem = lane;
        place->directory ^= lane;
    }
    return true;
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
    uint64_t device = checkpoint->shard_count ? checkpoint->shards[0]->identity.device : 0;

    return place_in(place, device, checkpoint->directory, checkpoint->stem);
}

bool
view_place(struct view *view, node_id id, const char *name, bool is_open, struct view_place *place)
{
    struct node *node = node_of(view, id, NULL);

    switch (node->kind) {
    case NODE_TOP:
        return place_of_top(view, name, place);
    case NODE_PAGES:
    case NODE_PAGE:
        return false;
    case NODE_DIRECTORY:
        if (name && node == view->root && strcmp(name, view_pages_name) == 0)
            return false;
        return name ? place_of_name(view, place, node, name, false)
                    : place_in_directory(place, node->dir, ".");
    case NODE_TENSOR_SET:
        return place_of_checkpoint(place, node->checkpoint);
    default:
        return place_of_name(view, place, node->parent, node->name, is_open);
    }
}
