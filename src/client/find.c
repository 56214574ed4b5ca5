/* SPDX-License-Identifier: Apache-2.0 */
#include "client/find.h"

#include "catalog/group.h"
#include "client/error.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void
found_free(struct found *found)
{
    checkpoint_unref(found->checkpoint);
    source_dir_unref(found->dir);
    catalog_free(found->catalog);
    *found = (struct found){NULL, NULL, NULL};
}

static errint_t
find_directory(const char *path, struct found *found)
{
    struct catalog_options options = {.source = path, .path_only = true};
    errint_t error = catalog_new(&options, &found->catalog);

    if (error)
        return fail(error, "%s: %s", path, strerror(-error));
    found->dir = catalog_root(found->catalog);
    return found->dir ? 0 : fail_no_memory();
}

static bool
group_is_candidate(struct source_dir *dir, const struct listing *listing, const struct group *group)
{
    return !group->shadowed && group_may_be_checkpoint(dir, listing, group);
}

/* Lists the stems of a directory's checkpoints, for a message. */
static void
name_groups(struct source_dir *dir, const struct listing *listing, char *out, size_t size)
{
    char stem[QUOTED_SIZE];
    size_t used = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < listing->group_count && used < size; i++)
        if (group_is_candidate(dir, listing, &listing->groups[i]))
            used += (size_t)snprintf(
                out + used, size - used, "%s%s", used ? ", " : "",
                quoted(stem, listing->groups[i].stem, strlen(listing->groups[i].stem)));
}

static bool
has_preferred_stem(const struct group *group)
{
    return strcmp(group->stem, "model") == 0;
}

/* The checkpoint with the preferred stem, else the only one. */
static errint_t
find_only_group(struct source_dir *dir, const struct listing *listing, const char *path,
                const struct group **group)
{
    char names[300];
    unsigned count = 0;

    *group = NULL;
    for (uint32_t i = 0; i < listing->group_count; i++) {
        if (!group_is_candidate(dir, listing, &listing->groups[i]))
            continue;
        *group = &listing->groups[i];
        if (has_preferred_stem(*group))
            return 0;
        count++;
    }
    if (count == 0)
        return fail(-ENOENT, "%s: no checkpoint in this directory", path);
    if (count == 1)
        return 0;
    *group = NULL;
    name_groups(dir, listing, names, sizeof(names));
    return fail(-ENOTUNIQ, "%s: several checkpoints (%s); open one of their files", path, names);
}

/* Fails if the weights that would be used instead of the only group are lost. */
static errint_t
check_no_lost_rival(const struct listing *listing, const char *path, const struct group *group)
{
    const struct lost_name *lost =
        group_lost_rival(listing, group, !group || !has_preferred_stem(group));
    char shown[QUOTED_SIZE];

    if (!lost)
        return 0;
    quoted(shown, lost->name, strlen(lost->name));
    return lost->is_link ? fail(-ENOENT, "%s: %s: a link that leads to no file", path, shown)
                         : fail(-EBADMSG, "%s: %s: an index that is not valid", path, shown);
}

/* The group of the index file `index`. -EBADMSG without a message: no group uses the index. */
static errint_t
choose_group(const struct listing *listing, const char *index, const struct group **group)
{
    for (uint32_t i = 0; i < listing->group_count; i++)
        if (listing->groups[i].index && strcmp(listing->groups[i].index, index) == 0) {
            *group = &listing->groups[i];
            return 0;
        }
    return -EBADMSG;
}

/* Reports with fail() why no group uses the index. */
static errint_t
bad_index(struct found *found, const char *path, const char *index)
{
    struct reason reason;
    errint_t error = source_dir_check_index(found->dir, index, &reason);

    if (error)
        return fail(error, "%s: %s: %s", path, reason.rule, reason.text);
    return fail(-EBADMSG,
                "%s: not used: none of its shards exists, or safetensors files have the same stem",
                path);
}

static errint_t
find_in_directory(const char *path, const char *index, struct found *found)
{
    const struct group *group = NULL;
    struct listing *listing;
    errint_t error = source_dir_listing(found->dir, &listing);

    if (error)
        return fail(error, "%s: %s", path, strerror(-error));
    error = index ? choose_group(listing, index, &group)
                  : find_only_group(found->dir, listing, path, &group);
    if (error && index)
        error = bad_index(found, path, index);
    if (!error && !index)
        error = check_no_lost_rival(listing, path, group);
    if (!error)
        error = group_checkpoint(found->dir, group, &found->checkpoint);
    listing_unref(listing);
    return error == -ENOMEM ? fail_no_memory() : error;
}

/* A file with any name is a checkpoint of one shard. */
static errint_t
find_file(const char *name, struct found *found)
{
    const struct group group = group_of_file(group_file_container(name), name, &name);
    errint_t error = group_load(found->dir, &group, 1, &found->checkpoint);

    return error ? fail(error, "%s: %s", name, strerror(-error)) : 0;
}

static errint_t
refusal_error(const struct shard *shard)
{
    if (!shard->temporary)
        return -EBADMSG;
    return shard->error == -EAGAIN ? -ESTALE : shard->error; /* it changed while it was read */
}

static errint_t
check_sound(const char *path, const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (shard->refusal)
            return fail(refusal_error(shard), "%s: %s: %s", path, shard->name, shard->refusal);
    }
    if (checkpoint->passing_error)
        return fail(checkpoint->passing_error, "%s: %s: %s", path, checkpoint->unsound,
                    strerror(-checkpoint->passing_error));
    if (checkpoint_fault(checkpoint))
        return fail(-EBADMSG, "%s: %s", path, checkpoint->unsound);
    return 0;
}

static errint_t
find_any(const char *path, struct found *found)
{
    char directory[PATH_MAX], stem[256];
    const char *name = strrchr(path, '/');
    struct stat st;
    errint_t error;

    if (stat(path, &st) < 0)
        return fail(-errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return fail(-EINVAL, "%s: neither a file nor a directory", path);
    if (S_ISDIR(st.st_mode)) {
        error = find_directory(path, found);
        return error ? error : find_in_directory(path, NULL, found);
    }
    name = name ? name + 1 : path;
    if (name - path >= PATH_MAX)
        return fail(-ENAMETOOLONG, "%s: the path is too long", path);
    snprintf(directory, sizeof(directory), "%.*s", (int)(name - path), path);
    error = find_directory(name == path ? "." : directory, found);
    if (error)
        return error;
    return group_index_name(name, stem) ? find_in_directory(path, name, found)
                                        : find_file(name, found);
}

errint_t
find_path(const char *path, struct found *found)
{
    errint_t error = find_any(path, found);

    if (!error)
        error = check_sound(path, found->checkpoint);
    if (error)
        found_free(found);
    return error;
}

/* Returns whether the checkpoint is the version that the mount shows. If not, drops it. */
static bool
found_version(struct found *found, uint64_t version)
{
    if (found->checkpoint->version == version)
        return true;
    checkpoint_unref(found->checkpoint);
    found->checkpoint = NULL;
    return false;
}

/* Loads the shards that the mount names, without listing their directory. */
static errint_t
find_shards(const struct mount_origin *origin, struct found *found)
{
    const struct group group = {.container = group_file_container(origin->shards[0]),
                                .stem = origin->stem,
                                .suffix = "",
                                .members = (const char *const *)origin->shards,
                                .member_count = origin->shard_count,
                                .unfinished = 1,
                                .kind = GROUP_NUMBERED};
    errint_t error = group_load(found->dir, &group, CHECKPOINT_THREADS, &found->checkpoint);

    if (error)
        return error;
    return found_version(found, origin->version) ? 0 : -ENOENT;
}

/* Several checkpoints may have the stem; all but one are shadowed. */
static errint_t
find_stem(const struct mount_origin *origin, struct found *found)
{
    struct listing *listing;
    errint_t error = source_dir_listing(found->dir, &listing);
    bool is_found = false;

    if (error)
        return error;
    for (uint32_t i = 0; !error && !is_found && i < listing->group_count; i++) {
        if (strcmp(listing->groups[i].stem, origin->stem) != 0)
            continue;
        error = group_checkpoint(found->dir, &listing->groups[i], &found->checkpoint);
        is_found = !error && found_version(found, origin->version);
    }
    listing_unref(listing);
    return error || is_found ? error : -ENOENT;
}

static void
fail_of_origin(const struct mount_origin *origin, errint_t error)
{
    if (error == -ENOENT)
        fail(error, "%s: %s is not the version that the mount shows", origin->directory,
             origin->stem);
    else if (error)
        fail(error, "%s: %s", origin->directory, strerror(-error));
}

errint_t
find_origin(const struct mount_origin *origin, struct found *found)
{
    errint_t error = origin->unsound ? fail(-EBADMSG, "%s: %s: %s", origin->directory, origin->stem,
                                            origin->unsound)
                                     : find_directory(origin->directory, found);

    if (!error) {
        error = origin->shards ? find_shards(origin, found) : find_stem(origin, found);
        fail_of_origin(origin, error);
    }
    if (!error)
        error = check_sound(origin->directory, found->checkpoint);
    if (error)
        found_free(found);
    return error;
}
