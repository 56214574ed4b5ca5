/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint of a directory, for a program that is given only the directory. If the intended
 * weights are lost, it must fail instead of using others. */
#include "catalog/group.h"
#include "catalog/private.h"

#include <errno.h>
#include <string.h>

/* Whether loaders look for weights under the name of a shard or an index. */
static bool
is_named_like_weights(const struct group *group)
{
    const char *file = group->member_count ? group->members[0] : group->index;

    return !group->container->is_converted || (file && group_is_name_of_weights(file));
}

static bool
has_name_of_weights(const struct listing *listing)
{
    for (uint32_t i = 0; i < listing->group_count; i++)
        if (is_named_like_weights(&listing->groups[i]))
            return true;
    return false;
}

/* Whether one of its files may be a checkpoint that is damaged or cannot be read. */
static bool
is_lost(const struct checkpoint *checkpoint)
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

    if (is_named_like_weights(group))
        return true;
    if (group_current_or_known(dir, group, &checkpoint))
        return !has_name_of_weights(listing);
    may_be = !checkpoint->is_absent || (is_lost(checkpoint) && !has_name_of_weights(listing));
    checkpoint_unref(checkpoint);
    return may_be;
}

/* Whether a file of this name would be a shard or the index of the group, or would be chosen
 * instead. */
static bool
is_rival(const struct listing *listing, const struct choice *choice, const char *name)
{
    const struct group *group = choice->group;
    struct suffix suffix;
    char stem[256];
    int order;

    if (!group_split_index_name(name, stem, &suffix) && !group_split_file_name(name, stem, &suffix))
        return false;
    order = container_compare(suffix.container, group->container);
    if (order > 0)
        return false;
    if (order == 0 && strcmp(stem, group->stem) == 0)
        return !group->index; /* else it decides which files are used */
    if (choice->stem)
        return strcmp(stem, choice->stem) == 0;
    if (order == 0 && choice->preferred && strcmp(group->stem, choice->preferred) == 0)
        return strcmp(stem, choice->preferred) == 0;
    return !suffix.container->is_converted || group_is_name_of_weights(name) ||
           !has_name_of_weights(listing);
}

const struct lost_name *
group_lost_rival(const struct listing *listing, const struct choice *choice)
{
    for (uint32_t i = 0; i < listing->lost_count; i++)
        if (!choice->group || is_rival(listing, choice, listing->lost[i].name))
            return &listing->lost[i];
    return NULL;
}
