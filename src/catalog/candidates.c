/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint of a directory, for a program that is given only the directory. If the intended
 * weights are lost, that program must fail instead of using others. */
#include "catalog/group.h"
#include "catalog/private.h"

#include <errno.h>
#include <string.h>

/* Whether the name is that of weights: any name of a safetensors or GGUF file; of PyTorch files
 * only the names that loaders look for. */
static bool
is_name_of_weights(const struct container *container, const char *file)
{
    return !container->is_converted || (file && group_is_name_of_weights(file));
}

static bool
is_named_like_weights(const struct group *group)
{
    return is_name_of_weights(group->container, group_file(group));
}

static bool
has_name_of_weights(const struct listing *listing)
{
    for (uint32_t i = 0; i < listing->group_count; i++)
        if (is_named_like_weights(&listing->groups[i]))
            return true;
    return false;
}

static bool
is_training_state(const struct group *group)
{
    return !is_named_like_weights(group) && group_is_name_of_other_format(group_file(group));
}

static bool
has_more_than_training_state(const struct listing *listing)
{
    for (uint32_t i = 0; i < listing->group_count; i++)
        if (!is_training_state(&listing->groups[i]))
            return true;
    return false;
}

/* Whether loaders prefer safetensors files with this stem to PyTorch files with any stem. */
static bool
is_preferred(const struct group *group)
{
    return strcmp(group->stem, "model") == 0 || strcmp(group->stem, "diffusion_pytorch_model") == 0;
}

/* Whether files of this container are ignored because the directory has weights in a container of
 * higher precedence. Beside such weights, GGUF files, which other programs use, and files that are
 * not named like weights, such as optimizer.pt, are always ignored; PyTorch weights only if
 * is_preferred() is true for a group of that container. */
static bool
is_outranked(const struct listing *listing, const struct container *container, bool is_weights)
{
    if (container == container_all[0])
        return false;
    for (uint32_t i = 0; i < listing->group_count; i++) {
        const struct group *group = &listing->groups[i];

        if (container_compare(group->container, container) < 0 && is_named_like_weights(group) &&
            (!is_weights || !container->is_converted || is_preferred(group)))
            return true;
    }
    return false;
}

/* Whether one of its files may be a checkpoint that is damaged or cannot be read. */
static bool
may_be_damaged(const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i]->refusal && checkpoint->shards[i]->error != -ENOMSG)
            return true;
    return false;
}

bool
group_may_be_checkpoint(struct source_dir *dir, const struct listing *listing,
                        const struct group *group)
{
    struct checkpoint *checkpoint;
    bool may_be;

    if (is_outranked(listing, group->container, is_named_like_weights(group)))
        return false;
    if (is_named_like_weights(group))
        return true;
    if (is_training_state(group) && has_more_than_training_state(listing))
        return false;
    if (group_current_or_known(dir, group, &checkpoint))
        return !has_name_of_weights(listing);
    may_be =
        !checkpoint->is_absent || (may_be_damaged(checkpoint) && !has_name_of_weights(listing));
    checkpoint_unref(checkpoint);
    return may_be;
}

/* Whether a valid file of this name would belong to the group, or be chosen instead of it. */
static bool
is_rival(const struct listing *listing, const struct group *group, bool any_stem, const char *name)
{
    struct suffix suffix;
    char stem[256];
    bool is_weights;
    int order;

    if (!group_split_index_name(name, stem, &suffix) && !group_split_file_name(name, stem, &suffix))
        return false;
    order = container_compare(suffix.container, group->container);
    if (strcmp(stem, group->stem) == 0) /* an index decides which files are used */
        return order < 0 || (order == 0 && !group->index);
    is_weights = is_name_of_weights(suffix.container, name);
    return any_stem && !is_outranked(listing, suffix.container, is_weights) &&
           (is_weights || !has_name_of_weights(listing));
}

const struct lost_name *
group_lost_rival(const struct listing *listing, const struct group *group, bool any_stem)
{
    for (uint32_t i = 0; i < listing->lost_count; i++)
        if (!group || is_rival(listing, group, any_stem, listing->lost[i].name))
            return &listing->lost[i];
    return NULL;
}
