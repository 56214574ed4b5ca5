/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint of a directory, for a program that is given only the directory: it must not use
 * other weights because those that are meant are lost. */
#include "catalog/group.h"
#include "catalog/private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Whether a file of this name would be a shard of the group, or would have been chosen instead. */
static bool
is_rival(const struct listing *listing, const struct group *group, const char *stem,
         const char *name)
{
    struct suffix suffix = group_file_suffix(name);
    uint32_t number, of;
    char own[256];

    if (!suffix.container || container_compare(suffix.container, group->container) > 0)
        return false;
    if (!stem)
        return !suffix.container->is_converted || group_is_name_of_weights(name) ||
               !has_name_of_weights(listing);
    return (group_numbered_name(name, own, &number, &of) || group_single_name(name, own)) &&
           strcmp(own, stem) == 0;
}

bool
group_has_lost_rival(struct source_dir *dir, const struct listing *listing,
                     const struct group *group, const char *stem, char found[256])
{
    int fd = source_dir_open_self(dir);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    bool is_dangling = false;
    struct stat st;

    while (entries && !is_dangling && (entry = readdir(entries))) {
        if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
            continue;
        is_dangling = (!group || is_rival(listing, group, stem, entry->d_name)) &&
                      fstatat(dirfd(entries), entry->d_name, &st, 0) < 0 &&
                      fstatat(dirfd(entries), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                      S_ISLNK(st.st_mode);
        if (is_dangling)
            strcpy(found, entry->d_name);
    }
    if (entries)
        closedir(entries);
    else if (fd >= 0)
        close(fd);
    return is_dangling;
}
