/* SPDX-License-Identifier: Apache-2.0 */
/* Assembles a checkpoint from its shards: reads their headers in parallel, merges their tensors by
 * name, and reports problems. */
#include "base/overflow_ids.h"
#include "base/parallel.h"
#include "base/text.h"
#include "catalog/group.h"
#include "catalog/private.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- loading all shards ---- */

struct checkpoint_loader {
    struct source_dir *dir;
    const struct group *group;
    const struct checkpoint *before;
    struct checkpoint *checkpoint;
};

/* Returns the shard of the previous version if its file is unchanged. */
static struct shard *
reuse_shard(const struct checkpoint_loader *loader, const char *name)
{
    for (uint32_t i = 0; loader->before && i < loader->before->shard_count; i++) {
        struct shard *shard = loader->before->shards[i];

        if (strcmp(shard->name, name) != 0 || shard->refusal)
            continue;
        if (!shard_is_current(loader->dir, shard)) {
            if (shard->kept)
                table_cache_forget(&loader->dir->catalog->tables, shard->kept);
            return NULL;
        }
        atomic_fetch_add(&shard->references, 1);
        return shard;
    }
    return NULL;
}

static void
load_or_reuse_shard(void *arg, size_t i)
{
    struct checkpoint_loader *loader = arg;
    const char *name = loader->group->members[i];
    struct shard *shard = reuse_shard(loader, name);

    if (!shard)
        shard = shard_load(loader->dir, loader->group, name, loader->checkpoint->family);
    loader->checkpoint->shards[i] = shard;
    if (loader->group->query)
        query_pool_progress(loader->dir->catalog->queries, loader->group->query);
}

/* ---- assembling ---- */

/* What the files of a checkpoint have in common. */
struct common_ownership {
    struct ownership ownership; /* of the first file, with the permission bits that all have */
    uint64_t device; /* of the first file */
    bool has_file, owners_differ, groups_differ;
    bool rights_differ; /* see struct checkpoint */
};

static void
add_ownership(struct common_ownership *common, const struct file_identity *file)
{
    struct ownership own = ownership_of(file);

    if (!common->has_file) {
        common->ownership = own;
        common->device = file->device;
    }
    common->has_file = true;
    common->owners_differ |= own.owner != common->ownership.owner;
    common->groups_differ |= own.group != common->ownership.group;
    common->rights_differ |= common->owners_differ || common->groups_differ ||
                             is_overflow_uid(own.owner) || is_overflow_gid(own.group) ||
                             own.mode != common->ownership.mode || file->device != common->device;
    common->ownership.mode &= own.mode;
}

/*
 * The ownership of a file that is made of all shards and the index, except for those that cannot be
 * read now. If owners differ, the owner is the mounting user, who could read all headers. A user
 * whose class is not the same for each file (owner, group, others) gets the bits that all these
 * classes have.
 */
static struct ownership
combine_ownership(struct checkpoint *checkpoint)
{
    struct common_ownership common = {.ownership = {geteuid(), getegid(), 0444}};
    mode_t mode, shared;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (shard->is_refused_unread)
            continue;
        add_ownership(&common, &shard->identity);
        common.rights_differ |= shard->may_have_acl;
    }
    checkpoint->rights_differ = common.rights_differ;
    if (common.has_file && checkpoint->index_identity.inode)
        add_ownership(&common, &checkpoint->index_identity);
    mode = common.ownership.mode;
    if (common.groups_differ) {
        shared = mode >> 3 & mode & 07;
        mode = (mode & 0700) | shared << 3 | shared;
        common.ownership.group = getegid();
    }
    if (common.owners_differ) {
        shared = mode >> 6 & 07;
        mode = S_IRUSR | (mode & (shared << 6 | shared << 3 | shared));
        common.ownership.owner = geteuid();
    }
    common.ownership.mode = mode;
    return common.ownership;
}

/* Quotes the name of the tensor's shard, for a message. */
static char *
quoted_shard(char out[QUOTED_SIZE], const struct checkpoint *checkpoint, struct tensor_ref ref)
{
    const char *name = checkpoint->shards[ref.shard]->name;

    return quoted(out, name, strlen(name));
}

static int
compare_named_tensors(const void *a, const void *b)
{
    const struct named_tensor *x = a, *y = b;
    int order = text_compare(x->name, x->length, y->name, y->length);

    if (order)
        return order;
    return x->ref.shard < y->ref.shard ? -1 : x->ref.shard > y->ref.shard;
}

static void
mark_unsound(struct checkpoint *checkpoint, const char *why)
{
    checkpoint->is_sound_but_for_index = false;
    if (!checkpoint->unsound)
        checkpoint->unsound = why;
}

static void
report_unknown_dtypes(struct checkpoint *checkpoint, const struct shard *shard)
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
    if (unknown && !table->gguf) /* whose reader knows its types */
        problem_set_add(checkpoint->problems, shard->name,
                        "%u tensors of a dtype this fstfs does not know (the first is %s, %s): "
                        "served as bytes, and not in npy/",
                        unknown, quoted(name, table->text + first->name, first->name_length),
                        quoted(dtype, table->text + first->dtype_text, first->dtype_text_length));
}

/* Drops and reports tensors that are in more than one shard. Returns how many tensors are left. */
static size_t
drop_duplicates(struct checkpoint *checkpoint, struct named_tensor *all, size_t count)
{
    size_t kept = 0, dropped = 0, end, named = problem_set_named_max(checkpoint->problems);
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
        mark_unsound(checkpoint, "a tensor is in two shards");
        if (dropped++ < named)
            problem_set_add(checkpoint->problems, checkpoint->shards[all[i + 1].ref.shard]->name,
                            "DuplicateTensorName: tensor %s is also in %s: shown from neither, and "
                            "there is no merged file",
                            quoted(name, all[i].name, all[i].length),
                            quoted_shard(shard, checkpoint, all[i].ref));
    }
    if (dropped > named)
        problem_set_add(checkpoint->problems, checkpoint->shards[0]->name,
                        "%zu tensors of this checkpoint are in more than one shard: they are "
                        "missing, and there is no merged file",
                        dropped);
    return kept;
}

/* Reports differences between the index and the shards. Both are sorted by name. */
static void
compare_with_index(struct checkpoint *checkpoint, const char *file, const struct st_index *index,
                   const struct named_tensor *all, size_t count)
{
    size_t absent = 0, unlisted = 0, elsewhere = 0, t = 0;
    struct problem_set *set = checkpoint->problems;
    const size_t named = problem_set_named_max(set);
    char name[QUOTED_SIZE], shard[QUOTED_SIZE], actual[QUOTED_SIZE];
    bool was_sound = !checkpoint->unsound;

    for (uint32_t i = 0; i <= index->count; i++) {
        const struct st_index_entry *entry = i < index->count ? &index->entries[i] : NULL;
        const char *text = entry ? index->text + entry->name : NULL;
        int order = 1;

        while (t < count && (!entry || (order = text_compare(text, entry->name_length, all[t].name,
                                                             all[t].length)) > 0)) {
            if (unlisted++ < named)
                problem_set_add(set, file,
                                "tensor %s of %s is not in the index: it is shown nevertheless",
                                quoted(name, all[t].name, all[t].length),
                                quoted_shard(shard, checkpoint, all[t].ref));
            t++;
        }
        if (!entry)
            break;
        if (t < count && order == 0) {
            const char *listed = index->shards[entry->shard];

            if (strcmp(listed, checkpoint->shards[all[t].ref.shard]->name) != 0 &&
                elsewhere++ < named)
                problem_set_add(
                    set, file, "the index lists tensor %s in %s; it is in %s, and shown from there",
                    quoted(name, text, entry->name_length), quoted(shard, listed, strlen(listed)),
                    quoted_shard(actual, checkpoint, all[t].ref));
            t++;
        } else if (absent++ < named) {
            problem_set_add(set, file,
                            "the index names tensor %s, which is in no valid shard: it is missing",
                            quoted(name, text, entry->name_length));
        }
    }
    if (absent)
        mark_unsound(checkpoint, "the index names tensors that are in no valid shard");
    checkpoint->is_sound_but_for_index = absent && was_sound;
    if (absent > named || unlisted > named || elsewhere > named)
        problem_set_add(
            set, file,
            "index and shards differ: %zu tensors are missing in the shards, %zu are not "
            "in the index, %zu are in another shard",
            absent, unlisted, elsewhere);
}

static void
set_passing_error(struct checkpoint *checkpoint, errint_t error)
{
    bool is_documented = error == -ETXTBSY || error == -EACCES || error_is_no_descriptor(error);

    checkpoint->passing_error = is_documented ? error : -EIO;
}

static void
mark_index_unread(struct checkpoint *checkpoint, errint_t error)
{
    mark_unsound(checkpoint, "its index cannot be read");
    checkpoint->has_unread_index = true;
    set_passing_error(checkpoint, error);
}

/* Reads the index. If it is invalid or cannot be read, this is reported, and *index is NULL. Fails
 * only if out of memory. */
static errint_t
read_checkpoint_index(struct checkpoint *checkpoint, struct source_dir *dir, const char *file,
                      struct st_index **index)
{
    struct reason reason;
    errint_t error = source_dir_index(dir, file, index, &checkpoint->index_identity, &reason);

    if (!error || error == -ENOMEM)
        return error;
    problem_set_add(checkpoint->problems, file, "refused: %s: %s; %s", reason.rule, reason.text,
                    error == -EBADMSG ? "the index is not used"
                                      : "its checkpoint cannot be opened");
    if (error != -EBADMSG)
        mark_index_unread(checkpoint, error);
    *index = NULL;
    return 0;
}

/* Bytes for sorting: the named tensors, the copy of them that qsort() makes, and the references
 * that the checkpoint keeps. */
static uint64_t
gathering_bytes(size_t count)
{
    return count * (2 * sizeof(struct named_tensor) + sizeof(struct tensor_ref)) +
           sizeof(struct named_tensor);
}

struct named_tensor *
checkpoint_sort_tensors(const struct checkpoint *checkpoint, size_t count)
{
    struct named_tensor *all = malloc((count + 1) * sizeof(*all));
    size_t at = 0;

    if (!all)
        return NULL;
    for (uint32_t s = 0; s < checkpoint->shard_count; s++) {
        const struct st_table *table = checkpoint->shards[s]->table;

        for (uint32_t i = 0; table && i < table->count; i++)
            all[at++] = (struct named_tensor){
                table->text + table->tensors[i].name, table->tensors[i].name_length, {s, i}};
    }
    qsort(all, count, sizeof(*all), compare_named_tensors);
    return all;
}

/* Sorts the tensors of all shards that are not refused by name, compares them with the index, and
 * drops duplicates. */
static errint_t
sort_tensors(struct checkpoint *checkpoint, size_t count, const char *file,
             const struct st_index *index)
{
    struct named_tensor *all = checkpoint_sort_tensors(checkpoint, count);
    struct tensor_ref *refs;

    if (!all)
        return -ENOMEM;
    if (index)
        compare_with_index(checkpoint, file, index, all, count);
    count = drop_duplicates(checkpoint, all, count);
    refs = malloc((count + 1) * sizeof(*refs));
    if (refs)
        for (size_t i = 0; i < count; i++)
            refs[i] = all[i].ref;
    free(all);
    checkpoint->own_tensors = refs;
    checkpoint->charged = refs ? (count + 1) * sizeof(*refs) : 0;
    checkpoint->tensors = refs;
    checkpoint->tensor_count = (uint32_t)count;
    return refs ? 0 : -ENOMEM;
}

/* Copies the metadata of the index, because the checkpoint outlives the index. */
static errint_t
keep_index_metadata(struct checkpoint *checkpoint, const struct st_index *index)
{
    if (!index || !index->metadata)
        return 0;
    checkpoint->index_metadata = strndup(index->metadata, index->metadata_length);
    if (!checkpoint->index_metadata)
        return -ENOMEM;
    checkpoint->charged += index->metadata_length;
    checkpoint->index_metadata_length = index->metadata_length;
    return 0;
}

static const struct tensor_ref no_tensors;

/* Whether its files are shown as they are if a shard is refused. */
static bool
has_files_instead(const struct checkpoint *checkpoint)
{
    return checkpoint->container->is_converted || checkpoint->container->is_kept;
}

/* The budget has no room for the list of tensors: the checkpoint is shown without any. */
static errint_t
gather_nothing(struct checkpoint *checkpoint, size_t count)
{
    checkpoint_report_no_room(checkpoint, count, "its list of tensors");
    mark_unsound(checkpoint, "no memory for its headers");
    checkpoint->has_no_room = true;
    if (!has_files_instead(checkpoint)) {
        checkpoint->has_unread_shard = true;
        if (!checkpoint->passing_error)
            set_passing_error(checkpoint, -ENOBUFS);
    }
    checkpoint->tensors = &no_tensors;
    return 0;
}

/* A single shard: all checkpoints of this file share its list of tensors. */
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
        error = read_checkpoint_index(checkpoint, dir, file, &index);
    if (error)
        return error;
    bytes = gathering_bytes(count) + (index ? index->metadata_length : 0);
    if (header_budget_take(budget, bytes) == 0) {
        error = sort_tensors(checkpoint, count, file, index);
        if (!error)
            error = keep_index_metadata(checkpoint, index);
        header_budget_settle(budget, bytes, checkpoint->charged);
    } else {
        error = gather_nothing(checkpoint, count);
    }
    if (index) {
        checkpoint->has_total_size = index->has_total_size;
        checkpoint->total_size = index->total_size;
        if (index->has_byte_order_mark)
            problem_set_add(checkpoint->problems, file,
                            "it begins with a byte order mark, which is ignored here; Python's "
                            "json.load() refuses it");
        if (index->bad_total_size[0])
            problem_set_add(
                checkpoint->problems, file,
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
    problem_set_add(checkpoint->problems,
                    checkpoint->shard_count ? checkpoint->shards[0]->name : checkpoint->index_name,
                    "NoMemoryForHeaders: no room for %s (%" PRIu64 " tensors), %" PRIu64
                    " of %" PRIu64 " bytes are in use; it is not shown%s",
                    what, tensors, now.used, now.limit, now.advice);
}

static bool
is_later(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

/* The effect of a refused shard or tensor, for messages. */
static const char *
consequence(const struct checkpoint *checkpoint)
{
    return has_files_instead(checkpoint) ? "the files themselves are shown"
                                         : "there is no merged file";
}

/* Whether storage, a writer, or a lack of memory or descriptors prevents reading the shard now.
 * False if the shard is invalid or missing. */
static bool
may_be_read_later(const struct shard *shard)
{
    return shard->temporary && error_hides_target(shard->error);
}

static void
summarize_refused_shard(struct checkpoint *checkpoint, const struct shard *shard)
{
    bool is_missed = may_be_read_later(shard) && !has_files_instead(checkpoint);

    mark_unsound(checkpoint, "a shard is refused");
    checkpoint->has_unread_shard |= is_missed;
    if (is_missed || shard->error == -ETXTBSY || error_is_no_descriptor(shard->error))
        set_passing_error(checkpoint, shard->error);
    /* Files that are not checkpoints may have the same suffix; they are not reported. */
    if (shard->error != -ENOMSG || !checkpoint->is_absent)
        problem_set_add(checkpoint->problems, shard->name,
                        "refused: %s; its tensors are missing, and %s", shard->refusal,
                        consequence(checkpoint));
}

static void
report_refused_tensors(struct checkpoint *checkpoint, const struct shard *shard)
{
    const struct st_table *table = shard->table;
    uint32_t named = 0;
    size_t length;

    if (!table->refused_count)
        return;
    mark_unsound(checkpoint, "some tensors cannot be shown");
    for (const char *line = table->refused; *line; line += length + 1, named++) {
        length = strcspn(line, "\n");
        problem_set_add(checkpoint->problems, shard->name, "%.*s; it is missing, and %s",
                        (int)length, line, consequence(checkpoint));
    }
    if (table->refused_count > named)
        problem_set_add(checkpoint->problems, shard->name,
                        "%" PRIu32 " of its %" PRIu32 " tensors cannot be shown",
                        table->refused_count, table->refused_count + table->count);
}

/* Reports what group_files() does not report for converted containers, because only the content
 * shows whether the files are a checkpoint. */
static void
report_group(struct checkpoint *checkpoint, const struct group *group)
{
    const char *file = group_file(group);
    char stem[QUOTED_SIZE];
    uint32_t number, of;

    if (!group->container->is_converted || (checkpoint->is_absent && !group->index))
        return;
    if (group->missing_count)
        problem_set_add(checkpoint->problems, file,
                        "%" PRIu32 " of the %" PRIu32
                        " shards of %s do not exist: their tensors are missing, and %s",
                        group->missing_count, group->missing_count + group->member_count,
                        quoted(stem, group->stem, strlen(group->stem)), consequence(checkpoint));
    if (group->kind == GROUP_SINGLE && group_misnumbered_name(file, &number, &of))
        group_report_misnumbered(checkpoint->problems, file, number, of);
}

/* Checks that the shards belong together, if all are there. */
static errint_t
check_shards(struct checkpoint *checkpoint)
{
    const struct container *container = checkpoint->container;
    const struct st_table **tables;
    struct reason reason;
    uint32_t wrong;

    if (!container->check_files || checkpoint->unsound)
        return 0;
    tables = malloc((checkpoint->shard_count + 1) * sizeof(*tables));
    if (!tables)
        return -ENOMEM;
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        tables[i] = checkpoint->shards[i]->table;
    if (container->check_files(tables, checkpoint->shard_count, &wrong, &reason) != 0) {
        mark_unsound(checkpoint, "its files do not belong together");
        problem_set_add(checkpoint->problems, checkpoint->shards[wrong]->name, "%s: %s; %s",
                        reason.rule, reason.text, consequence(checkpoint));
    }
    free(tables);
    return 0;
}

bool
checkpoint_has_table(const struct checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i]->table)
            return true;
    return false;
}

/* Sets ownership, times and version of the checkpoint, and reports the problems of its shards. */
static void
summarize_shards(struct checkpoint *checkpoint)
{
    bool any = false;

    checkpoint->is_absent =
        checkpoint->container->is_converted && !checkpoint_has_table(checkpoint);
    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        /* The change time is a hash of the version. It differs while a shard cannot be read, unless
         * that depends on the content of the shard, which it would reveal. */
        checkpoint->version =
            file_identity_hash(&shard->identity, checkpoint->version + shard->is_refused_unread);
        if (!any || is_later(&shard->identity.modified, &checkpoint->modified))
            checkpoint->modified = shard->identity.modified;
        if (!any || is_later(&shard->identity.changed, &checkpoint->changed))
            checkpoint->changed = shard->identity.changed;
        any |= shard->identity.inode != 0;
        if (shard->refusal) {
            summarize_refused_shard(checkpoint, shard);
            continue;
        }
        report_refused_tensors(checkpoint, shard);
        report_unknown_dtypes(checkpoint, shard);
    }
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
    for (uint32_t i = 0; checkpoint->shards && i < checkpoint->shard_count; i++)
        shard_unref(checkpoint->catalog, checkpoint->shards[i]);
    free(checkpoint->index_metadata);
    free(checkpoint->own_tensors);
    if (checkpoint->charged)
        header_budget_give(&checkpoint->catalog->budget, checkpoint->charged);
    family_unref(checkpoint->family);
    problem_set_unref(checkpoint->problems);
    free(checkpoint->shards);
    free(checkpoint);
}

void
checkpoint_unref(struct checkpoint *checkpoint)
{
    if (!checkpoint || atomic_fetch_sub(&checkpoint->references, 1) > 1)
        return;
    atomic_fetch_sub(&checkpoint->catalog->checkpoints, 1);
    atomic_fetch_sub(&checkpoint->catalog->tensors, checkpoint->tensor_count);
    checkpoint_free(checkpoint);
}

static struct checkpoint *
checkpoint_new(struct source_dir *dir, const struct group *group, const struct checkpoint *before)
{
    size_t strings = strlen(dir->path) + strlen(group->stem) + strlen(group->suffix) + 3 +
                     (group->index ? strlen(group->index) + 1 : 0);
    struct checkpoint *checkpoint = calloc(1, sizeof(*checkpoint) + strings);
    char *room;

    if (!checkpoint)
        return NULL;
    room = (char *)(checkpoint + 1);
    atomic_init(&checkpoint->references, 1);
    checkpoint->catalog = dir->catalog;
    checkpoint->serial = atomic_fetch_add(&dir->catalog->serial, 1) + 1;
    checkpoint->directory = text_copy(&room, dir->path);
    checkpoint->container = group->container;
    checkpoint->stem = text_copy(&room, group->stem);
    checkpoint->suffix = text_copy(&room, group->suffix);
    checkpoint->index_name = text_copy(&room, group->index);
    checkpoint->shard_count = group->member_count;
    checkpoint->shards = calloc(group->member_count + 1, sizeof(*checkpoint->shards));
    checkpoint->problems = problem_set_new(dir->catalog->problems, dir->path);
    checkpoint->family = before ? family_ref(before->family) : family_new(dir->path, group->stem);
    if (checkpoint->shards && checkpoint->problems && checkpoint->family)
        return checkpoint;
    checkpoint_free(checkpoint);
    return NULL;
}

errint_t
checkpoint_load(struct source_dir *dir, const struct group *group, const struct checkpoint *before,
                unsigned threads, struct checkpoint **out)
{
    struct checkpoint *checkpoint = checkpoint_new(dir, group, before);
    struct checkpoint_loader loader = {dir, group, before, checkpoint};
    errint_t error = 0;

    if (!checkpoint)
        return -ENOMEM;
    parallel_for(group->member_count, threads, load_or_reuse_shard, &loader);
    for (uint32_t i = 0; i < group->member_count; i++)
        if (!checkpoint->shards[i])
            error = -ENOMEM;
    if (!error) {
        if (group->missing_count)
            mark_unsound(checkpoint, "shards are missing");
        summarize_shards(checkpoint);
        report_group(checkpoint, group);
        error = group->may_be_part ? 0 : check_shards(checkpoint);
    }
    if (!error && group->index_error) {
        mark_index_unread(checkpoint, group->index_error);
        checkpoint->tensors = &no_tensors;
    } else if (!error) {
        error = gather_tensors(checkpoint, dir, group->index);
    }
    if (error) {
        checkpoint_free(checkpoint);
        return error;
    }
    checkpoint->ownership = combine_ownership(checkpoint);
    atomic_fetch_add(&dir->catalog->checkpoints, 1);
    atomic_fetch_add(&dir->catalog->tensors, checkpoint->tensor_count);
#ifdef __GLIBC__
    /* Parsing leaves free memory of the size of the tables in every thread's heap: return it. */
    if (checkpoint->tensor_count > 4096)
        malloc_trim(0);
#endif
    *out = checkpoint;
    return 0;
}

struct group
group_of_file(const struct container *container, const char *stem, const char *const *member)
{
    return (struct group){.container = container,
                          .stem = stem,
                          .suffix = "",
                          .members = member,
                          .member_count = 1,
                          .unfinished = 1,
                          .kind = GROUP_SINGLE,
                          .may_be_part = true};
}

errint_t
group_load(struct source_dir *dir, const struct group *group, unsigned threads,
           struct checkpoint **checkpoint)
{
    return checkpoint_load(dir, group, NULL, threads, checkpoint);
}
