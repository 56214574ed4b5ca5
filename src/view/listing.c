/* SPDX-License-Identifier: Apache-2.0 */
#include "view/listing.h"

#include "base/buffer.h"
#include "catalog/group.h"

#include <stdlib.h>
#include <string.h>

/* An entry while names are gathered: made names may still move. */
struct draft {
    struct dir_entry entry;
    size_t made; /* place in `names`, where entry.name is NULL */
    bool second_choice; /* already has its other name */
};

struct gather {
    const struct listing *listing;
    const char *directory;
    struct draft *drafts;
    size_t count, capacity;
    struct buffer names;
    bool failed;
};

static struct draft *
add(struct gather *gather, enum dir_entry_kind kind, uint32_t group)
{
    if (gather->count == gather->capacity) {
        size_t capacity = gather->capacity ? 2 * gather->capacity : 64;
        struct draft *drafts = realloc(gather->drafts, capacity * sizeof(*drafts));

        if (!drafts) {
            gather->failed = true;
            return NULL;
        }
        gather->drafts = drafts;
        gather->capacity = capacity;
    }
    gather->drafts[gather->count] = (struct draft){.entry = {NULL, kind, group}};
    return &gather->drafts[gather->count++];
}

static void
add_source(struct gather *gather, enum dir_entry_kind kind, uint32_t group, const char *name)
{
    struct draft *draft = add(gather, kind, group);

    if (draft)
        draft->entry.name = name;
}

static void
add_made(struct gather *gather, enum dir_entry_kind kind, uint32_t group, const char *base,
         const char *suffix)
{
    struct draft *draft;

    if (strlen(base) + strlen(suffix) > 255) {
        problem_set_add(gather->listing->problems, gather->directory, base,
                        "left out: with %s its name would be over 255 bytes", suffix);
        return;
    }
    draft = add(gather, kind, group);
    if (!draft)
        return;
    draft->made = gather->names.length;
    buffer_add(&gather->names, base, strlen(base));
    buffer_add(&gather->names, suffix, strlen(suffix) + 1);
}

/* The name a checkpoint's directory has when its stem is taken: a file name of
 * the source, so no other checkpoint of the directory has it. */
static const char *
other_name(const struct group *group)
{
    return group->member_count ? group->members[0] : group->index;
}

static void
add_tensor_views(struct gather *gather, enum view_kind view, uint32_t g)
{
    const struct group *group = &gather->listing->groups[g];
    const char *name = group->shadowed ? other_name(group) : group->stem;
    struct draft *draft;

    add_made(gather, ENTRY_TENSORS, g, name, "");
    if (group->shadowed && gather->count) {
        draft = &gather->drafts[gather->count - 1];
        draft->second_choice = true;
    }
    if (view == VIEW_TENSORS)
        add_made(gather, ENTRY_TENSOR_INDEX, g, name, ".index.json");
}

/* Whether this checkpoint is to be cut anew. */
static bool
is_cut(struct gather *gather, const struct view_options *options, const struct group *group)
{
    if (!options->shards && !options->shard_size)
        return false;
    /* peft reads an adapter from one file only. */
    if (strncmp(group->stem, "adapter_model", strlen("adapter_model")) == 0)
        return false;
    if (strlen(group->stem) + strlen("-000001-of-000001.safetensors") > 255) {
        problem_set_add(gather->listing->problems, gather->directory, other_name(group),
                        "not cut anew: the names of the shards would be over 255 bytes");
        return false;
    }
    return true;
}

static void
add_shards(struct gather *gather, const struct view_options *options, uint32_t g)
{
    const struct group *group = &gather->listing->groups[g];
    char index[300];

    if (group->shadowed)
        return;
    if (is_cut(gather, options, group)) {
        add(gather, ENTRY_RECUT, g);
        return;
    }
    for (uint32_t i = 0; i < group->member_count; i++)
        add_source(gather, ENTRY_SHARD, g, group->members[i]);
    if (group->index) {
        add_source(gather, ENTRY_INDEX, g, group->index);
    } else if (group->kind == GROUP_NUMBERED) {
        group_name_index(group->stem, index);
        add_made(gather, ENTRY_SHARD_INDEX, g, index, "");
    }
}

static void
gather_names(struct gather *gather, enum view_kind view, const struct view_options *options)
{
    const struct listing *listing = gather->listing;

    for (uint32_t i = 0; i < listing->directory_count; i++)
        add_source(gather, ENTRY_DIRECTORY, 0, listing->directories[i]);
    if (view == VIEW_MERGED || view == VIEW_SHARDS)
        for (uint32_t i = 0; i < listing->file_count; i++)
            add_source(gather, ENTRY_SIDE_FILE, 0, listing->files[i]);
    for (uint32_t g = 0; g < listing->group_count; g++) {
        if (view == VIEW_MERGED && !listing->groups[g].shadowed)
            add_made(gather, ENTRY_MERGED, g, listing->groups[g].stem, ".safetensors");
        else if (view == VIEW_SHARDS)
            add_shards(gather, options, g);
        else if (view == VIEW_TENSORS || view == VIEW_NPY)
            add_tensor_views(gather, view, g);
    }
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
    if (x->second_choice != y->second_choice)
        return x->second_choice - y->second_choice;
    if (x->entry.kind != y->entry.kind)
        return (int)x->entry.kind - (int)y->entry.kind;
    return (x->entry.group > y->entry.group) - (x->entry.group < y->entry.group);
}

static bool
same_name(const struct draft *a, const struct draft *b)
{
    return a->entry.kind != ENTRY_RECUT && b->entry.kind != ENTRY_RECUT &&
           strcmp(a->entry.name, b->entry.name) == 0;
}

/* Sorts, and lets the weaker of two with one name try its other name: only a
 * checkpoint's directory has one. True when something got a new name. */
static bool
settle_names(struct gather *gather)
{
    bool renamed = false;

    qsort(gather->drafts, gather->count, sizeof(*gather->drafts), compare_drafts);
    for (size_t i = 1; i < gather->count; i++) {
        struct draft *draft = &gather->drafts[i];
        const char *other;

        if (draft->entry.kind != ENTRY_TENSORS || draft->second_choice ||
            !same_name(draft, draft - 1))
            continue;
        other = other_name(&gather->listing->groups[draft->entry.group]);
        problem_set_add(gather->listing->problems, gather->directory, other,
                        "its tensors are in a directory of this name: the name of the checkpoint "
                        "is taken by something else in the directory");
        draft->entry.name = other;
        draft->second_choice = true;
        renamed = true;
    }
    return renamed;
}

static void
drop_unnamed(struct gather *gather)
{
    size_t kept = 0;
    char name[QUOTED_SIZE];

    for (size_t i = 0; i < gather->count; i++) {
        struct draft *draft = &gather->drafts[i];

        if (kept && same_name(draft, &gather->drafts[kept - 1])) {
            if (draft->entry.kind == ENTRY_SHARD &&
                gather->drafts[kept - 1].entry.kind == ENTRY_SHARD)
                continue; /* one file that two indexes name */
            problem_set_add(gather->listing->problems, gather->directory,
                            other_name(&gather->listing->groups[draft->entry.group]),
                            "left out of a view: the name %s is taken by something else in the "
                            "directory",
                            quoted(name, draft->entry.name, strlen(draft->entry.name)));
            continue;
        }
        gather->drafts[kept++] = *draft;
    }
    gather->count = kept;
}

static struct dir_listing *
finish(struct gather *gather, struct listing *listing)
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
dir_listing_new(struct listing *listing, const char *directory, enum view_kind view,
                const struct view_options *options)
{
    struct gather gather = {.listing = listing, .directory = directory, .names = BUFFER_INIT};
    struct dir_listing *out = NULL;

    gather_names(&gather, view, options);
    if (!gather.failed && !buffer_failed(&gather.names)) {
        for (size_t i = 0; i < gather.count; i++)
            if (!gather.drafts[i].entry.name && gather.drafts[i].entry.kind != ENTRY_RECUT)
                gather.drafts[i].entry.name = gather.names.data + gather.drafts[i].made;
        while (gather.count && settle_names(&gather))
            ;
        drop_unnamed(&gather);
        out = finish(&gather, listing);
    }
    free(gather.drafts);
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

const struct dir_entry *
dir_listing_find(const struct dir_listing *listing, const char *name)
{
    uint32_t low = 0, high = listing->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(listing->entries[middle].name, name);

        if (order == 0)
            return &listing->entries[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const struct dir_entry *
dir_listing_find_recut(const struct dir_listing *listing, const char *stem)
{
    const struct dir_entry *entries = listing->entries + listing->count;
    uint32_t low = 0, high = listing->recut_count;

    /* Groups are sorted by stem, and so are these. */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(listing->listing->groups[entries[middle].group].stem, stem);

        if (order == 0)
            return &entries[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}
