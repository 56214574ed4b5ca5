/* SPDX-License-Identifier: Apache-2.0 */
#include "view/listing.h"

#include "base/array.h"
#include "base/buffer.h"
#include "catalog/group.h"
#include "view/index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An entry while names are collected. */
struct draft {
    struct dir_entry entry;
    size_t name; /* if entry.name is NULL: offset in gather.names, which may still move */
    bool named_by_file; /* ENTRY_TENSORS: has the name of the checkpoint's first file */
};

/* Whether another checkpoint has a file with a name that would be generated for a group. */
struct taken_names {
    bool merged; /* its merged file */
    bool recut; /* one that it may be re-cut into */
};

struct gather {
    const struct listing *listing;
    enum view_kind view;
    const struct view_options *options;
    struct draft *drafts;
    size_t count;
    struct buffer names;
    bool failed;
    bool has_several; /* checkpoints, by their names, except GGUF models */
    bool has_several_safetensors; /* of which several are shown as safetensors files */
    bool has_sharded; /* one of them consists of several shards or has an index */
    struct taken_names *taken; /* of each group */
};

static struct draft *
add_draft(struct gather *gather, enum dir_entry_kind kind, uint32_t group)
{
    const struct draft draft = {.entry = {.kind = kind, .group = group}};

    if (!array_add(gather->drafts, gather->count, draft)) {
        gather->failed = true;
        return NULL;
    }
    return &gather->drafts[gather->count - 1];
}

static void
add_source_name(struct gather *gather, enum dir_entry_kind kind, uint32_t group, const char *name)
{
    struct draft *draft = add_draft(gather, kind, group);

    if (draft)
        draft->entry.name = name;
}

/* Adds an entry with a name that the source does not have. NULL: the name is omitted, or out of
 * memory. */
static struct draft *
add_new_name(struct gather *gather, enum dir_entry_kind kind, uint32_t group, const char *base,
             const char *suffix)
{
    struct draft *draft;

    if (strlen(base) + strlen(suffix) > 255) {
        problem_set_add(gather->listing->problems, base,
                        "left out: its name would be over 255 bytes%s%s", *suffix ? " with " : "",
                        suffix);
        return NULL;
    }
    draft = add_draft(gather, kind, group);
    if (!draft)
        return NULL;
    draft->name = gather->names.length;
    buffer_add(&gather->names, base, strlen(base));
    buffer_add(&gather->names, suffix, strlen(suffix) + 1);
    return draft;
}

static void
add_made(struct gather *gather, enum made_kind made, uint32_t group, const char *base,
         const char *suffix)
{
    struct draft *draft = add_new_name(gather, ENTRY_MADE, group, base, suffix);

    if (draft)
        draft->entry.made.kind = made;
}

/* Adds the files of a group that is not changed. */
static void
add_source_files(struct gather *gather, uint32_t g)
{
    const struct group *group = &gather->listing->groups[g];
    bool is_converted = group->container->is_converted;

    for (uint32_t i = 0; i < group->member_count; i++)
        add_source_name(gather, is_converted ? ENTRY_SIDE_FILE : ENTRY_SHARD, g, group->members[i]);
    if (group->index)
        add_source_name(gather, is_converted ? ENTRY_SIDE_FILE : ENTRY_INDEX, g, group->index);
}

/* Adds the files of a group that are shown if there is no `made` file. */
static void
add_unconverted(struct gather *gather, uint32_t g, enum made_kind made)
{
    const struct group *group = &gather->listing->groups[g];
    size_t first = gather->count;

    if (!group->container->is_converted && !group->container->is_kept)
        return;
    for (uint32_t i = 0; i < group->member_count; i++)
        add_source_name(gather, ENTRY_UNCONVERTED, g, group->members[i]);
    if (group->index)
        add_source_name(gather, ENTRY_UNCONVERTED, g, group->index);
    for (size_t i = first; i < gather->count; i++) {
        gather->drafts[i].entry.made.kind = made;
        if (group->shadowed)
            gather->drafts[i].entry.kind = ENTRY_SIDE_FILE;
    }
}

/* The name of a checkpoint's directory if another entry has its stem as its name. It is a file name
 * of the source, so no other checkpoint has it. */
static const char *
name_by_file(const struct group *group)
{
    return group->member_count ? group->members[0] : group->index;
}

static void
add_tensors(struct gather *gather, uint32_t g)
{
    const struct group *group = &gather->listing->groups[g];
    const char *name = group->second ? name_by_file(group) : group->stem;
    struct draft *draft = add_new_name(gather, ENTRY_TENSORS, g, name, "");

    if (draft)
        draft->named_by_file = group->second;
    if (gather->view == VIEW_TENSORS)
        add_made(gather, MADE_TENSOR_INDEX, g, name, ".index.json");
}

void
dir_listing_index_name(const struct group *group, char name[300])
{
    if (group->index && !group->container->is_converted)
        snprintf(name, 300, "%s", group->index);
    else
        group_name_index(group->stem, group->suffix, name);
}

static bool
has_source_index(const struct group *group)
{
    return group->index || group->index_error ||
           (group->invalid_index && group->kind == GROUP_NUMBERED);
}

/* Loaders that load all *.safetensors files of a directory skip those that an index does not name.
 * So a checkpoint with an index keeps one next to other checkpoints, even if it is shown as one
 * file. */
static bool
is_indexed(const struct gather *gather, const struct group *group)
{
    return gather->has_several_safetensors && !group->container->is_kept && has_source_index(group);
}

/* Whether loaders would skip other checkpoints because of a generated index. */
static bool
would_hide_others(const struct gather *gather, const struct group *group)
{
    char name[300];

    if (!gather->has_several || has_source_index(group))
        return false;
    dir_listing_index_name(group, name);
    return strcmp(name, "model.safetensors.index.json") == 0 ||
           strcmp(name, "consolidated.safetensors.index.json") == 0;
}

static void
add_index(struct gather *gather, enum made_kind made, uint32_t g)
{
    struct draft *draft;
    char name[300];

    dir_listing_index_name(&gather->listing->groups[g], name);
    draft = add_new_name(gather, ENTRY_MADE, g, name, "");
    if (draft)
        draft->entry.made.kind = made;
}

static void
add_merged(struct gather *gather, uint32_t g)
{
    const struct group *group = &gather->listing->groups[g];

    if (group->is_unchanged || gather->taken[g].merged ||
        (group->container->is_kept && group->kind == GROUP_SINGLE)) {
        add_source_files(gather, g);
        return;
    }
    add_unconverted(gather, g, MADE_MERGED);
    if (group->shadowed)
        return;
    add_made(gather, MADE_MERGED, g, group->stem, group->suffix);
    if (is_indexed(gather, group))
        add_index(gather, MADE_MERGED_INDEX, g);
}

/* STEM.safetensors and nothing else, with or without an index. */
static bool
is_one_file(const struct group *group)
{
    char stem[256];

    return group->member_count == 1 && group->missing_count == 0 &&
           group_single_name(group->members[0], stem) && strcmp(stem, group->stem) == 0;
}

/* Files that are read by name and never by an index: adapters by peft and diffusers, Mistral's own
 * format by mistral_inference. */
static bool
is_read_by_name(const struct group *group)
{
    static const char *const kinds[] = {"adapter_model", "pytorch_lora_weights", "consolidated"};

    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (strncmp(group->stem, kinds[i], strlen(kinds[i])) == 0)
            return true;
    return false;
}

static bool
is_recut(struct gather *gather, const struct group *group)
{
    const struct view_options *options = gather->options;

    if ((!options->shards && !options->shard_size) || would_hide_others(gather, group))
        return false;
    /* A single file is re-cut only by size, and not if its index would be a second one. */
    if (is_one_file(group) && (!options->shard_size || is_read_by_name(group) ||
                               group->invalid_index || (!group->index && gather->has_sharded)))
        return false;
    if (strlen(group->stem) + strlen("-000001-of-000001.safetensors") > 255) {
        problem_set_add(gather->listing->problems, name_by_file(group),
                        "not re-cut: the names of the shards would be over 255 bytes");
        return false;
    }
    return true;
}

/* Whether another checkpoint has the same name. */
static bool
has_second(const struct listing *listing, uint32_t g)
{
    return g + 1 < listing->group_count && listing->groups[g + 1].shadowed;
}

static void
add_converted_shard(struct gather *gather, uint32_t g, uint32_t part)
{
    const struct group *group = &gather->listing->groups[g];
    struct draft *draft;
    char name[512];

    index_part_name(group->stem, group->suffix, part, group->member_count, name);
    draft = add_new_name(gather, ENTRY_MADE, g, name, "");
    if (draft)
        draft->entry.made = (struct made){MADE_SHARD, part};
}

static void
add_shard_files(struct gather *gather, uint32_t g)
{
    const struct group *group = &gather->listing->groups[g];
    bool is_converted = group->container->is_converted;

    if (group->is_unchanged || group->container->is_kept) {
        add_source_files(gather, g);
        return;
    }
    if (!group->shadowed && !has_second(gather->listing, g) && !gather->taken[g].recut &&
        is_recut(gather, group)) {
        struct draft *draft = add_draft(gather, ENTRY_RECUT, g);

        if (draft)
            draft->entry.is_indexed = is_indexed(gather, group);
        add_unconverted(gather, g, MADE_PART);
        return;
    }
    add_unconverted(gather, g, MADE_SHARD);
    for (uint32_t i = 0; is_converted && i < group->member_count; i++)
        add_converted_shard(gather, g, i);
    if (!is_converted)
        add_source_files(gather, g);
    /* Beside a single file of the stem, diffusers would prefer the index. */
    if (!group->shadowed && !has_second(gather->listing, g) && (!group->index || is_converted) &&
        group->kind != GROUP_SINGLE && !would_hide_others(gather, group))
        add_index(gather, MADE_SHARD_INDEX, g);
}

/* Marks the groups of other names for which a file of group g takes a name. */
static void
mark_taken_names(struct gather *gather, uint32_t g, const char *file)
{
    const struct listing *listing = gather->listing;
    struct suffix suffix;
    uint32_t number, of;
    char stem[256];

    if (!group_split_file_name(file, stem, &suffix))
        return;
    for (size_t i = group_first_of_stem(listing->groups, listing->group_count, stem);
         i < listing->group_count && strcmp(listing->groups[i].stem, stem) == 0; i++) {
        const struct group *group = &listing->groups[i];

        if (i == g || group_compare_names(group, &listing->groups[g]) == 0 ||
            strlen(group->suffix) != suffix.length ||
            strncmp(group->suffix, suffix.text, suffix.length) != 0)
            continue;
        gather->taken[i].recut = true;
        gather->taken[i].merged |= !group_numbered_name(file, stem, &number, &of);
    }
}

static void
find_taken_names(struct gather *gather)
{
    const struct listing *listing = gather->listing;

    gather->taken = calloc(listing->group_count + 1, sizeof(*gather->taken));
    if (!gather->taken) {
        gather->failed = true;
        return;
    }
    for (uint32_t g = 0; g < listing->group_count; g++)
        for (uint32_t i = 0; i < listing->groups[g].member_count; i++)
            mark_taken_names(gather, g, listing->groups[g].members[i]);
}

static bool
is_name_of_pytorch_weights(const char *file)
{
    struct suffix suffix;
    char stem[256];

    return file &&
           (group_split_file_name(file, stem, &suffix) ||
            group_split_index_name(file, stem, &suffix)) &&
           suffix.container->is_converted && !group_is_name_of_other_format(file);
}

static void
count_checkpoints(struct gather *gather)
{
    const struct listing *listing = gather->listing;
    uint32_t safetensors = 0, pytorch = 0, number, of;
    char stem[256];

    for (uint32_t g = 0; g < listing->group_count; g++) {
        const struct group *group = &listing->groups[g];

        if (group->container == &container_safetensors &&
            !(group->shadowed && gather->view == VIEW_MERGED))
            safetensors++;
        else if (is_name_of_pytorch_weights(group_file(group)))
            pytorch++;
        else
            continue;
        gather->has_sharded |= !group->shadowed && group->kind != GROUP_SINGLE;
    }
    /* Those with the stem of safetensors files are not groups. */
    for (uint32_t i = 0; i < listing->file_count; i++) {
        if (!is_name_of_pytorch_weights(listing->files[i]))
            continue;
        pytorch++;
        gather->has_sharded |= group_numbered_name(listing->files[i], stem, &number, &of);
    }
    gather->has_several = safetensors + pytorch > 1;
    gather->has_several_safetensors = safetensors > 1;
}

static void
gather_names(struct gather *gather)
{
    static const struct {
        bool has_side_files;
        void (*add_group)(struct gather *gather, uint32_t g);
    } views[VIEW_KINDS] = {
        [VIEW_TENSORS] = {false, add_tensors},
        [VIEW_MERGED] = {true, add_merged},
        [VIEW_SHARDS] = {true, add_shard_files},
        [VIEW_NPY] = {false, add_tensors},
    };
    const struct listing *listing = gather->listing;

    if (views[gather->view].has_side_files) {
        count_checkpoints(gather);
        find_taken_names(gather);
    }
    if (gather->failed)
        return;
    for (uint32_t i = 0; i < listing->directory_count; i++)
        add_source_name(gather, ENTRY_DIRECTORY, 0, listing->directories[i]);
    if (views[gather->view].has_side_files)
        for (uint32_t i = 0; i < listing->file_count; i++)
            add_source_name(gather, ENTRY_SIDE_FILE, 0, listing->files[i]);
    for (uint32_t g = 0; g < listing->group_count; g++)
        views[gather->view].add_group(gather, g);
}

static int
compare_drafts(const void *a, const void *b)
{
    const struct draft *x = a, *y = b;
    bool x_last = x->entry.kind == ENTRY_RECUT, y_last = y->entry.kind == ENTRY_RECUT;
    int order;

    if (x_last || y_last)
        return x_last != y_last
                   ? x_last - y_last
                   : (x->entry.group > y->entry.group) - (x->entry.group < y->entry.group);
    order = strcmp(x->entry.name, y->entry.name);
    if (order)
        return order;
    if (x->named_by_file != y->named_by_file)
        return x->named_by_file - y->named_by_file;
    if (x->entry.kind != y->entry.kind)
        return (int)x->entry.kind - (int)y->entry.kind;
    if (x->entry.made.kind != y->entry.made.kind)
        return (int)x->entry.made.kind - (int)y->entry.made.kind;
    return (x->entry.group > y->entry.group) - (x->entry.group < y->entry.group);
}

static bool
have_same_name(const struct draft *a, const struct draft *b)
{
    return a->entry.kind != ENTRY_RECUT && b->entry.kind != ENTRY_RECUT &&
           strcmp(a->entry.name, b->entry.name) == 0;
}

/* Sorts the entries, and renames the directory of a checkpoint if its name is taken. Returns
 * whether an entry was renamed. */
static bool
resolve_conflicts(struct gather *gather)
{
    bool renamed = false;

    qsort(gather->drafts, gather->count, sizeof(*gather->drafts), compare_drafts);
    for (size_t i = 1; i < gather->count; i++) {
        struct draft *draft = &gather->drafts[i];
        const char *other;

        if (draft->entry.kind != ENTRY_TENSORS || draft->named_by_file ||
            !have_same_name(draft, draft - 1))
            continue;
        other = name_by_file(&gather->listing->groups[draft->entry.group]);
        problem_set_add(gather->listing->problems, other,
                        "its tensors are in a directory of this name: another entry has the name "
                        "of the checkpoint");
        draft->entry.name = other;
        draft->named_by_file = true;
        renamed = true;
    }
    return renamed;
}

/* Whether the entry is a file of the source. */
static bool
is_source_file(const struct draft *draft)
{
    return draft->entry.kind == ENTRY_SIDE_FILE || draft->entry.kind == ENTRY_SHARD ||
           draft->entry.kind == ENTRY_UNCONVERTED;
}

/* Shows the source's files of a group, because the name of a file that is made of them is taken. */
static void
show_unconverted(struct gather *gather, uint32_t group)
{
    for (size_t i = 0; i < gather->count; i++) {
        struct dir_entry *entry = &gather->drafts[i].entry;

        if (entry->kind == ENTRY_UNCONVERTED && entry->group == group)
            entry->kind = ENTRY_SIDE_FILE;
    }
}

static void
gather_drop_duplicates(struct gather *gather)
{
    size_t kept = 0;
    char name[QUOTED_SIZE];

    for (size_t i = 0; i < gather->count; i++) {
        struct draft *draft = &gather->drafts[i];

        if (kept && have_same_name(draft, &gather->drafts[kept - 1])) {
            if (is_source_file(draft) && is_source_file(&gather->drafts[kept - 1]))
                continue; /* a file that two indexes name */
            problem_set_add(gather->listing->problems,
                            name_by_file(&gather->listing->groups[draft->entry.group]),
                            "left out of a view: another entry has the name %s",
                            quoted(name, draft->entry.name, strlen(draft->entry.name)));
            if (draft->entry.kind == ENTRY_MADE)
                show_unconverted(gather, draft->entry.group);
            continue;
        }
        gather->drafts[kept++] = *draft;
    }
    gather->count = kept;
}

/* Drops the indexes of directories that were dropped, and marks those of directories that are named
 * by a file. */
static void
match_tensor_indexes(struct gather *gather)
{
    enum { DROPPED, BY_STEM, BY_FILE };
    char *directories = calloc(gather->listing->group_count + 1, 1);
    size_t kept = 0;

    if (!directories) {
        gather->failed = true;
        return;
    }
    for (size_t i = 0; i < gather->count; i++)
        if (gather->drafts[i].entry.kind == ENTRY_TENSORS)
            directories[gather->drafts[i].entry.group] =
                gather->drafts[i].named_by_file ? BY_FILE : BY_STEM;
    for (size_t i = 0; i < gather->count; i++) {
        struct dir_entry *entry = &gather->drafts[i].entry;

        if (entry->kind == ENTRY_MADE) {
            if (directories[entry->group] == DROPPED)
                continue;
            if (directories[entry->group] == BY_FILE)
                entry->made.kind = MADE_TENSOR_INDEX_BY_FILE;
        }
        gather->drafts[kept++] = gather->drafts[i];
    }
    gather->count = kept;
    free(directories);
}

static struct dir_listing *
finish_listing(struct gather *gather, struct listing *listing)
{
    struct dir_listing *out = calloc(1, sizeof(*out));
    struct dir_entry *entries = malloc((gather->count + 1) * sizeof(*entries));

    if (!out || !entries) {
        free(out);
        free(entries);
        return NULL;
    }
    atomic_init(&out->references, 1);
    for (size_t i = 0; i < gather->count; i++) {
        entries[i] = gather->drafts[i].entry;
        if (entries[i].kind == ENTRY_RECUT)
            out->recut_count++;
        else
            out->count++;
    }
    out->entries = entries;
    out->names = gather->names.data;
    gather->names = (struct buffer)BUFFER_INIT;
    out->listing = listing;
    return out;
}

struct dir_listing *
dir_listing_new(struct listing *listing, enum view_kind view, const struct view_options *options)
{
    struct gather gather = {
        .listing = listing, .view = view, .options = options, .names = BUFFER_INIT};
    struct dir_listing *out = NULL;

    gather_names(&gather);
    if (!gather.failed && !buffer_failed(&gather.names)) {
        for (size_t i = 0; i < gather.count; i++)
            if (!gather.drafts[i].entry.name && gather.drafts[i].entry.kind != ENTRY_RECUT)
                gather.drafts[i].entry.name = gather.names.data + gather.drafts[i].name;
        while (gather.count && resolve_conflicts(&gather))
            ;
        gather_drop_duplicates(&gather);
        if (view == VIEW_TENSORS)
            match_tensor_indexes(&gather);
        if (!gather.failed)
            out = finish_listing(&gather, listing);
    }
    free(gather.drafts);
    free(gather.taken);
    buffer_free(&gather.names);
    if (!out)
        listing_unref(listing);
    return out;
}

struct dir_listing *
dir_listing_ref(struct dir_listing *listing)
{
    atomic_fetch_add(&listing->references, 1);
    return listing;
}

void
dir_listing_unref(struct dir_listing *listing)
{
    if (!listing || atomic_fetch_sub(&listing->references, 1) > 1)
        return;
    listing_unref(listing->listing);
    free((void *)listing->entries);
    free(listing->names);
    free(listing);
}

void
dir_listing_report_no_room(struct dir_listing *listing, struct catalog *catalog, uint64_t bytes)
{
    struct header_budget_counters now;

    if (atomic_exchange(&listing->no_room_reported, true))
        return;
    header_budget_count(catalog_budget(catalog), &now);
    problem_set_add(listing->listing->problems, NULL,
                    "NoMemoryForHeaders: no room for the names in the directory (%" PRIu64
                    " bytes), %" PRIu64 " of %" PRIu64 " bytes are in use%s",
                    bytes, now.used, now.limit, now.advice);
}

static int
compare_name_with_entry(const void *name, const void *entry)
{
    return strcmp(name, ((const struct dir_entry *)entry)->name);
}

const struct dir_entry *
dir_listing_find(const struct dir_listing *listing, const char *name)
{
    return bsearch(name, listing->entries, listing->count, sizeof(*listing->entries),
                   compare_name_with_entry);
}

uint32_t
dir_listing_find_recut(const struct dir_listing *listing, const char *stem)
{
    uint32_t low = listing->count, high = listing->count + listing->recut_count;

    /* Groups are sorted by stem, so the re-cut checkpoints are, too. */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (strcmp(dir_entry_group(listing, &listing->entries[middle])->stem, stem) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t
dir_entry_lane(const struct dir_listing *listing, const struct dir_entry *entry)
{
    if (!listing->listing->has_lanes)
        return 0;
    switch (entry->kind) {
    case ENTRY_DIRECTORY:
    case ENTRY_SIDE_FILE:
    case ENTRY_SHARD:
    case ENTRY_INDEX:
        return listing_lane(listing->listing, entry->name);
    default:
        return dir_entry_group(listing, entry)->lane;
    }
}
