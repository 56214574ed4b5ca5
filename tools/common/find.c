/* SPDX-License-Identifier: Apache-2.0 */
#include "common/find.h"

#include "base/quote.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static errint_t
out_of_memory(struct reason *reason)
{
    return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
}

/* Splits a path into a directory, real and absolute, and a name in it. */
static errint_t
find_directory(const char *path, struct found *found, struct reason *reason)
{
    char *copy = strdup(path);
    struct stat st;

    if (!copy)
        return out_of_memory(reason);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        found->is_directory = true;
        found->directory = realpath(path, NULL);
    } else {
        /* The file's own directory, even where the file is a link: the link has the name. */
        snprintf(found->name, sizeof(found->name), "%s", basename(copy));
        strcpy(copy, path);
        found->directory = realpath(dirname(copy), NULL);
    }
    free(copy);
    if (!found->directory)
        return reason_set(reason, -errno, "Path", "%s", strerror(errno));
    return 0;
}

static bool
has_member(const struct group *group, const char *name)
{
    for (uint32_t i = 0; i < group->member_count; i++) {
        if (strcmp(group->members[i], name) == 0)
            return true;
    }
    return false;
}

static errint_t
refuse_several(const struct listing *listing, struct reason *reason)
{
    char first[QUOTED_SIZE], second[QUOTED_SIZE];
    const char *a = listing->groups[0].stem, *b = listing->groups[1].stem;

    return reason_set(reason, -EINVAL, "Several",
                      "there are %u checkpoints in it, %.60s and %.60s among them; name one: "
                      "DIRECTORY/%.60s",
                      (unsigned)listing->group_count, quoted(first, a, strlen(a)),
                      quoted(second, b, strlen(b)), first);
}

static errint_t
choose_only(struct found *found, struct reason *reason)
{
    const struct listing *listing = found->listing;

    if (listing->group_count == 0)
        return reason_set(reason, -ENOENT, "None",
                          "no checkpoint in it: no *.safetensors, no *.sft");
    if (listing->group_count > 1)
        return refuse_several(listing, reason);
    found->group = &listing->groups[0];
    return 0;
}

static errint_t
choose_named(const char *path, struct found *found, struct reason *reason)
{
    for (uint32_t i = 0; i < found->listing->group_count; i++) {
        const struct group *group = &found->listing->groups[i];

        if (has_member(group, found->name))
            found->one_file = true;
        else if (strcmp(group->stem, found->name) != 0 &&
                 (!group->index || strcmp(group->index, found->name) != 0))
            continue;
        found->group = group;
        return 0;
    }
    if (access(path, F_OK) != 0)
        return reason_set(reason, -ENOENT, "None", "there is no such file and no such checkpoint");
    return reason_set(reason, -ENOENT, "None", "neither a safetensors file nor a checkpoint");
}

errint_t
find_checkpoint(const char *path, const struct catalog_options *options, struct found *found,
                struct reason *reason)
{
    struct catalog_options own = *options;
    errint_t error;

    *found = (struct found){0};
    error = find_directory(path, found, reason);
    if (error)
        return error;
    own.source = found->directory;
    error = catalog_new(&own, &found->catalog);
    if (error)
        return reason_set(reason, error, "Path", "%s", strerror(-error));
    found->root = catalog_root(found->catalog);
    if (!found->root)
        return out_of_memory(reason);
    error = source_dir_listing(found->root, &found->listing);
    if (error)
        return reason_set(reason, error, "Listing", "%s", strerror(-error));
    return found->is_directory ? choose_only(found, reason) : choose_named(path, found, reason);
}

void
find_no_problem(void *arg, const char *directory, const char *name, const char *text)
{
    (void)arg, (void)directory, (void)name, (void)text;
}

errint_t
find_headers(struct found *found, struct reason *reason)
{
    errint_t error = group_checkpoint(found->root, found->group, &found->checkpoint);

    return error ? reason_set(reason, error, "Headers", "%s", strerror(-error)) : 0;
}

errint_t
find_check_sound(const struct found *found, struct reason *reason)
{
    const struct checkpoint *checkpoint = found->checkpoint;
    char name[QUOTED_SIZE];

    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (shard->refusal && (!found->one_file || strcmp(shard->name, found->name) == 0))
            return reason_set(reason, -EBADMSG, "Refused", "%.150s: %.330s",
                              quoted(name, shard->name, strlen(shard->name)), shard->refusal);
    }
    if (checkpoint->unsound && !found->one_file)
        return reason_set(reason, -EBADMSG, "Unsound", "%s; fstfs-check says more",
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
    free(found->directory);
    *found = (struct found){0};
}
