/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads checkpoints on the query pool if their files are links to other file systems, which may
 * hang.
 */
#include "base/text.h"
#include "catalog/group.h"
#include "catalog/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct group_query {
    struct query query; /* first */
    struct source_dir *dir; /* counted; released when the query ends */
    struct group group; /* a copy: its strings follow; its state is counted */
};

static struct group_query *
group_query_of(struct query *query)
{
    return (struct group_query *)query;
}

static uint64_t
run_group_query(struct query *base)
{
    struct group_query *query = group_query_of(base);
    struct checkpoint *checkpoint;

    if (group_checkpoint(query->dir, &query->group, &checkpoint) == 0)
        checkpoint_unref(checkpoint);
    return 0;
}

static void
end_group_query(struct query *base, bool is_late)
{
    struct group_query *query = group_query_of(base);
    struct group_state *state = query->group.state;
    struct query *held;

    if (is_late)
        atomic_store(&query->dir->has_late_answer, true);
    pthread_mutex_lock(&state->known_lock);
    held = state->query;
    state->query = NULL;
    pthread_mutex_unlock(&state->known_lock);
    query_unref(query->dir->catalog->queries, held);
    group_state_unref(state);
    source_dir_unref(query->dir);
}

static void
free_group_query(struct query *base)
{
    free(base);
}

static const struct query_kind group_query_kind = {run_group_query, end_group_query,
                                                   free_group_query};

/* ---- copies of groups ---- */

static size_t
string_bytes(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

/* The strings of the group are copied into the same block. */
static struct group_query *
group_query_new(struct source_dir *dir, const struct group *group)
{
    size_t bytes =
               string_bytes(group->stem) + string_bytes(group->suffix) + string_bytes(group->index),
           pointers = group->member_count * sizeof(char *);
    struct group_query *query;
    const char **members;
    char *text;

    for (uint32_t i = 0; i < group->member_count; i++)
        bytes += string_bytes(group->members[i]);
    query = calloc(1, sizeof(*query) + pointers + bytes);
    if (!query)
        return NULL;
    members = (const char **)(query + 1);
    text = (char *)(query + 1) + pointers;
    query->query.kind = &group_query_kind;
    query->dir = source_dir_ref(dir);
    query->group = *group;
    query->group.state = group_state_ref(group->state);
    query->group.stem = text_copy(&text, group->stem);
    query->group.suffix = text_copy(&text, group->suffix);
    query->group.index = text_copy(&text, group->index);
    for (uint32_t i = 0; i < group->member_count; i++)
        members[i] = text_copy(&text, group->members[i]);
    query->group.members = members;
    query->group.query = &query->query;
    return query;
}

/* ---- asking ---- */

/* Frees a query that was not queued. NULL is allowed. */
static void
discard_group_query(struct group_query *query)
{
    if (!query)
        return;
    group_state_unref(query->group.state);
    source_dir_unref(query->dir);
    free(query);
}

/* Returns the query that loads or checks the group's checkpoint, with a reference; NULL: there is
 * no need, or no memory. */
static struct query *
ask_group(struct source_dir *dir, const struct group *group)
{
    struct query_pool *pool = dir->catalog->queries;
    struct group_state *state = group->state;
    struct group_query *made;
    struct query *query;

    if (group_state_is_fresh(dir, state))
        return NULL;
    /* Takes and releases a reference of the directory, and so catalog->lock, without known_lock:
     * group_state_take_idle() takes known_lock with catalog->lock held. */
    made = group_query_new(dir, group);
    pthread_mutex_lock(&state->known_lock);
    if (!state->query && made && query_pool_ask(pool, &made->query, group->lane, dir) == 0) {
        state->query = &made->query;
        made = NULL;
    }
    query = state->query;
    if (query)
        query_ref(pool, query);
    pthread_mutex_unlock(&state->known_lock);
    discard_group_query(made);
    return query;
}

static void
report_unanswered_group(const struct listing *listing, const struct group *group)
{
    problem_set_add(listing->problems, group_file(group),
                    "the storage that the link leads to does not answer: the checkpoint's files "
                    "are listed as before, or left out");
}

/* Waits for the queries, of which `groups` are the groups of the listing, and removes groups
 * without an answer from `wanted`. Drops the references. */
static void
take_answers(struct query_pool *pool, const struct listing *listing, struct query *const *queries,
             const uint32_t *groups, size_t count, bool *wanted)
{
    if (count)
        query_pool_wait(pool, queries, count);
    for (size_t i = 0; i < count; i++) {
        if (!query_is_answered(queries[i])) {
            report_unanswered_group(listing, &listing->groups[groups[i]]);
            if (wanted)
                wanted[groups[i]] = false;
        }
        query_unref(pool, queries[i]);
    }
}

void
groups_load(struct source_dir *dir, const struct listing *listing, bool *wanted)
{
    struct query **queries;
    uint32_t *groups;
    size_t count = 0;

    if (!listing->has_lanes)
        return;
    queries = malloc((listing->group_count + 1) * sizeof(struct query *));
    groups = malloc((listing->group_count + 1) * sizeof(*groups));
    for (uint32_t i = 0; queries && groups && i < listing->group_count; i++) {
        if (!listing->groups[i].lane || (wanted && !wanted[i]))
            continue;
        groups[count] = i;
        queries[count] = ask_group(dir, &listing->groups[i]);
        count += queries[count] != NULL;
    }
    take_answers(dir->catalog->queries, listing, queries, groups, count, wanted);
    free(queries);
    free(groups);
}

errint_t
group_current_or_known(struct source_dir *dir, const struct group *group,
                       struct checkpoint **checkpoint)
{
    struct query *query;

    if (!group->lane)
        return group_checkpoint(dir, group, checkpoint);
    query = ask_group(dir, group);
    if (query)
        query_pool_wait(dir->catalog->queries, &query, 1);
    query_unref(dir->catalog->queries, query);
    return group_known_checkpoint(group, checkpoint);
}
