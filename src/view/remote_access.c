/* SPDX-License-Identifier: Apache-2.0 */
#include "view/remote_access.h"

#include "catalog/query_pool.h"
#include "view/access.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- a check on the query pool ---- */

struct access_query {
    struct query query; /* first */
    struct view *view;
    struct caller caller;
    struct checkpoint *checkpoint; /* counted; released when the query ends */
    errint_t result;
};

static struct access_query *
access_query_of(struct query *query)
{
    return (struct access_query *)query;
}

static void
report_progress(void *arg)
{
    struct access_query *query = arg;

    query_pool_progress(catalog_query_pool(query->view->catalog), &query->query);
}

static uint64_t
run_access_query(struct query *base)
{
    struct access_query *query = access_query_of(base);

    query->result = access_shards_slowly(query->view, &query->caller, query->checkpoint,
                                         report_progress, query);
    return 0;
}

static void
end_access_query(struct query *base, bool is_late)
{
    (void)is_late;
    checkpoint_unref(access_query_of(base)->checkpoint);
}

static void
free_access_query(struct query *base)
{
    free(base);
}

static const struct query_kind access_query_kind = {run_access_query, end_access_query,
                                                    free_access_query};

/* Returns the query with a reference; NULL: out of memory, or the pool is stopped. */
static struct query *
ask_access(struct view *view, const struct caller *caller, struct node *node, uint64_t lane,
           struct checkpoint *checkpoint)
{
    struct access_query *query = calloc(1, sizeof(*query));

    if (!query)
        return NULL;
    query->query.kind = &access_query_kind;
    query->view = view;
    query->caller = *caller;
    query->checkpoint = checkpoint_ref(checkpoint);
    if (query_pool_ask(catalog_query_pool(view->catalog), &query->query, lane, node->dir) == 0)
        return &query->query;
    checkpoint_unref(checkpoint);
    free(query);
    return NULL;
}

/* ---- entries ---- */

struct remote_entry {
    struct checkpoint *checkpoint; /* counted; NULL: the entry has no lane, or `error` */
    errint_t error;
    struct query *access; /* counted; NULL: was not asked */
    bool needs_access;
};

struct remote_entries {
    struct query_pool *pool;
    size_t count;
    struct remote_entry entries[];
};

/* Returns, for each group of the listing, whether one of the entries belongs to it and its
 * storage has answered; malloc'ed. NULL: out of memory. */
static bool *
load_groups(struct node *node, const struct dir_listing *listing, const uint32_t *which,
            size_t count)
{
    bool *answered = calloc(listing->listing->group_count + 1, sizeof(*answered));

    if (!answered)
        return NULL;
    for (size_t i = 0; i < count; i++)
        answered[listing->entries[which[i]].group] = true;
    groups_load(node->dir, listing->listing, answered);
    return answered;
}

/* `answered`: the result of load_groups(). No check is queued for an entry whose group has not been
 * answered, because the listing would wait for its storage a second time. */
static void
ask_entry(struct view *view, const struct caller *caller, struct node *node,
          const struct dir_listing *listing, const struct dir_entry *entry, const bool *answered,
          struct remote_entry *remote)
{
    uint64_t lane = dir_entry_lane(listing, entry);
    const struct group *group;

    if (!lane)
        return;
    group = dir_entry_group(listing, entry);
    remote->error = group_known_checkpoint(group, &remote->checkpoint);
    if (remote->error)
        return;
    remote->needs_access =
        view->options.check && entry->kind != ENTRY_TENSORS &&
        access_depends_on_content(remote->checkpoint, dir_entry_made_kind(entry));
    if (!remote->needs_access || !answered[entry->group])
        return;
    remote->access = ask_access(view, caller, node, lane, remote->checkpoint);
    if (!remote->access)
        remote->error = -ENOMEM;
}

static bool
wait_for_answers(const struct remote_entries *remote)
{
    struct query **asked = malloc((remote->count + 1) * sizeof(struct query *));
    size_t count = 0;

    if (!asked)
        return false;
    for (size_t i = 0; i < remote->count; i++)
        if (remote->entries[i].access)
            asked[count++] = remote->entries[i].access;
    if (count)
        query_pool_wait(remote->pool, asked, count);
    free(asked);
    return true;
}

struct remote_entries *
remote_entries_load(struct view *view, const struct caller *caller, struct node *node,
                    const struct dir_listing *listing, const uint32_t *which, size_t count)
{
    struct remote_entries *remote = calloc(1, sizeof(*remote) + count * sizeof(*remote->entries));
    bool *answered;

    if (!remote)
        return NULL;
    remote->pool = catalog_query_pool(view->catalog);
    remote->count = count;
    answered = load_groups(node, listing, which, count);
    for (size_t i = 0; answered && i < count; i++)
        ask_entry(view, caller, node, listing, &listing->entries[which[i]], answered,
                  &remote->entries[i]);
    if (!answered || !wait_for_answers(remote)) {
        remote_entries_free(remote);
        remote = NULL;
    }
    free(answered);
    return remote;
}

void
remote_entries_free(struct remote_entries *remote)
{
    if (!remote)
        return;
    for (size_t i = 0; i < remote->count; i++) {
        query_unref(remote->pool, remote->entries[i].access);
        checkpoint_unref(remote->entries[i].checkpoint);
    }
    free(remote);
}

errint_t
remote_entries_get(const struct remote_entries *remote, size_t at, struct checkpoint **checkpoint,
                   errint_t *permission)
{
    const struct remote_entry *entry = &remote->entries[at];

    *permission = 0;
    if (entry->error)
        return entry->error;
    *checkpoint = checkpoint_ref(entry->checkpoint);
    if (entry->access && query_is_answered(entry->access))
        *permission = access_query_of(entry->access)->result;
    else if (entry->needs_access)
        *permission = -EIO;
    return 0;
}
