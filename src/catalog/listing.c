/* SPDX-License-Identifier: Apache-2.0 */
/* Listings: the names of a directory, and the checkpoints that its files form. */
#include "base/array.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "catalog/group.h"
#include "catalog/scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A listing, and the state for checking it. */
struct listing_private {
    struct listing listing; /* first */
    bool unsettled; /* as in struct scan */
    uint64_t checked; /* monotonic_ms(); guarded by the directory's lock */
    char *names; /* of all entries, one after another */
    struct local_links locals; /* `next` is guarded by the directory's lock */
    struct remote_names remotes; /* their queries are guarded by the directory's lock */
    struct grouping grouping;
    const char **directories, **links;
    struct lost_name *lost;
    size_t lost_count;
    struct group_index *indexes; /* `index` is NULL once the files are grouped */
    size_t index_count;
};

static struct listing_private *
private_of(const struct listing *listing)
{
    return (struct listing_private *)(uintptr_t)listing;
}

uint64_t
listing_lane(const struct listing *listing, const char *name)
{
    const struct remote_name *remote = remote_names_find(&private_of(listing)->remotes, name);

    return remote ? remote->lane : 0;
}

void
listing_unref(struct listing *listing)
{
    struct listing_private *internal = private_of(listing);

    if (!listing || atomic_fetch_sub(&listing->references, 1) > 1)
        return;
    for (uint32_t i = 0; i < listing->group_count; i++)
        group_state_unref(listing->groups[i].state);
    grouping_free(&internal->grouping);
    problem_set_unref(listing->problems);
    local_links_free(&internal->locals);
    remote_names_free(&internal->remotes);
    free(internal->directories);
    free(internal->links);
    free(internal->lost);
    free(internal->indexes);
    free(internal->names);
    free(internal);
}

/* ---- making a listing ---- */

/* Makes what group_files() needs of the index that defined this group. Its `bytes` are 0. */
static struct st_index *
index_of_group(const struct group *group)
{
    struct st_index *index = calloc(1, sizeof(*index));

    if (index) {
        index->container = group->container;
        index->shards = group->members;
        index->shard_count = group->member_count;
    }
    return index;
}

/* If the index cannot be read, uses that of the previous listing, provided that none of its files
 * was missing. */
static errint_t
recall_index(const struct listing *before, const char *name, struct st_index **index)
{
    for (uint32_t i = 0; before && i < before->group_count; i++) {
        const struct group *group = &before->groups[i];

        if (!group->index || strcmp(group->index, name) != 0 || group->missing_count > 0 ||
            group->index_error)
            continue;
        *index = index_of_group(group);
        return *index ? 0 : -ENOMEM;
    }
    return 0;
}

/* An index that cannot be read is not ignored: grouping by names could show other shards under the
 * name of its checkpoint. Uses the index of the previous listing, or sets listed->error. Fails only
 * if out of memory. */
static errint_t
use_index_without_reading(const struct listing *before, struct group_index *listed, errint_t error)
{
    if (recall_index(before, listed->file, &listed->index))
        return -ENOMEM;
    if (!listed->index)
        listed->error = error;
    return 0;
}

/* Reads one index file. An invalid index is reported. Fails only if out of memory. */
static errint_t
read_listed_index(struct scan *scan, const struct listing *before, bool through_link,
                  struct group_index *listed)
{
    struct remote_name *remote = remote_names_find(&scan->remotes, listed->file);
    struct name_query *query = remote ? remote->query : NULL;
    struct st_index *read = NULL;
    struct reason reason;
    errint_t error;

    listed->is_checked_as_link = remote != NULL;
    if (remote && (!remote->is_answered || !query))
        return use_index_without_reading(before, listed, -EIO);
    if (remote) {
        error = query->error ? query->error : query->index_error;
        reason = query->reason;
        if (query->error)
            reason_fill(&reason, "IoError", "%s", strerror(-error));
        read = query->index;
        query->index = NULL;
        remote->index = listed->identity = query->index_identity;
    } else {
        error = source_dir_index(scan->dir, listed->file, &read, &listed->identity, &reason);
    }
    if (error == -ENOMEM)
        return error;
    if (error == -ENOENT && !through_link) /* removed since the directory was read */
        return 0;
    if (error)
        problem_set_add(
            scan->problems, listed->file, "refused: %s: %s; %s", reason.rule, reason.text,
            error == -EBADMSG ? "the index is not used"
                              : "its checkpoint is listed as before, or cannot be opened");
    if (error && error != -EBADMSG)
        return use_index_without_reading(before, listed, error);
    listed->error = read && read->shard_count == 0 ? -EBADMSG : error;
    listed->index = read;
    return 0;
}

/* Keeps or frees the index of a listed file. */
static void
release_index(struct catalog *catalog, struct group_index *listed)
{
    if (listed->index && listed->index->bytes)
        catalog_keep_index(catalog, listed->index, &listed->identity);
    else
        free(listed->index);
    listed->index = NULL;
}

static bool
is_link(const struct listing_private *internal, size_t count, const char *name)
{
    return bsearch(&name, internal->links, count, sizeof(*internal->links), text_compare_strings);
}

static errint_t
add_lost_name(struct listing_private *internal, const char *name, bool through_link)
{
    const struct lost_name lost = {name, through_link};

    return array_add(internal->lost, internal->lost_count, lost) ? 0 : -ENOMEM;
}

static errint_t
add_broken_links(const struct scan *scan, struct listing_private *internal)
{
    const struct local_links *locals = &internal->locals;
    const struct remote_names *remotes = &scan->remotes;
    errint_t error = 0;

    for (size_t i = 0; !error && i < locals->count; i++)
        if (!locals->all[i].target)
            error = add_lost_name(internal, locals->all[i].name, true);
    for (size_t i = 0; !error && i < remotes->count; i++)
        if (remotes->all[i].is_unusable && !scanned_kind_is_known(remotes->all[i].kind))
            error = add_lost_name(internal, remotes->all[i].name, true);
    return error;
}

/* Adds those of the broken links that have the name of an index. All of them get the same error: a
 * user's link that leads to nothing must not differ from one that is not followed. */
static errint_t
add_broken_indexes(struct listing_private *internal)
{
    for (size_t i = 0; i < internal->lost_count; i++) {
        const struct group_index listed = {
            .file = internal->lost[i].name, .error = -EIO, .is_checked_as_link = true};

        if (group_index_name(listed.file, NULL) &&
            !array_add(internal->indexes, internal->index_count, listed))
            return -ENOMEM;
    }
    return 0;
}

/* Whether it is unknown what the name leads to. */
static bool
is_unknown(const struct scan *scan, const struct local_links *locals, const char *name)
{
    const struct local_link *local = local_links_find(locals, name);
    const struct remote_name *remote = local ? NULL : remote_names_find(&scan->remotes, name);

    return local ? !local->target : remote && remote->kind == SCANNED_UNKNOWN;
}

/* Sets *unknown to a malloc'ed array for group_files(), or leaves it NULL if there are no links. */
static errint_t
find_unknown(const struct scan *scan, const struct local_links *locals, const char *const *files,
             size_t count, bool **unknown)
{
    if (scan->remotes.count + locals->count == 0)
        return 0;
    *unknown = calloc(count + 1, sizeof(**unknown));
    if (!*unknown)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        (*unknown)[i] = is_unknown(scan, locals, files[i]);
    return 0;
}

/* Whether a broken link has the name of weights. A loader may try to open it, so the mount must not
 * offer other weights. */
static bool
has_lost_weights(const struct listing_private *internal)
{
    struct suffix suffix;
    char stem[256];

    for (size_t i = 0; i < internal->lost_count; i++) {
        const char *name = internal->lost[i].name;

        if (group_split_file_name(name, stem, &suffix) && !suffix.container->is_kept &&
            !group_is_name_of_other_format(name))
            return true;
    }
    return false;
}

static errint_t
group_listing(struct scan *scan, struct listing *listing, const struct listing *before,
              const char **files, size_t count)
{
    struct listing_private *internal = private_of(listing);
    errint_t error = add_broken_links(scan, internal);
    bool *unknown = NULL;

    if (!error)
        error = add_broken_indexes(internal);
    for (size_t i = 0; !error && i < count; i++) {
        const struct group_index listed = {.file = files[i]};

        if (!group_index_name(files[i], NULL))
            continue;
        if (array_add(internal->indexes, internal->index_count, listed))
            error = read_listed_index(scan, before, is_link(internal, scan->links, files[i]),
                                      &internal->indexes[internal->index_count - 1]);
        else
            error = -ENOMEM;
    }
    for (size_t i = 0; !error && i < internal->index_count; i++)
        if (internal->indexes[i].error == -EBADMSG)
            error = add_lost_name(internal, internal->indexes[i].file, false);
    if (!error)
        error = find_unknown(scan, &internal->locals, files, count, &unknown);
    if (!error)
        error = group_files(files, count, unknown, internal->indexes, internal->index_count,
                            !has_lost_weights(internal), scan->problems, &internal->grouping);
    free(unknown);
    for (size_t i = 0; i < internal->index_count; i++)
        release_index(scan->dir->catalog, &internal->indexes[i]);
    return error;
}

static int
compare_groups_by_name(const void *a, const void *b)
{
    return group_compare_names(a, b);
}

static bool
has_same_members(const struct group *a, const struct group *b)
{
    if (a->kind != b->kind || a->is_unchanged != b->is_unchanged ||
        a->member_count != b->member_count || a->missing_count != b->missing_count ||
        a->index_error != b->index_error || a->unfinished != b->unfinished ||
        !a->index != !b->index)
        return false;
    if (a->index && strcmp(a->index, b->index) != 0)
        return false;
    for (uint32_t i = 0; i < a->member_count; i++)
        if (strcmp(a->members[i], b->members[i]) != 0)
            return false;
    return true;
}

/* The group of a listing that has the name of `group` and is not shadowed; NULL: there is none. */
static const struct group *
find_first_group(const struct listing *listing, const struct group *group)
{
    const struct group *found = listing && listing->group_count
                                    ? bsearch(group, listing->groups, listing->group_count,
                                              sizeof(*group), compare_groups_by_name)
                                    : NULL;

    while (found && found > listing->groups && group_compare_names(found - 1, group) == 0)
        found--;
    return found && !found->shadowed ? found : NULL;
}

/* Takes the known checkpoints over from the previous listing. */
static errint_t
carry_states(struct group *groups, size_t count, const struct listing *before)
{
    for (size_t i = 0; i < count; i++) {
        struct group *group = &groups[i];
        const struct group *old = find_first_group(before, group);

        if (old && !group->shadowed && has_same_members(group, old))
            group->state = group_state_ref(old->state);
        else
            group->state = group_state_new();
        if (!group->state)
            return -ENOMEM;
    }
    return 0;
}

/* Sets group->lane, by the file systems that links among the group's files lead to. */
static void
set_group_lane(const struct remote_names *remotes, struct group *group)
{
    const struct remote_name *remote;

    for (uint32_t i = 0; i <= group->member_count && remotes->count; i++) {
        const char *name = i < group->member_count ? group->members[i] : group->index;

        remote = name ? remote_names_find(remotes, name) : NULL;
        if (remote && group->lane == 0)
            group->lane = remote->lane;
        else if (remote && group->lane != remote->lane)
            group->lane = hash64(&remote->lane, sizeof(remote->lane), group->lane);
    }
}

/* Moves the scanned names into a listing. */
static errint_t
fill_listing(struct scan *scan, struct listing *listing, const struct listing *before)
{
    struct listing_private *internal = private_of(listing);
    size_t file_count = scan->count - scan->directories, files = 0, directories = 0, links = 0;
    const char **names = malloc((file_count + 1) * sizeof(*names));
    errint_t error;

    internal->directories = malloc((scan->directories + 1) * sizeof(*internal->directories));
    internal->links = malloc((scan->links + 1) * sizeof(*internal->links));
    if (!names || !internal->directories || !internal->links) {
        free(names);
        return -ENOMEM;
    }
    internal->names = scan->names.data;
    scan->names = (struct buffer)BUFFER_INIT;
    internal->locals = scan->locals;
    scan->locals = (struct local_links){.text = BUFFER_INIT};
    for (size_t i = 0; i < scan->count; i++) {
        const char *name = internal->names + scan->entries[i].name;

        if (scan->entries[i].is_directory)
            internal->directories[directories++] = name;
        else
            names[files++] = name;
        if (scan->entries[i].is_link)
            internal->links[links++] = name;
    }
    qsort(internal->directories, directories, sizeof(*names), text_compare_strings);
    qsort(internal->links, links, sizeof(*names), text_compare_strings);
    qsort(names, files, sizeof(*names), text_compare_strings);
    error = group_listing(scan, listing, before, names, files);
    free(names);
    if (error)
        return error;
    remote_names_settle(&scan->remotes);
    internal->remotes = scan->remotes;
    listing->has_lanes = internal->remotes.count > 0;
    scan->remotes = (struct remote_names){.catalog = NULL};
    for (size_t i = 0; i < internal->grouping.group_count; i++)
        set_group_lane(&internal->remotes, &internal->grouping.groups[i]);
    listing->directories = internal->directories;
    listing->directory_count = (uint32_t)directories;
    listing->links = internal->links;
    listing->link_count = (uint32_t)links;
    listing->lost = internal->lost;
    listing->lost_count = (uint32_t)internal->lost_count;
    listing->files = internal->grouping.files;
    listing->file_count = (uint32_t)internal->grouping.file_count;
    listing->groups = internal->grouping.groups;
    listing->group_count = (uint32_t)internal->grouping.group_count;
    return carry_states(internal->grouping.groups, internal->grouping.group_count, before);
}

static errint_t
make_listing(struct source_dir *dir, const struct listing *before, struct listing **out)
{
    struct scan scan = {.dir = dir,
                        .names = BUFFER_INIT,
                        .locals = {.text = BUFFER_INIT},
                        .remotes = {.text = BUFFER_INIT},
                        .locals_before = before ? &private_of(before)->locals : NULL,
                        .remotes_before = before ? &private_of(before)->remotes : NULL};
    struct listing_private *internal = calloc(1, sizeof(*internal));
    struct listing *listing;
    errint_t error = -ENOMEM;

    if (!internal)
        return -ENOMEM;
    listing = &internal->listing;
    atomic_init(&listing->references, 1);
    listing->problems = scan.problems = problem_set_new(dir->catalog->problems, dir->path);
    if (listing->problems)
        error = scan_directory(&scan, &listing->directory);
    if (!error)
        error = fill_listing(&scan, listing, before);
    scan_free(&scan);
    if (error) {
        listing_unref(listing);
        return error;
    }
    internal->unsettled = scan.unsettled;
    internal->checked = monotonic_ms();
    atomic_fetch_add(&dir->catalog->listings, 1);
    *out = listing;
    return 0;
}

/* ---- the current listing ---- */

static bool
listing_is_current(struct source_dir *dir, const struct listing *listing)
{
    struct listing_private *internal = private_of(listing);
    struct file_identity identity;

    if (internal->unsettled || source_dir_stat(dir, &identity) != 0 ||
        !file_identity_equal(&identity, &listing->directory) ||
        !local_links_are_current(dir, &internal->locals, &internal->remotes.mounts))
        return false;
    for (size_t i = 0; i < internal->index_count; i++)
        if (!internal->indexes[i].is_checked_as_link &&
            (source_dir_file(dir, internal->indexes[i].file, &identity) != 0 ||
             !file_identity_equal(&identity, &internal->indexes[i].identity)))
            return false;
    return remote_names_are_current(dir, &internal->remotes);
}

static bool
listing_check_is_due(const struct source_dir *dir)
{
    uint64_t checked = private_of(dir->listing)->checked;

    return source_dir_is_older(dir, checked, CATALOG_CHECK_MS) ||
           checked <= atomic_load(&dir->listing_expired) || atomic_load(&dir->has_late_answer);
}

/* Stores the result of reading the directory: a listing, of which it takes the reference, or NULL
 * and the error. dir->lock is held. */
static void
publish_listing(struct source_dir *dir, struct listing *listing, errint_t error)
{
    struct listing *before = dir->listing;
    struct problem_set *problem = NULL;

    pthread_mutex_lock(&dir->catalog->lock);
    dir->listing = listing;
    if (error != dir->list_error) {
        problem = dir->list_problem;
        dir->list_problem = NULL;
    }
    dir->list_error = error;
    pthread_mutex_unlock(&dir->catalog->lock);
    listing_unref(before);
    problem_set_unref(problem);
}

void
source_dir_report_list_error(struct source_dir *dir, errint_t error)
{
    struct problem_set *problem = problem_set_new(dir->catalog->problems, dir->path);
    struct problem_set *unused = problem;

    problem_set_add(problem, NULL, "cannot be listed: %s: its files are not shown",
                    strerror(-error));
    pthread_mutex_lock(&dir->catalog->lock);
    if (dir->list_error == error) {
        unused = dir->list_problem;
        dir->list_problem = problem;
    }
    pthread_mutex_unlock(&dir->catalog->lock);
    problem_set_unref(unused);
}

struct listing *
source_dir_last_listing(struct source_dir *dir)
{
    struct listing *listing;

    pthread_mutex_lock(&dir->catalog->lock);
    listing = dir->listing ? listing_ref(dir->listing) : NULL;
    pthread_mutex_unlock(&dir->catalog->lock);
    return listing;
}

errint_t
source_dir_listing(struct source_dir *dir, struct listing **out)
{
    struct listing *listing = NULL;
    errint_t error = 0;

    pthread_mutex_lock(&dir->lock);
    if (dir->listing && listing_check_is_due(dir)) {
        if (!atomic_exchange(&dir->has_late_answer, false) &&
            listing_is_current(dir, dir->listing)) {
            private_of(dir->listing)->checked = monotonic_ms();
        } else {
            source_dir_expire(dir); /* the name of a shard may refer to another file now */
            error = make_listing(dir, dir->listing, &listing);
        }
    } else if (!dir->listing) {
        error = make_listing(dir, NULL, &listing);
    }
    if (listing || error)
        publish_listing(dir, listing, error);
    if (!error) {
        *out = listing_ref(dir->listing);
    }
    pthread_mutex_unlock(&dir->lock);
    return error;
}
