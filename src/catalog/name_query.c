/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/name_query.h"

#include "base/open.h"
#include "catalog/group.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct name_query *
name_query_of(struct query *query)
{
    return (struct name_query *)query;
}

/* Opens the name with O_PATH. On -EREMOTE *next is the mount to be asked next. */
static int
open_queried_name(struct name_query *query, uint64_t *next)
{
    int directory = source_dir_open_path(query->dir), fd;

    if (directory < 0)
        return directory;
    fd = open_local(directory, query->name, &query->mounts, next);
    if (fd == -EREMOTE && query->mounts.count < RESOLVE_MOUNTS) {
        query->mounts.ids[query->mounts.count++] = *next;
    } else if (fd == -EREMOTE || fd == -ESTALE) { /* too many mounts; or as in open_at() */
        *next = 0;
        fd = open_at(directory, query->name, O_PATH | O_CLOEXEC);
    }
    close(directory);
    return fd;
}

static uint64_t
run_name_query(struct query *base)
{
    struct name_query *query = name_query_of(base);
    uint64_t next = 0;
    int fd = open_queried_name(query, &next);

    if (fd == -EREMOTE)
        return next;
    query->error = fd < 0 ? fd : file_identity_from_fd(&query->identity, fd);
    if (fd >= 0)
        close(fd);
    if (query->error || !S_ISREG(query->identity.mode) || !group_index_name(query->name, NULL) ||
        file_identity_equal(&query->identity, &query->known))
        return 0;
    query->is_index_read = true;
    query->index_error = source_dir_index(query->dir, query->name, &query->index,
                                          &query->index_identity, &query->reason);
    return 0;
}

static void
end_name_query(struct query *base, bool is_late)
{
    struct name_query *query = name_query_of(base);
    struct source_dir *dir = query->dir;

    if (is_late)
        atomic_store(&dir->has_late_answer, true);
    query->dir = NULL;
    source_dir_unref(dir);
}

static void
free_name_query(struct query *base)
{
    struct name_query *query = name_query_of(base);

    catalog_free_index(query->catalog, query->index);
    free(query);
}

static const struct query_kind name_query_kind = {run_name_query, end_name_query, free_name_query};

struct name_query *
name_query_ask(struct source_dir *dir, const char *name, const struct resolve_mounts *mounts,
               const struct file_identity *known)
{
    struct name_query *query = calloc(1, sizeof(*query) + strlen(name) + 1);

    if (!query)
        return NULL;
    query->query.kind = &name_query_kind;
    query->catalog = dir->catalog;
    query->dir = source_dir_ref(dir);
    query->mounts = *mounts;
    query->first_lane = name_query_lane(query);
    if (known)
        query->known = *known;
    strcpy(query->name, name);
    if (query_pool_ask(dir->catalog->queries, &query->query, name_query_lane(query), dir) == 0)
        return query;
    source_dir_unref(dir);
    free(query);
    return NULL;
}
