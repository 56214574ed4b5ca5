/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: the headers of their shards, read when first needed, in parallel,
 * and put together by name.
 */
#include "base/parallel.h"
#include "base/text.h"
#include "base/timestamp.h"
#include "base/version.h"
#include "catalog/catalog.h"
#include "catalog/private.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Headers read at the same time: enough to hide the latency of network storage. */
enum { READERS = 16 };
/* So many files are looked at one after another: threads would take longer. */
enum { FEW_SHARDS = 8 };

struct checkpoint_private {
    char *directory, *stem, *suffix;
    struct file_identity index; /* all zero: none */
    char *index_name;
    char *index_metadata; /* checkpoint->index_metadata */
    struct family *family; /* of its shards, and of those of the next version */
    struct tensor_ref *gathered; /* checkpoint->tensors, where they are its own */
    uint64_t charged; /* bytes, for them and for the index's metadata */
    bool no_room; /* to gather its tensors */
};

/* ---- shards ---- */

static struct shard *
shard_new(const char *name)
{
    struct shard *shard = calloc(1, sizeof(*shard) + strlen(name) + 1);

    if (!shard)
        return NULL;
    atomic_init(&shard->references, 1);
    shard->name = strcpy((char *)(shard + 1), name);
    return shard;
}

static void
shard_unref(struct catalog *catalog, struct shard *shard)
{
    if (!shard || atomic_fetch_sub(&shard->references, 1) > 1)
        return;
    backing_unref(shard->backing);
    table_cache_unref(&catalog->tables, shard->kept);
    free(shard->refusal);
    free(shard);
}

/* What version_open() or version_verify() said; -EAGAIN: the file has changed. */
static errint_t
version_reason(errint_t error, struct reason *reason)
{
    if (error == -ESTALE)
        return -EAGAIN;
    if (error == -ETXTBSY)
        return reason_set(reason, error, "IoError", "another process has it open for writing");
    return error ? reason_set(reason, error, "IoError", "stat: %s", strerror(-error)) : 0;
}

/* Reads the header of an open shard. -EAGAIN: it changed meanwhile. */
static errint_t
read_table(struct table_cache *tables, int fd, struct shard *shard, struct reason *reason)
{
    errint_t error = version_reason(version_open(shard->backing, fd), reason), changed;

    if (error)
        return error;
    error = table_cache_read(tables, fd, &shard->file.identity, &shard->kept, reason);
    changed = version_reason(version_verify(shard->backing, fd), reason);
    version_close(shard->backing);
    if (!changed)
        return error;
    if (shard->kept)
        table_cache_forget(tables, shard->kept);
    table_cache_unref(tables, shard->kept);
    shard->kept = NULL;
    return changed;
}

/* One look at the file: stat, open, header. -EAGAIN: it changed meanwhile. */
static errint_t
load_shard_once(struct source_dir *dir, struct shard *shard, struct reason *reason)
{
    errint_t error = source_dir_file(dir, shard->name, &shard->file);
    int fd;

    if (error)
        return reason_set(reason, error, "IoError", "%s", strerror(-error));
    backing_unref(shard->backing);
    shard->backing = source_dir_backing(dir, shard->name, &shard->file);
    if (!shard->backing)
        return -ENOMEM;
    fd = source_dir_open(dir, shard->name);
    if (fd < 0)
        return reason_set(reason, fd, "IoError", "open: %s", strerror(-fd));
    error = read_table(&dir->catalog->tables, fd, shard, reason);
    close(fd);
    return error;
}

/* NULL only for want of memory: what is wrong with the file is its refusal. */
static struct shard *
load_shard(struct source_dir *dir, const char *name, struct family *family)
{
    struct shard *shard = shard_new(name);
    struct reason reason = {"IoError", "it changes faster than it can be read"};
    errint_t error = -EAGAIN;

    if (!shard)
        return NULL;
    for (int tries = 0; error == -EAGAIN && tries < 5; tries++)
        error = load_shard_once(dir, shard, &reason);
    if (error == -ENOMEM)
        goto fail;
    if (error && asprintf(&shard->refusal, "%s: %s", reason.rule, reason.text) < 0) {
        shard->refusal = NULL;
        goto fail;
    }
    shard->error = error;
    shard->temporary = error && error != -EBADMSG;
    if (!error) {
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): 0 means that it is set */
        shard->table = shard->kept->table;
        shard->backing->layout = layout_ref(shard->kept->layout);
        shard->backing->family = family_ref(family);
        atomic_fetch_add(&dir->catalog->headers, 1);
        atomic_fetch_add(&dir->catalog->header_bytes, shard->table->data_start);
    }
    return shard;

fail:
    shard_unref(dir->catalog, shard);
    return NULL;
}

/* Whether the file is what it was when the shard was loaded, and its version has not ended: a
 * stale backing stays so, and reopening after recovery needs another. */
static bool
shard_holds(struct source_dir *dir, const struct shard *shard)
{
    struct source_file now;

    return source_dir_file(dir, shard->name, &now) == 0 &&
           file_identity_equal(&now.identity, &shard->file.identity) &&
           (!shard->backing || version_is_current(shard->backing));
}

/* ---- loading all shards ---- */

struct load {
    struct source_dir *dir;
    const struct group *group;
    const struct checkpoint *before;
    struct family *family; /* of the shards */
    struct shard **shards;
};

/* The shard of the version before, if its file is still the same. */
static struct shard *
reuse_shard(const struct load *load, const char *name)
{
    for (uint32_t i = 0; load->before && i < load->before->shard_count; i++) {
        struct shard *shard = load->before->shards[i];

        if (strcmp(shard->name, name) != 0 || shard->refusal)
            continue;
        if (!shard_holds(load->dir, shard)) {
            if (shard->kept)
                table_cache_forget(&load->dir->catalog->tables, shard->kept);
            return NULL;
        }
        atomic_fetch_add(&shard->references, 1);
        return shard;
    }
    return NULL;
}

static void
load_one(void *arg, size_t i)
{
    struct load *load = arg;
    const char *name = load->group->members[i];

    load->shards[i] = reuse_shard(load, name);
    if (!load->shards[i])
        load->shards[i] = load_shard(load->dir, name, load->family);
}

/* ---- putting together ---- */

/* A shard's name for a message. */
static char *
quoted_shard(char out[QUOTED_SIZE], const struct checkpoint *checkpoint, struct tensor_ref ref)
{
    const char *name = checkpoint->shards[ref.shard]->name;

    return quoted(out, name, strlen(name));
}

struct named_tensor {
    const char *name;
    uint32_t length;
    struct tensor_ref ref;
};

static int
compare_tensors(const void *a, const void *b)
{
    const struct named_tensor *x = a, *y = b;
    int order = text_compare(x->name, x->length, y->name, y->length);

    if (order)
        return order;
    return x->ref.shard < y->ref.shard ? -1 : x->ref.shard > y->ref.shard;
}

static void
say_unsound(struct checkpoint *checkpoint, const char *why)
{
    if (!checkpoint->unsound)
        checkpoint->unsound = why;
}

static void
count_dtypes(struct checkpoint *checkpoint, const struct shard *shard)
{
    const struct st_table *table = shard->table;
    const struct st_tensor *first = NULL;
    char name[QUOTED_SIZE], dtype[QUOTED_SIZE];
    uint32_t unknown = 0;

    for (uint32_t i = 0; i < table->count; i++) {
        if (table->tensors[i].dtype != DTYPE_UNKNOWN)
            continue;
        if (!first)
            first = &table->tensors[i];
        unknown++;
    }
    if (unknown)
        problem_set_add(checkpoint->problems, checkpoint->directory, shard->name,
                        "%u tensors of a dtype this fstfs does not know (the first is %s, %s): "
                        "served as bytes, and not in npy/",
                        unknown, quoted(name, table->text + first->name, first->name_length),
                        quoted(dtype, table->text + first->dtype_text, first->dtype_text_length));
}

/* Drops names that stand in more than one shard, says so, and gives how many
 * tensors are left. */
static size_t
drop_duplicates(struct checkpoint *checkpoint, struct named_tensor *all, size_t count)
{
    size_t kept = 0, dropped = 0, end, named = problem_set_named(checkpoint->problems);
    char name[QUOTED_SIZE], shard[QUOTED_SIZE];

    for (size_t i = 0; i < count; i = end) {
        for (end = i + 1; end < count && text_compare(all[i].name, all[i].length, all[end].name,
                                                      all[end].length) == 0;
             end++)
            ;
        if (end == i + 1) {
            all[kept++] = all[i];
            continue;
        }
        say_unsound(checkpoint, "a tensor stands in two shards");
        if (dropped++ < named)
            problem_set_add(checkpoint->problems, checkpoint->directory,
                            checkpoint->shards[all[i + 1].ref.shard]->name,
                            "DuplicateTensorName: tensor %s stands in %s too: shown from neither, "
                            "and there is no "
                            "merged file",
                            quoted(name, all[i].name, all[i].length),
                            quoted_shard(shard, checkpoint, all[i].ref));
    }
    if (dropped > named)
        problem_set_add(checkpoint->problems, checkpoint->directory, checkpoint->shards[0]->name,
                        "%zu tensors of this checkpoint stand in more than one shard: they are "
                        "missing, and there is no merged file",
                        dropped);
    return kept;
}

/* Both sorted by name: what the index says against what the shards hold. */
static void
compare_with_index(struct checkpoint *checkpoint, const char *file, const struct st_index *index,
                   const struct named_tensor *all, size_t count)
{
    size_t absent = 0, unlisted = 0, elsewhere = 0, t = 0;
    struct problem_set *set = checkpoint->problems;
    const size_t named = problem_set_named(set);
    const char *dir = checkpoint->directory;
    char name[QUOTED_SIZE], shard[QUOTED_SIZE], actual[QUOTED_SIZE];

    for (uint32_t i = 0; i <= index->count; i++) {
        const struct st_index_entry *entry = i < index->count ? &index->entries[i] : NULL;
        const char *text = entry ? index->text + entry->name : NULL;
        int order = 1;

        while (t < count && (!entry || (order = text_compare(text, entry->name_length, all[t].name,
                                                             all[t].length)) > 0)) {
            if (unlisted++ < named)
                problem_set_add(set, dir, file,
                                "tensor %s of %s is not in the index: it is shown all the same",
                                quoted(name, all[t].name, all[t].length),
                                quoted_shard(shard, checkpoint, all[t].ref));
            t++;
        }
        if (!entry)
            break;
        if (t < count && order == 0) {
            const char *said = index->shards[entry->shard];

            if (strcmp(said, checkpoint->shards[all[t].ref.shard]->name) != 0 &&
                elsewhere++ < named)
                problem_set_add(
                    set, dir, file,
                    "the index says tensor %s is in %s; it is in %s, and shown from there",
                    quoted(name, text, entry->name_length), quoted(shard, said, strlen(said)),
                    quoted_shard(actual, checkpoint, all[t].ref));
            t++;
        } else if (absent++ < named) {
            problem_set_add(set, dir, file,
                            "the index names tensor %s, which no sound shard holds: it is missing, "
                            "and there is no merged file",
                            quoted(name, text, entry->name_length));
        }
    }
    if (absent)
        say_unsound(checkpoint, "the index names tensors that no sound shard holds");
    if (absent > named || unlisted > named || elsewhere > named)
        problem_set_add(set, dir, file,
                        "index and shards disagree: %zu tensors named and not there, %zu there and "
                        "not named, %zu in another shard%s",
                        absent, unlisted, elsewhere, absent ? "; there is no merged file" : "");
}

/* Reads the index and says what is wrong with it; NULL then. Fails only for want of memory. */
static errint_t
read_index(struct checkpoint *checkpoint, struct source_dir *dir, const char *file,
           struct st_index **index)
{
    struct checkpoint_private *private = checkpoint->private;
    struct reason reason;
    errint_t error = source_dir_index(dir, file, index, &private->index, &reason);

    if (!error || error == -ENOMEM)
        return error;
    problem_set_add(checkpoint->problems, checkpoint->directory, file,
                    "refused: %s: %s; the index is not used", reason.rule, reason.text);
    *index = NULL;
    return 0;
}

/* What sorting takes: the names, and as much for qsort(). */
static uint64_t
gathering_bytes(size_t count)
{
    return count * (2 * sizeof(struct named_tensor) + sizeof(struct tensor_ref)) +
           sizeof(struct named_tensor);
}

/* Sorts the tensors of all sound shards by name. */
static errint_t
sort_tensors(struct checkpoint *checkpoint, size_t count, const char *file,
             const struct st_index *index)
{
    struct named_tensor *all = malloc((count + 1) * sizeof(*all));
    struct tensor_ref *refs;
    size_t at = 0;

    if (!all)
        return -ENOMEM;
    for (uint32_t s = 0; s < checkpoint->shard_count; s++) {
        const struct st_table *table = checkpoint->shards[s]->table;

        for (uint32_t i = 0; table && i < table->count; i++)
            all[at++] = (struct named_tensor){
                table->text + table->tensors[i].name, table->tensors[i].name_length, {s, i}};
    }
    qsort(all, count, sizeof(*all), compare_tensors);
    if (index)
        compare_with_index(checkpoint, file, index, all, count);
    count = drop_duplicates(checkpoint, all, count);
    refs = malloc((count + 1) * sizeof(*refs));
    if (refs)
        for (size_t i = 0; i < count; i++)
            refs[i] = all[i].ref;
    free(all);
    checkpoint->private->gathered = refs;
    checkpoint->private->charged = refs ? (count + 1) * sizeof(*refs) : 0;
    checkpoint->tensors = refs;
    checkpoint->tensor_count = (uint32_t)count;
    return refs ? 0 : -ENOMEM;
}

/* What is told of the index once it is gone. */
static errint_t
keep_index_metadata(struct checkpoint *checkpoint, const struct st_index *index)
{
    struct checkpoint_private *private = checkpoint->private;

    if (!index || !index->metadata)
        return 0;
    private->index_metadata = strndup(index->metadata, index->metadata_length);
    if (!private->index_metadata)
        return -ENOMEM;
    private->charged += index->metadata_length;
    checkpoint->index_metadata = private->index_metadata;
    checkpoint->index_metadata_length = index->metadata_length;
    return 0;
}

/* The budget has no room for the list of the tensors: the checkpoint is shown without any. */
static errint_t
gather_nothing(struct checkpoint *checkpoint, size_t count)
{
    static const struct tensor_ref none;

    checkpoint_report_no_room(checkpoint, count, "its list of tensors");
    say_unsound(checkpoint, "no memory for its headers");
    checkpoint->private->no_room = true;
    checkpoint->tensors = &none;
    return 0;
}

/* One shard: all checkpoints that are this file share its list. */
static errint_t
gather_alone(struct checkpoint *checkpoint)
{
    struct shard *shard = checkpoint->shards[0];

    checkpoint->tensors = table_cache_by_name(&checkpoint->catalog->tables, shard->kept);
    if (!checkpoint->tensors)
        return gather_nothing(checkpoint, shard->table->count);
    checkpoint->tensor_count = shard->table->count;
    return 0;
}

static errint_t
gather_tensors(struct checkpoint *checkpoint, struct source_dir *dir, const char *file)
{
    struct header_budget *budget = &checkpoint->catalog->budget;
    struct st_index *index = NULL;
    uint64_t bytes;
    size_t count = 0;
    errint_t error = 0;

    for (uint32_t s = 0; s < checkpoint->shard_count; s++)
        if (checkpoint->shards[s]->table)
            count += checkpoint->shards[s]->table->count;
    if (count > UINT32_MAX / 2)
        return -EOVERFLOW;
    if (checkpoint->shard_count == 1 && checkpoint->shards[0]->table && !file)
        return gather_alone(checkpoint);
    if (file)
        error = read_index(checkpoint, dir, file, &index);
    if (error)
        return error;
    bytes = gathering_bytes(count) + (index ? index->metadata_length : 0);
    if (header_budget_take(budget, bytes) == 0) {
        error = sort_tensors(checkpoint, count, file, index);
        if (!error)
            error = keep_index_metadata(checkpoint, index);
        header_budget_settle(budget, bytes, checkpoint->private->charged);
    } else {
        error = gather_nothing(checkpoint, count);
    }
    if (index) {
        checkpoint->has_total_size = index->has_total_size;
        checkpoint->total_size = index->total_size;
        if (index->bad_total_size[0])
            problem_set_add(
                checkpoint->problems, checkpoint->directory, file,
                "metadata.total_size is %s, expected a whole number of bytes: it is ignored",
                index->bad_total_size);
    }
    catalog_free_index(checkpoint->catalog, index);
    return error;
}

void
checkpoint_report_no_room(struct checkpoint *checkpoint, uint64_t tensors, const char *what)
{
    struct header_budget_counters now;

    if (atomic_exchange(&checkpoint->no_room_reported, true))
        return;
    header_budget_count(&checkpoint->catalog->budget, &now);
    problem_set_add(checkpoint->problems, checkpoint->directory, checkpoint->shards[0]->name,
                    "NoMemoryForHeaders: no room for %s (%" PRIu64 " tensors), %" PRIu64
                    " of %" PRIu64 " bytes are in use; it is not shown; raise --memory",
                    what, tensors, now.used, now.limit);
}

static bool
later(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

/* Its ownership, how new it is, and what is wrong with its shards. */
static void
sum_up_shards(struct checkpoint *checkpoint)
{
    bool any = false;

    checkpoint->ownership = (struct ownership){geteuid(), getegid(), 0444};
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (shard->refusal) {
            problem_set_add(checkpoint->problems, checkpoint->directory, shard->name,
                            "refused: %s; its tensors are missing, and there is no merged file",
                            shard->refusal);
            say_unsound(checkpoint, "a shard is refused");
            checkpoint->busy |= shard->error == -ETXTBSY;
            continue;
        }
        checkpoint->ownership =
            any ? ownership_combine(checkpoint->ownership, shard->file.ownership)
                : shard->file.ownership;
        if (!any || later(&shard->file.identity.modified, &checkpoint->modified))
            checkpoint->modified = shard->file.identity.modified;
        any = true;
        count_dtypes(checkpoint, shard);
    }
}

static void
count_held(struct checkpoint *checkpoint, bool add)
{
    struct catalog *catalog = checkpoint->catalog;

    if (add) {
        atomic_fetch_add(&catalog->checkpoints, 1);
        atomic_fetch_add(&catalog->tensors, checkpoint->tensor_count);
    } else {
        atomic_fetch_sub(&catalog->checkpoints, 1);
        atomic_fetch_sub(&catalog->tensors, checkpoint->tensor_count);
    }
}

uint64_t
checkpoint_version(const struct checkpoint *checkpoint)
{
    uint64_t version = 0;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        version = file_identity_hash(&checkpoint->shards[i]->file.identity, version);
    return version;
}

struct checkpoint *
checkpoint_ref(struct checkpoint *checkpoint)
{
    atomic_fetch_add(&checkpoint->references, 1);
    return checkpoint;
}

static void
checkpoint_free(struct checkpoint *checkpoint)
{
    void *derived = atomic_load(&checkpoint->derived);

    if (derived)
        checkpoint->catalog->derived_free(derived);
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        shard_unref(checkpoint->catalog, checkpoint->shards[i]);
    if (checkpoint->private) {
        free(checkpoint->private->directory);
        free(checkpoint->private->stem);
        free(checkpoint->private->suffix);
        free(checkpoint->private->index_name);
        free(checkpoint->private->index_metadata);
        family_unref(checkpoint->private->family);
        free(checkpoint->private->gathered);
        if (checkpoint->private->charged)
            header_budget_give(&checkpoint->catalog->budget, checkpoint->private->charged);
    }
    problem_set_free(checkpoint->problems);
    free(checkpoint->private);
    free(checkpoint->shards);
    free(checkpoint);
}

void
checkpoint_unref(struct checkpoint *checkpoint)
{
    if (!checkpoint || atomic_fetch_sub(&checkpoint->references, 1) > 1)
        return;
    count_held(checkpoint, false);
    checkpoint_free(checkpoint);
}

static struct checkpoint *
checkpoint_new(struct source_dir *dir, const struct group *group, const struct checkpoint *before)
{
    struct checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    struct checkpoint_private *private;

    if (!checkpoint)
        return NULL;
    atomic_init(&checkpoint->references, 1);
    checkpoint->catalog = dir->catalog;
    checkpoint->serial = atomic_fetch_add(&dir->catalog->serial, 1) + 1;
    checkpoint->shards = calloc(group->member_count + 1, sizeof(*checkpoint->shards));
    checkpoint->problems = problem_set_new(dir->catalog->problems);
    checkpoint->private = private = calloc(1, sizeof(*private));
    if (!checkpoint->shards || !checkpoint->problems || !private)
        goto fail;
    private->directory = strdup(dir->path);
    private->stem = strdup(group->stem);
    private->suffix = strdup(group->suffix);
    private->index_name = group->index ? strdup(group->index) : NULL;
    private->family = before ? family_ref(before->private->family) : family_new();
    if (!private->directory || !private->stem || !private->suffix || !private->family ||
        (group->index && !private->index_name))
        goto fail;
    checkpoint->directory = private->directory;
    checkpoint->stem = private->stem;
    checkpoint->suffix = private->suffix;
    return checkpoint;

fail:
    checkpoint_free(checkpoint);
    return NULL;
}

static errint_t
load_checkpoint(struct source_dir *dir, const struct group *group, const struct checkpoint *before,
                struct checkpoint **out)
{
    struct checkpoint *checkpoint = checkpoint_new(dir, group, before);
    struct load load = {.dir = dir, .group = group, .before = before};
    errint_t error = 0;

    if (!checkpoint)
        return -ENOMEM;
    load.shards = checkpoint->shards;
    load.family = checkpoint->private->family;
    checkpoint->shard_count = group->member_count;
    parallel_for(group->member_count, READERS, load_one, &load);
    for (uint32_t i = 0; i < group->member_count; i++)
        if (!checkpoint->shards[i])
            error = -ENOMEM;
    if (!error) {
        if (group->missing_count)
            say_unsound(checkpoint, "shards are missing");
        sum_up_shards(checkpoint);
        error = gather_tensors(checkpoint, dir, group->index);
    }
    if (error) {
        checkpoint_free(checkpoint);
        return error;
    }
    count_held(checkpoint, true);
#ifdef __GLIBC__
    /* Parsing leaves holes in every thread's heap, as big as the tables. */
    if (checkpoint->tensor_count > 4096)
        malloc_trim(0);
#endif
    *out = checkpoint;
    return 0;
}

errint_t
group_load(struct source_dir *dir, const struct group *group, struct checkpoint **checkpoint)
{
    return load_checkpoint(dir, group, NULL, checkpoint);
}

/* ---- whether it is still so ---- */

struct look {
    struct source_dir *dir;
    const struct checkpoint *checkpoint;
    atomic_bool differs; /* and no more files are looked at */
};

static void
look_at_shard(void *arg, size_t i)
{
    struct look *look = arg;

    if (!atomic_load(&look->differs) && !shard_holds(look->dir, look->checkpoint->shards[i]))
        atomic_store(&look->differs, true);
}

/* Whether it is to be loaded again though its files are the same: a shard may be allowed by now,
 * or there may be memory for it. */
static bool
is_temporary(const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i]->temporary)
            return true;
    return checkpoint->private->no_room;
}

/* Whether all files of this version are still what they were. Waits for storage: without a lock. */
static bool
checkpoint_holds(struct source_dir *dir, const struct checkpoint *checkpoint)
{
    const struct checkpoint_private *private = checkpoint->private;
    struct look look = {.dir = dir, .checkpoint = checkpoint};
    struct source_file now;

    if (is_temporary(checkpoint))
        return false;
    atomic_init(&look.differs, false);
    parallel_for(checkpoint->shard_count, checkpoint->shard_count <= FEW_SHARDS ? 1 : READERS,
                 look_at_shard, &look);
    if (atomic_load(&look.differs))
        return false;
    return !private->index_name || (source_dir_file(dir, private->index_name, &now) == 0 &&
                                    file_identity_equal(&now.identity, &private->index));
}

/* Whether no version of a shard has ended: without looking at the files. */
static bool
checkpoint_is_current(const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (!shard->refusal && !version_is_current(shard->backing))
            return false;
    }
    return true;
}

enum look_result { LOOK_HOLDS, LOOK_DIFFERS, LOOK_REPLACED };

/* With the lock held, and let go while the files of the checkpoint are looked at: whether it holds,
 * or was replaced meanwhile. */
static enum look_result
look_at_files(struct source_dir *dir, struct group_state *state)
{
    struct checkpoint *checkpoint = checkpoint_ref(state->checkpoint);
    uint64_t began = monotonic_ms();
    enum look_result result;

    state->looking = true;
    pthread_mutex_unlock(&state->lock);
    result = checkpoint_holds(dir, checkpoint) ? LOOK_HOLDS : LOOK_DIFFERS;
    pthread_mutex_lock(&state->lock);
    state->looking = false;
    pthread_cond_broadcast(&state->looked);
    if (state->checkpoint != checkpoint)
        result = LOOK_REPLACED;
    else
        state->checked = source_dir_checked(dir, began);
    checkpoint_unref(checkpoint);
    return result;
}

/* With the lock held. */
static errint_t
reload_checkpoint(struct source_dir *dir, const struct group *group, struct group_state *state)
{
    struct checkpoint *checkpoint;
    uint64_t began = monotonic_ms();
    errint_t error = load_checkpoint(dir, group, state->checkpoint, &checkpoint);

    if (!error) {
        checkpoint_unref(state->checkpoint);
        state->checkpoint = checkpoint;
        problem_set_free(state->problems);
        state->problems = NULL;
    }
    state->checked = source_dir_checked(dir, began);
    return error;
}

/* Whether the checkpoint may be given out as it is, with the lock held. Waits where another thread
 * looks at its files, if it was looked at too long ago. */
static bool
is_known(struct source_dir *dir, struct group_state *state)
{
    while (state->looking && state->checkpoint && checkpoint_is_current(state->checkpoint) &&
           source_dir_check_is_overdue(dir, state->checked))
        pthread_cond_wait(&state->looked, &state->lock);
    return state->checkpoint && checkpoint_is_current(state->checkpoint) &&
           (state->looking || !source_dir_check_is_due(dir, state->checked));
}

errint_t
group_checkpoint(struct source_dir *dir, const struct group *group, struct checkpoint **out)
{
    struct group_state *state = group->state;
    errint_t error = 0;

    pthread_mutex_lock(&state->lock);
    while (!is_known(dir, state)) {
        enum look_result result = LOOK_DIFFERS;

        if (state->checkpoint && checkpoint_is_current(state->checkpoint))
            result = look_at_files(dir, state);
        if (result == LOOK_REPLACED)
            continue;
        if (result == LOOK_DIFFERS)
            error = reload_checkpoint(dir, group, state);
        break;
    }
    if (!error)
        *out = checkpoint_ref(state->checkpoint);
    pthread_mutex_unlock(&state->lock);
    return error;
}

/* ---- states ---- */

struct checkpoint *
group_state_take_idle(struct group_state *state)
{
    struct checkpoint *checkpoint = NULL;

    if (pthread_mutex_trylock(&state->lock) != 0)
        return NULL;
    if (state->checkpoint && state->checkpoint->tensor_count > 0 &&
        atomic_load(&state->checkpoint->references) == 1) {
        checkpoint = state->checkpoint;
        state->checkpoint = NULL;
        problem_set_free(state->problems);
        state->problems = checkpoint->problems;
        checkpoint->problems = NULL;
    }
    pthread_mutex_unlock(&state->lock);
    return checkpoint;
}

struct group_state *
group_state_new(void)
{
    struct group_state *state = calloc(1, sizeof(*state));

    if (state) {
        atomic_init(&state->references, 1);
        pthread_mutex_init(&state->lock, NULL);
        pthread_cond_init(&state->looked, NULL);
    }
    return state;
}

struct group_state *
group_state_ref(struct group_state *state)
{
    atomic_fetch_add(&state->references, 1);
    return state;
}

void
group_state_unref(struct group_state *state)
{
    if (!state || atomic_fetch_sub(&state->references, 1) > 1)
        return;
    checkpoint_unref(state->checkpoint);
    problem_set_free(state->problems);
    pthread_cond_destroy(&state->looked);
    pthread_mutex_destroy(&state->lock);
    free(state);
}
