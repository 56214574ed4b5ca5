/* SPDX-License-Identifier: Apache-2.0 */
#include "common/find.h"

#include "base/array.h"
#include "base/quote.h"
#include "base/text.h"
#include "catalog/group.h"

#include <errno.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Splits a path into a directory, absolute and real, and a name in it. */
static errint_t
find_split_path(const char *path, struct found *found, struct reason *reason)
{
    char *copy = strdup(path);
    struct stat st;

    if (!copy)
        return reason_no_memory(reason);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        found->is_directory = true;
        found->directory = realpath(path, NULL);
    } else {
        /* A link is not resolved: shards and stems are matched by its name. */
        snprintf(found->name, sizeof(found->name), "%s", basename(copy));
        strcpy(copy, path);
        found->directory = realpath(dirname(copy), NULL);
    }
    free(copy);
    if (!found->directory)
        return reason_errno(reason, -errno, NULL);
    return 0;
}

bool
find_group_has_member(const struct group *group, const char *name)
{
    for (uint32_t i = 0; i < group->member_count; i++) {
        if (strcmp(group->members[i], name) == 0)
            return true;
    }
    return false;
}

/* Counts the checkpoints, and returns the first two. */
static uint32_t
list_groups(const struct found *found, const struct group *groups[2])
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < found->listing->group_count; i++) {
        const struct group *group = &found->listing->groups[i];

        if (!group_may_be_checkpoint(found->root, found->listing, group))
            continue;
        if (count < 2)
            groups[count] = group;
        count++;
    }
    return count;
}

/* What follows the directory in the path of a checkpoint: its stem, or a file if an earlier one has
 * that stem. */
static const char *
path_name(const struct group *group)
{
    return group->second && group->member_count ? group->members[0] : group->stem;
}

static errint_t
refuse_several_groups(const struct group *groups[2], uint32_t count, struct reason *reason)
{
    char first[QUOTED_SIZE], second[QUOTED_SIZE];
    const char *a = path_name(groups[0]), *b = path_name(groups[1]);

    return reason_set(reason, -EINVAL, "Several",
                      "contains %u checkpoints, among them %.60s and %.60s; name one of "
                      "them: DIRECTORY/%.60s",
                      (unsigned)count, quoted(first, a, strlen(a)), quoted(second, b, strlen(b)),
                      first);
}

static errint_t
choose_only_group(struct found *found, struct reason *reason)
{
    const struct group *groups[2];
    uint32_t count = list_groups(found, groups);

    if (count == 0)
        return reason_set(reason, -ENOENT, "None", "contains no checkpoint");
    if (count > 1)
        return refuse_several_groups(groups, count, reason);
    found->group = groups[0];
    return 0;
}

/* The group of a file that belongs to no group of the listing, because safetensors files have the
 * same stem. */
struct single_file {
    struct group group;
    const char *member;
    char name[NAME_MAX + 1], stem[256];
};

static errint_t
choose_single_file(struct found *found, const struct suffix *suffix, const char *stem,
                   struct reason *reason)
{
    struct single_file *single = malloc(sizeof(*single));

    if (!single)
        return reason_no_memory(reason);
    strcpy(single->name, found->name);
    strcpy(single->stem, stem);
    single->member = single->name;
    single->group = group_of_file(suffix->container, single->stem, &single->member);
    found->single = single;
    found->group = &single->group;
    found->one_file = true;
    return 0;
}

static bool
is_safetensors_stem(const struct listing *listing, const char *stem)
{
    for (uint32_t i = 0; i < listing->group_count; i++)
        if (listing->groups[i].container == &container_safetensors &&
            strcmp(listing->groups[i].stem, stem) == 0)
            return true;
    return false;
}

static bool
is_listed_file(const struct listing *listing, const char *name)
{
    return listing->file_count && bsearch(&name, listing->files, listing->file_count,
                                          sizeof(*listing->files), text_compare_strings);
}

static errint_t
choose_named_group(const char *path, struct found *found, struct reason *reason)
{
    struct suffix suffix;
    char stem[256];

    for (uint32_t i = 0; i < found->listing->group_count; i++) {
        const struct group *group = &found->listing->groups[i];

        if (find_group_has_member(group, found->name))
            found->one_file = true;
        else if (strcmp(group->stem, found->name) != 0 &&
                 (!group->index || strcmp(group->index, found->name) != 0))
            continue;
        found->group = group;
        return 0;
    }
    if (access(path, F_OK) != 0)
        return reason_set(reason, -ENOENT, "None", "no such file or checkpoint");
    if (is_listed_file(found->listing, found->name) &&
        group_split_file_name(found->name, stem, &suffix))
        return choose_single_file(found, &suffix, stem, reason);
    if (group_split_index_name(found->name, stem, &suffix) && suffix.container->is_converted &&
        is_safetensors_stem(found->listing, stem))
        return reason_set(reason, -ENOENT, "None",
                          "not used, because safetensors files have the same stem; name its "
                          "shards instead");
    return reason_set(reason, -ENOENT, "None", "not a checkpoint");
}

errint_t
find_checkpoint(const char *path, const struct catalog_options *options, struct found *found,
                struct reason *reason)
{
    struct catalog_options own = *options;
    errint_t error;

    *found = (struct found){0};
    error = find_split_path(path, found, reason);
    if (error)
        return error;
    own.source = found->directory;
    error = catalog_new(&own, &found->catalog);
    if (error)
        return reason_errno(reason, error, NULL);
    found->root = catalog_root(found->catalog);
    if (!found->root)
        return reason_no_memory(reason);
    error = source_dir_listing(found->root, &found->listing);
    if (error)
        return reason_errno(reason, error, NULL);
    return found->is_directory ? choose_only_group(found, reason)
                               : choose_named_group(path, found, reason);
}

void
find_ignore_problem(void *arg, const char *directory, const char *name, const char *text)
{
    (void)arg, (void)directory, (void)name, (void)text;
}

errint_t
find_check_lost(const struct found *found, struct reason *reason)
{
    const struct lost_name *lost =
        group_lost_rival(found->listing, found->group, found->is_directory);
    char shown[QUOTED_SIZE];

    if (!lost)
        return 0;
    quoted(shown, lost->name, strlen(lost->name));
    return reason_set(reason, -EBADMSG, "Lost", "%.250s is %s; repair or remove it", shown,
                      lost->is_link ? "a link that leads to no file"
                                    : "an index that is not valid");
}

errint_t
find_read_headers(struct found *found, struct reason *reason)
{
    const struct checkpoint *checkpoint;
    char name[QUOTED_SIZE];
    errint_t error = found->single
                         ? group_load(found->root, found->group, 1, &found->checkpoint)
                         : group_checkpoint(found->root, found->group, &found->checkpoint);

    if (error)
        return reason_errno(reason, error, NULL);
    checkpoint = found->checkpoint;
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (found->one_file && strcmp(shard->name, found->name) != 0)
            continue;
        quoted(name, shard->name, strlen(shard->name));
        if (shard->refusal)
            return reason_set(reason, -EBADMSG, "Refused", "%.150s: %.330s", name, shard->refusal);
        if (shard->table->refused_count)
            return reason_set(reason, -EBADMSG, "Unsound",
                              "%.150s: %" PRIu32
                              " of its tensors cannot be shown; run fstfs-check for details",
                              name, shard->table->refused_count);
    }
    if (found->one_file)
        return 0;
    if (!group_index_name(found->name, NULL)) /* the index decides which files are used */
        error = find_check_lost(found, reason);
    if (error)
        return error;
    if (checkpoint->unsound)
        return reason_set(reason, -EBADMSG, "Unsound", "%s; run fstfs-check for details",
                          checkpoint->unsound);
    return 0;
}

void
find_close(struct found *found)
{
    checkpoint_unref(found->checkpoint);
    listing_unref(found->listing);
    source_dir_unref(found->root);
    catalog_free(found->catalog);
    free(found->single);
    free(found->directory);
    *found = (struct found){0};
}

bool
find_is_unfinished_download(const char *name)
{
    static const char *const browsers[] = {".part", ".partial", ".crdownload", ".opdownload"};

    if (text_has_suffix(name, ".incomplete") || text_has_suffix(name, ARIA2_CONTROL_SUFFIX))
        return true;
    for (size_t i = 0; i < COUNT_OF(browsers); i++)
        if (text_has_suffix(name, browsers[i]))
            return container_of_name(name, strlen(name) - strlen(browsers[i]), NULL) != NULL;
    return false;
}
