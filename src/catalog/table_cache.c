/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/table_cache.h"

#include "base/text.h"
#include "base/version.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

void
table_cache_init(struct table_cache *cache, struct header_budget *budget)
{
    cache->budget = budget;
    pthread_mutex_init(&cache->lock, NULL);
    pthread_cond_init(&cache->loaded, NULL);
}

void
table_cache_destroy(struct table_cache *cache)
{
    pthread_cond_destroy(&cache->loaded);
    pthread_mutex_destroy(&cache->lock);
}

/* ---- entries ---- */

static struct kept_table **
table_bucket(struct table_cache *cache, const struct backing *backing)
{
    return &cache->buckets[(backing->identity.inode ^ backing->identity.device) % TABLE_BUCKETS];
}

/* Returns the entry of this version and container; inserts `fresh` if there is none. Skips entries
 * with a stale backing: the file may have changed although its identity did not. */
static struct kept_table *
find_or_add_locked(struct table_cache *cache, struct backing *backing,
                   const struct container *container, struct kept_table *fresh)
{
    struct kept_table **bucket = table_bucket(cache, backing), *kept = *bucket;

    while (kept && (kept->container != container || !version_is_current(kept->backing) ||
                    !file_identity_same_content(&kept->backing->identity, &backing->identity)))
        kept = kept->next;
    if (!kept) {
        *fresh = (struct kept_table){.next = *bucket,
                                     .backing = backing_ref(backing),
                                     .container = container,
                                     .loading = true,
                                     .listed = true};
        *bucket = kept = fresh;
    }
    return kept;
}

static void
unlist_locked(struct table_cache *cache, struct kept_table *kept)
{
    struct kept_table **link = table_bucket(cache, kept->backing);

    if (!kept->listed)
        return;
    while (*link != kept)
        link = &(*link)->next;
    *link = kept->next;
    kept->listed = false;
}

void
table_cache_forget(struct table_cache *cache, struct kept_table *kept)
{
    pthread_mutex_lock(&cache->lock);
    unlist_locked(cache, kept);
    pthread_mutex_unlock(&cache->lock);
}

static uint64_t
by_name_bytes(const struct st_table *table)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the table was loaded */
    return (uint64_t)table->count * sizeof(struct tensor_ref);
}

void
table_cache_unref(struct table_cache *cache, struct kept_table *kept)
{
    uint64_t bytes = 0;

    if (!kept)
        return;
    pthread_mutex_lock(&cache->lock);
    if (--kept->references > 0) {
        pthread_mutex_unlock(&cache->lock);
        return;
    }
    unlist_locked(cache, kept);
    if (kept->table)
        bytes = kept->table->bytes;
    cache->bytes -= bytes;
    pthread_mutex_unlock(&cache->lock);
    if (kept->by_name)
        bytes += by_name_bytes(kept->table);
    free(kept->by_name);
    layout_unref(kept->layout);
    st_table_free(kept->table);
    backing_unref(kept->backing);
    free(kept);
    header_budget_give(cache->budget, bytes);
}

/* ---- layouts ---- */

/* Compares tensor_refs by the names of their tensors in the table `arg`. */
static int
compare_refs_by_name(const void *a, const void *b, void *arg)
{
    const struct tensor_ref *x = a, *y = b;
    const struct st_table *table = arg;
    const struct st_tensor *left = &table->tensors[x->tensor], *right = &table->tensors[y->tensor];

    return text_compare(table->text + left->name, left->name_length, table->text + right->name,
                        right->name_length);
}

static void
layout_give_charge(void *budget, uint64_t bytes)
{
    header_budget_give(budget, bytes);
}

struct layout *
layout_of_table(const struct st_table *table, struct header_budget *budget)
{
    struct tensor_ref *order; /* its `shard` is the index of the piece */
    struct layout *layout;
    uint32_t count = 0;
    uint64_t end = 0;

    /* Tensors that overlap, because they share a storage, are one piece. */
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        count += tensor->begin != tensor->end && tensor->begin >= end;
        end = tensor->end > end ? tensor->end : end;
    }
    order = malloc((count + 1) * sizeof(*order));
    layout = count ? layout_new(count) : NULL;
    if (!layout || !order) {
        layout_unref(layout);
        free(order);
        return NULL;
    }
    layout->charge = (struct charge){layout_give_charge, budget,
                                     sizeof(struct layout) + count * sizeof(struct piece)};
    count = 0;
    end = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        if (tensor->begin == tensor->end)
            continue;
        if (tensor->begin >= end) {
            layout->pieces[count].start = table->data_start + tensor->begin;
            order[count] = (struct tensor_ref){count, i};
            count++;
        }
        end = tensor->end > end ? tensor->end : end;
        layout->pieces[count - 1].end = table->data_start + end;
    }
    qsort_r(order, count, sizeof(*order), compare_refs_by_name, (void *)(uintptr_t)table);
    for (uint32_t i = 0; i < count; i++)
        layout->pieces[order[i].shard].next = i + 1 < count ? order[i + 1].shard : count;
    free(order);
    return layout;
}

/* ---- reading ---- */

/* Bytes that are charged for a table in addition to those that its reader requests. */
enum { TABLE_LEAST_CHARGE = 1024 };

/* The memory that a reader has been granted. Only its last charge is transient, since the owner of
 * a transient charge must not take another (header_budget.h). */
struct admission {
    struct header_budget *budget;
    uint64_t settled, transient; /* bytes */
};

static errint_t
admit_memory(void *arg, uint64_t reading, struct reason *reason)
{
    struct admission *admission = arg;
    uint64_t bytes = reading + TABLE_LEAST_CHARGE;
    struct header_budget_counters now;

    if (admission->transient)
        header_budget_settle(admission->budget, admission->transient, admission->transient);
    admission->settled += admission->transient;
    admission->transient = 0;
    if (header_budget_take(admission->budget, bytes) == 0) {
        admission->transient = bytes;
        return 0;
    }
    header_budget_count(admission->budget, &now);
    return reason_set(reason, -ENOBUFS, "NoMemoryForHeaders",
                      "its header needs about %" PRIu64 " bytes of memory, %" PRIu64 " of %" PRIu64
                      " bytes are in use%s",
                      admission->settled + bytes, now.used, now.limit, now.advice);
}

/* Returns the granted memory to the budget, except for the `kept` bytes that are in use. */
static void
settle_admission(struct admission *admission, uint64_t kept)
{
    uint64_t of_last = kept < admission->transient ? kept : admission->transient;

    header_budget_settle(admission->budget, admission->transient, of_last);
    header_budget_give(admission->budget, admission->settled - (kept - of_last));
}

/* Reads the table and makes its layout. The memory of both stays charged. */
static errint_t
read_table_charged(struct table_cache *cache, int fd, struct kept_table *kept)
{
    struct admission admission = {cache->budget, 0, 0};
    errint_t error = kept->container->read(fd, kept->backing->identity.size, admit_memory,
                                           &admission, &kept->table, &kept->reason);
    uint64_t bytes = 0;

    if (!error) {
        kept->layout = layout_of_table(kept->table, cache->budget);
        bytes = kept->table->bytes + (kept->layout ? kept->layout->charge.bytes : 0);
    }
    settle_admission(&admission, bytes);
    return error;
}

static void
load_table(struct table_cache *cache, int fd, struct kept_table *kept)
{
    errint_t error = read_table_charged(cache, fd, kept);

    pthread_mutex_lock(&cache->lock);
    kept->error = error;
    kept->loading = false;
    if (error)
        unlist_locked(cache, kept);
    else
        cache->bytes += kept->table->bytes;
    pthread_cond_broadcast(&cache->loaded);
    pthread_mutex_unlock(&cache->lock);
}

/* Returns a reference to the table of this version; `fresh`: it is not cached, and the caller loads
 * it. */
static struct kept_table *
join_or_add(struct table_cache *cache, struct backing *backing, const struct container *container,
            struct kept_table *fresh)
{
    for (;;) {
        struct kept_table *kept;

        pthread_mutex_lock(&cache->lock);
        kept = find_or_add_locked(cache, backing, container, fresh);
        kept->references++;
        while (kept != fresh && kept->loading)
            pthread_cond_wait(&cache->loaded, &cache->lock);
        pthread_mutex_unlock(&cache->lock);
        if (kept == fresh || version_is_current(kept->backing))
            return kept;
        table_cache_unref(cache, kept); /* its backing became stale while it was read */
    }
}

errint_t
table_cache_read(struct table_cache *cache, int fd, struct backing *backing,
                 const struct container *container, struct kept_table **out, struct reason *reason)
{
    struct kept_table *fresh = malloc(sizeof(*fresh)), *kept;
    errint_t error;

    if (!fresh)
        return reason_no_memory(reason);
    kept = join_or_add(cache, backing, container, fresh);
    if (kept == fresh)
        load_table(cache, fd, kept);
    else
        free(fresh);
    error = kept->error;
    if (!error) {
        *out = kept;
        return 0;
    }
    *reason = kept->reason;
    table_cache_unref(cache, kept);
    return error;
}

/* ---- tensors by name ---- */

/* Returns the tensors sorted by name; charges their memory. NULL: out of memory. */
static struct tensor_ref *
sort_table(struct header_budget *budget, struct st_table *table)
{
    uint64_t bytes = by_name_bytes(table), sorting = 2 * bytes + sizeof(struct tensor_ref);
    struct tensor_ref *refs;

    if (header_budget_take(budget, sorting) != 0)
        return NULL;
    refs = malloc((table->count + 1) * sizeof(*refs));
    for (uint32_t i = 0; refs && i < table->count; i++)
        refs[i] = (struct tensor_ref){0, i};
    if (refs)
        qsort_r(refs, table->count, sizeof(*refs), compare_refs_by_name, table);
    header_budget_settle(budget, sorting, refs ? bytes : 0);
    return refs;
}

const struct tensor_ref *
table_cache_by_name(struct table_cache *cache, struct kept_table *kept)
{
    const struct tensor_ref *by_name;
    struct tensor_ref *fresh;

    pthread_mutex_lock(&cache->lock);
    by_name = kept->by_name;
    pthread_mutex_unlock(&cache->lock);
    if (by_name)
        return by_name;
    fresh = sort_table(cache->budget, kept->table); /* without the lock: it may wait for memory */
    pthread_mutex_lock(&cache->lock);
    if (!kept->by_name) {
        kept->by_name = fresh;
        fresh = NULL;
    }
    by_name = kept->by_name;
    pthread_mutex_unlock(&cache->lock);
    if (fresh) /* another thread has sorted it, too */
        header_budget_give(cache->budget, by_name_bytes(kept->table));
    free(fresh);
    return by_name;
}
