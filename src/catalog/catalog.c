/* SPDX-License-Identifier: Apache-2.0 */
/* The catalog: creation and destruction, reclaiming of memory, the table of directories, and their
 * problems. */
#include "catalog/catalog.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "catalog/private.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Removes and returns a checkpoint of the directory that has no other references. NULL: there is
 * none. Does not wait. */
static struct checkpoint *
take_idle_checkpoint(struct source_dir *dir)
{
    struct checkpoint *checkpoint = NULL;

    if (pthread_mutex_trylock(&dir->lock) != 0)
        return NULL;
    for (uint32_t i = 0; dir->listing && !checkpoint && i < dir->listing->group_count; i++)
        checkpoint = group_state_take_idle(dir->listing->groups[i].state);
    pthread_mutex_unlock(&dir->lock);
    return checkpoint;
}

/*
 * Frees the kept index, or else one checkpoint that has no other references. Returns false if there
 * is neither. The caller may hold locks of directories and checkpoints, so these are only taken by
 * trylock.
 */
static bool
reclaim_headers(void *arg)
{
    struct catalog *catalog = arg;
    struct checkpoint *checkpoint = NULL;

    if (catalog_drop_index(catalog))
        return true;
    pthread_mutex_lock(&catalog->lock);
    for (size_t i = 0; !checkpoint && i < DIRECTORY_BUCKETS; i++) {
        struct source_dir *dir = catalog->directories[catalog->reclaim_bucket];

        for (; dir && !checkpoint; dir = dir->next)
            checkpoint = take_idle_checkpoint(dir);
        if (!checkpoint)
            catalog->reclaim_bucket = (catalog->reclaim_bucket + 1) % DIRECTORY_BUCKETS;
    }
    pthread_mutex_unlock(&catalog->lock);
    checkpoint_unref(checkpoint);
    return checkpoint != NULL;
}

struct header_budget *
catalog_budget(struct catalog *catalog)
{
    return catalog ? &catalog->budget : NULL;
}

errint_t
catalog_new(const struct catalog_options *options, struct catalog **out)
{
    struct catalog *catalog = calloc(1, sizeof(*catalog));
    errint_t error = -ENOMEM;
    char *source;

    if (!catalog)
        return -ENOMEM;
    catalog->root_fd = -1;
    catalog->derived_free = options->derived_free;
    pthread_mutex_init(&catalog->lock, NULL);
    header_budget_init(&catalog->budget,
                       options->header_memory > HEADER_BUDGET_LEAST ? options->header_memory
                                                                    : HEADER_BUDGET_LEAST,
                       reclaim_headers, catalog);
    catalog->budget.advice = options->header_memory_advice;
    table_cache_init(&catalog->tables, &catalog->budget);
    catalog->problems = problems_new(&options->problems);
    if (!catalog->problems)
        goto fail;
    source = realpath(options->source, NULL);
    error = source ? renewal_path_init(&catalog->source, source) : -errno;
    free(source);
    if (error)
        goto fail;
    catalog->root_fd = open(catalog->source.path,
                            (options->path_only ? O_PATH : O_RDONLY) | O_DIRECTORY | O_CLOEXEC);
    if (catalog->root_fd < 0) {
        error = -errno;
        goto fail;
    }
    error = -ENOMEM;
    if (options->skip_hung && !(catalog->queries = query_pool_new()))
        goto fail;
    atomic_store(&catalog->root_checked, monotonic_ms());
    *out = catalog;
    return 0;

fail:
    catalog_free(catalog);
    return error;
}

bool
catalog_stop_queries(struct catalog *catalog)
{
    return !catalog || query_pool_stop(catalog->queries);
}

struct query_pool *
catalog_query_pool(const struct catalog *catalog)
{
    return catalog->queries;
}

void
catalog_free(struct catalog *catalog)
{
    if (!catalog)
        return;
    (void)catalog_stop_queries(catalog);
    query_pool_free(catalog->queries);
    if (catalog->root_fd >= 0)
        close(catalog->root_fd);
    problems_free(catalog->problems);
    st_index_free(catalog->kept_index);
    table_cache_destroy(&catalog->tables);
    header_budget_destroy(&catalog->budget);
    pthread_mutex_destroy(&catalog->lock);
    renewal_path_free(&catalog->source);
    free(catalog);
}

const char *
catalog_source(const struct catalog *catalog)
{
    return catalog->source.path;
}

const struct renewal_path *
catalog_source_path(const struct catalog *catalog)
{
    return &catalog->source;
}

int
catalog_source_fd(const struct catalog *catalog)
{
    return catalog->root_fd;
}

errint_t
catalog_statvfs(struct catalog *catalog, struct statvfs *out)
{
    return fstatvfs(catalog->root_fd, out) < 0 ? -errno : 0;
}

void
catalog_counters(struct catalog *catalog, struct catalog_counters *counters)
{
    counters->listings = atomic_load(&catalog->listings);
    counters->headers = atomic_load(&catalog->headers);
    counters->header_bytes = atomic_load(&catalog->header_bytes);
    counters->tensors = atomic_load(&catalog->tensors);
    counters->checkpoints = atomic_load(&catalog->checkpoints);
    pthread_mutex_lock(&catalog->tables.lock);
    counters->table_bytes = catalog->tables.bytes;
    pthread_mutex_unlock(&catalog->tables.lock);
    header_budget_count(&catalog->budget, &counters->budget);
}

/* ---- directories ---- */

static size_t
directory_bucket(const char *path, size_t length)
{
    return hash64(path, length, 0) % DIRECTORY_BUCKETS;
}

/* NULL: there is none. The lock is held. */
static struct source_dir *
directory_find(struct catalog *catalog, const char *path, size_t length)
{
    struct source_dir *dir = catalog->directories[directory_bucket(path, length)];

    while (dir && (strncmp(dir->path, path, length) != 0 || dir->path[length]))
        dir = dir->next;
    return dir;
}

static struct source_dir *
directory_ref(struct catalog *catalog, const char *path)
{
    size_t length = strlen(path);
    struct source_dir **bucket = &catalog->directories[directory_bucket(path, length)], *dir;

    pthread_mutex_lock(&catalog->lock);
    dir = directory_find(catalog, path, length);
    if (dir) {
        dir->references++;
    } else if ((dir = calloc(1, sizeof(*dir) + length + 1))) {
        dir->catalog = catalog;
        dir->references = 1;
        pthread_mutex_init(&dir->lock, NULL);
        strcpy(dir->path, path);
        dir->next = *bucket;
        *bucket = dir;
    }
    pthread_mutex_unlock(&catalog->lock);
    return dir;
}

struct source_dir *
catalog_root(struct catalog *catalog)
{
    return directory_ref(catalog, "");
}

struct source_dir *
source_dir_child(struct source_dir *dir, const char *name)
{
    char *path = path_join(dir->path, name);
    struct source_dir *child = path ? directory_ref(dir->catalog, path) : NULL;

    free(path);
    return child;
}

void
source_dir_unref(struct source_dir *dir)
{
    struct catalog *catalog;
    struct source_dir **link;

    if (!dir)
        return;
    catalog = dir->catalog;
    pthread_mutex_lock(&catalog->lock);
    if (--dir->references > 0) {
        pthread_mutex_unlock(&catalog->lock);
        return;
    }
    link = &catalog->directories[directory_bucket(dir->path, strlen(dir->path))];
    while (*link != dir)
        link = &(*link)->next;
    *link = dir->next;
    pthread_mutex_unlock(&catalog->lock);
    listing_unref(dir->listing);
    problem_set_unref(dir->list_problem);
    pthread_mutex_destroy(&dir->lock);
    free(dir);
}

/* ---- problems ---- */

/* References to the listings and sets from which the problems of the source are collected. */
struct problem_sources {
    struct listing **listings;
    size_t listing_count;
    struct problem_set **sets;
    size_t set_count;
};

static bool
listing_has_directory(const struct listing *listing, const char *name, size_t length)
{
    char copy[NAME_MAX + 1];
    const char *key = copy;

    if (length >= sizeof(copy))
        return false;
    memcpy(copy, name, length);
    copy[length] = '\0';
    return listing->directory_count &&
           bsearch(&key, listing->directories, listing->directory_count,
                   sizeof(*listing->directories), text_compare_strings) != NULL;
}

/* Returns false if a directory above `path` could not be listed, or its listing lacks the next
 * component. Directories without a listing in memory are not checked. The lock is held. */
static bool
directory_is_listed(struct catalog *catalog, const char *path)
{
    const char *name = path, *end;

    for (; *name; name = *end ? end + 1 : end) {
        size_t above = name > path ? (size_t)(name - path) - 1 : 0;
        const struct source_dir *dir = directory_find(catalog, path, above);

        end = strchrnul(name, '/');
        if (dir &&
            (dir->list_error ||
             (dir->listing && !listing_has_directory(dir->listing, name, (size_t)(end - name)))))
            return false;
    }
    return true;
}

/* Takes ownership of the reference; NULL is allowed. Drops a set without problems; most have none.
 */
static void
add_problem_set(struct problem_sources *sources, struct problem_set *set)
{
    if (problem_set_count(set) == 0 || !array_add(sources->sets, sources->set_count, set))
        problem_set_unref(set);
}

static void
drop_unlisted_directories(struct catalog *catalog, struct problem_sources *sources)
{
    size_t kept = 0;

    pthread_mutex_lock(&catalog->lock);
    for (size_t i = 0; i < sources->set_count; i++) {
        struct problem_set *set = sources->sets[i];

        if (!directory_is_listed(catalog, problem_set_directory(set)))
            continue;
        sources->sets[i] = sources->sets[kept];
        sources->sets[kept++] = set;
    }
    pthread_mutex_unlock(&catalog->lock);
    while (sources->set_count > kept)
        problem_set_unref(sources->sets[--sources->set_count]);
}

/* Leaves out listings and sets if memory is short. */
static void
problem_sources_collect(struct catalog *catalog, struct problem_sources *sources)
{
    pthread_mutex_lock(&catalog->lock);
    for (size_t i = 0; i < DIRECTORY_BUCKETS; i++)
        for (struct source_dir *dir = catalog->directories[i]; dir; dir = dir->next) {
            add_problem_set(sources, problem_set_ref(dir->list_problem));
            if (dir->listing && array_add(sources->listings, sources->listing_count, dir->listing))
                listing_ref(dir->listing);
        }
    pthread_mutex_unlock(&catalog->lock);
    for (size_t i = 0; i < sources->listing_count; i++) {
        const struct listing *listing = sources->listings[i];

        add_problem_set(sources, problem_set_ref(listing->problems));
        for (uint32_t k = 0; k < listing->group_count; k++)
            add_problem_set(sources, group_state_problems(listing->groups[k].state));
    }
    drop_unlisted_directories(catalog, sources);
}

static void
problem_sources_free(struct problem_sources *sources)
{
    for (size_t i = 0; i < sources->set_count; i++)
        problem_set_unref(sources->sets[i]);
    for (size_t i = 0; i < sources->listing_count; i++)
        listing_unref(sources->listings[i]);
    free(sources->sets);
    free(sources->listings);
}

void
catalog_write_problems(struct catalog *catalog, struct buffer *out)
{
    struct problem_sources sources = {0};

    problem_sources_collect(catalog, &sources);
    problems_write(catalog->problems, sources.sets, sources.set_count, out);
    problem_sources_free(&sources);
}

size_t
catalog_count_problems(struct catalog *catalog)
{
    struct problem_sources sources = {0};
    size_t count = 0;

    problem_sources_collect(catalog, &sources);
    for (size_t i = 0; i < sources.set_count; i++)
        count += problem_set_count(sources.sets[i]);
    problem_sources_free(&sources);
    return count;
}
