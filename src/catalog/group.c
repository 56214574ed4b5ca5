/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/group.h"

#include "base/array.h"
#include "base/buffer.h"
#include "base/hash.h"
#include "base/text.h"
#include "format/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a file is used. */
enum { USE_NONE, USE_SHARD, USE_INDEX };

struct numbered {
    const char *file;
    size_t position; /* in the sorted names */
    size_t stem; /* offset in the stems */
    uint32_t number, of;
};

struct grouper {
    const char *const *files;
    size_t count;
    const bool *is_unknown;
    struct problem_set *problems;
    unsigned char *use; /* of each file: USE_... */
    struct group *groups;
    size_t group_count;
    /* These arrays move as they grow, so the stems and members of groups are offsets in them until
     * resolve_groups() turns them into pointers. */
    struct buffer stems;
    const char **members;
    size_t member_count;
    bool failed;
};

static size_t
grouper_find_file(const struct grouper *grouper, const char *name)
{
    const char *const *found = bsearch(&name, grouper->files, grouper->count,
                                       sizeof(*grouper->files), text_compare_strings);

    return found ? (size_t)(found - grouper->files) : SIZE_MAX;
}

/* Adds a stem, followed by its suffix as shown. Returns its offset. */
static size_t
add_stem(struct grouper *grouper, const char *stem, struct suffix suffix)
{
    const char *shown = suffix.container->shown_suffix;
    size_t at = grouper->stems.length;

    buffer_add(&grouper->stems, stem, strlen(stem) + 1);
    if (shown)
        buffer_add_text(&grouper->stems, shown);
    else
        buffer_add(&grouper->stems, suffix.text, suffix.length);
    buffer_add_char(&grouper->stems, '\0');
    return at;
}

static void
add_member(struct grouper *grouper, const char *name)
{
    if (!array_add(grouper->members, grouper->member_count, name))
        grouper->failed = true;
}

/* Adds a group whose members start at index `first`. `stem`: an offset. */
static void
add_group(struct grouper *grouper, enum group_kind kind, const struct container *container,
          size_t stem, const char *index, size_t first, uint32_t missing)
{
    const struct group group = {
        .container = container,
        .stem = (const char *)stem,
        .index = index,
        .members = (const char *const *)first,
        .member_count = (uint32_t)(grouper->member_count - first),
        .missing_count = missing,
        .kind = kind,
    };

    if (!array_add(grouper->groups, grouper->group_count, group))
        grouper->failed = true;
}

/* Whether the name of a file gives it this stem and suffix. */
static bool
is_named_after(const char *file, const char *stem, struct suffix suffix)
{
    struct suffix own;
    char own_stem[256];

    return group_split_file_name(file, own_stem, &own) && own.container == suffix.container &&
           own.length == suffix.length && strncmp(own.text, suffix.text, suffix.length) == 0 &&
           strcmp(own_stem, stem) == 0;
}

/* The index could not be read. Any file named after it may be a shard, so all of them are members
 * of the group, and none is another checkpoint. If the index is a link that leads to no file, the
 * group's `index` is NULL, and no group is added if there are no members. */
static void
group_by_unread_index(struct grouper *grouper, const struct group_index *named)
{
    bool is_file = grouper_find_file(grouper, named->file) != SIZE_MAX;
    size_t first = grouper->member_count;
    struct suffix suffix;
    char stem[256];

    if (!group_split_index_name(named->file, stem, &suffix))
        return;
    for (size_t i = 0; i < grouper->count; i++) {
        if (grouper->use[i] != USE_NONE || !is_named_after(grouper->files[i], stem, suffix))
            continue;
        grouper->use[i] = USE_SHARD;
        add_member(grouper, grouper->files[i]);
    }
    if (!is_file && grouper->member_count == first)
        return;
    add_group(grouper, GROUP_INDEX, suffix.container, add_stem(grouper, stem, suffix),
              is_file ? named->file : NULL, first, 0);
    if (!grouper->failed)
        grouper->groups[grouper->group_count - 1].index_error = named->error;
}

static void
group_by_index(struct grouper *grouper, const struct group_index *named)
{
    size_t first = grouper->member_count, most = problem_set_named_max(grouper->problems);
    struct problem_set *problems = grouper->problems;
    struct suffix suffix;
    uint32_t missing = 0;
    char stem[256];

    if (!group_split_index_name(named->file, stem, &suffix))
        return;
    if (suffix.container->is_converted)
        problems = NULL; /* as in group_numbered_set() */
    if (named->index->shard_count == 0) {
        problem_set_add(problems, named->file,
                        "the index names no shards, so it defines no checkpoint");
        return;
    }
    for (uint32_t i = 0; i < named->index->shard_count; i++) {
        const char *shard = named->index->shards[i];
        size_t at = grouper_find_file(grouper, shard);

        if (at == SIZE_MAX) {
            char name[QUOTED_SIZE];

            if (missing++ < most)
                problem_set_add(
                    problems, named->file,
                    "the index names %s, which does not exist: its tensors are missing, and "
                    "there is no merged file",
                    quoted(name, shard, strlen(shard)));
            continue;
        }
        grouper->use[at] = USE_SHARD;
        add_member(grouper, grouper->files[at]);
    }
    if (missing > most)
        problem_set_add(problems, named->file,
                        "%u of the %u shards that the index names do not exist: their tensors are "
                        "missing, and there is no merged file",
                        missing, named->index->shard_count);
    add_group(grouper, GROUP_INDEX, suffix.container, add_stem(grouper, stem, suffix), named->file,
              first, missing);
}

static int
compare_numbered(const void *a, const void *b, void *stems)
{
    const struct numbered *x = a, *y = b;
    int order = strcmp((char *)stems + x->stem, (char *)stems + y->stem);

    if (!order)
        order = strcmp(group_file_suffix(x->file).text, group_file_suffix(y->file).text);
    if (order)
        return order;
    if (x->of != y->of)
        return x->of < y->of ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return strcmp(x->file, y->file);
}

/* Reports the missing shards from `first` to `last` in one line, since there may be 10^9 of them.
 * *lines: how many lines may still be added. Adds to *reported the number of shards. */
static void
report_missing_shards(struct problem_set *problems, const struct numbered *set, const char *stem,
                      uint32_t first, uint32_t last, size_t *lines, uint32_t *reported)
{
    if (first > last || *lines == 0)
        return;
    --*lines;
    *reported += last - first + 1;
    if (first == last)
        problem_set_add(
            problems, set->file,
            "shard %u of %u of %s does not exist: its tensors are missing, and there is "
            "no merged file",
            first, set->of, stem);
    else
        problem_set_add(problems, set->file,
                        "shards %u to %u of %u of %s do not exist: their tensors are missing, and "
                        "there is no merged file",
                        first, last, set->of, stem);
}

/* Makes a group of those files of the set that belong to no index's group. The files have the same
 * stem, suffix and M and are sorted by number. Reports missing shards, unless the container is
 * converted: then only the content shows whether the files are a checkpoint. */
static void
group_numbered_set(struct grouper *grouper, const struct numbered *set, size_t count)
{
    const struct container *container = group_file_suffix(set[0].file).container;
    struct problem_set *problems = container->is_converted ? NULL : grouper->problems;
    size_t first = grouper->member_count, lines = problem_set_named_max(grouper->problems);
    uint32_t expected = 1, found = 0, indexed = 0, present = 0, reported = 0;
    const char *name = grouper->stems.data + set[0].stem;
    char stem[QUOTED_SIZE];

    quoted(stem, name, strlen(name));
    for (size_t i = 0; i < count; i++)
        indexed += grouper->use[set[i].position] == USE_SHARD;
    if (indexed == count)
        return;
    for (size_t i = 0; i < count; i++) {
        bool is_second = i > 0 && set[i].number == set[i - 1].number;

        report_missing_shards(problems, &set[0], stem, expected, set[i].number - 1, &lines,
                              &reported);
        expected = set[i].number + 1;
        present += !is_second;
        if (grouper->use[set[i].position] == USE_SHARD)
            continue;
        if (indexed)
            problem_set_add(problems, set[i].file,
                            "an index names other shards of %s, but not this one", stem);
        if (is_second)
            problem_set_add(
                problems, set[i].file,
                "a second file for shard %u of %u: tensors that are in both are not shown",
                set[i].number, set[i].of);
        else
            found++;
        grouper->use[set[i].position] = USE_SHARD;
        add_member(grouper, set[i].file);
    }
    report_missing_shards(problems, &set[0], stem, expected, set[0].of, &lines, &reported);
    if (set[0].of - present > reported)
        problem_set_add(problems, set[0].file,
                        "%u of the %u shards of %s do not exist: their tensors are missing, and "
                        "there is no merged file",
                        set[0].of - present, set[0].of, stem);
    add_group(grouper, GROUP_NUMBERED, container, set[0].stem, NULL, first, set[0].of - found);
}

static void
group_numbered(struct grouper *grouper)
{
    struct numbered *all = malloc((grouper->count + 1) * sizeof(*all));
    size_t count = 0;
    char stem[256];

    if (!all) {
        grouper->failed = true;
        return;
    }
    for (size_t i = 0; i < grouper->count; i++) {
        struct numbered *one = &all[count];

        if (grouper->use[i] != USE_INDEX &&
            group_numbered_name(grouper->files[i], stem, &one->number, &one->of)) {
            one->file = grouper->files[i];
            one->position = i;
            one->stem = add_stem(grouper, stem, group_file_suffix(one->file));
            count++;
        }
    }
    if (count && !buffer_failed(&grouper->stems)) {
        qsort_r(all, count, sizeof(*all), compare_numbered, grouper->stems.data);
        for (size_t i = 0, end; i < count; i = end) {
            for (end = i + 1; end < count && all[end].of == all[i].of &&
                              strcmp(grouper->stems.data + all[end].stem,
                                     grouper->stems.data + all[i].stem) == 0 &&
                              strcmp(group_file_suffix(all[end].file).text,
                                     group_file_suffix(all[i].file).text) == 0;
                 end++)
                ;
            group_numbered_set(grouper, all + i, end - i);
        }
    }
    free(all);
}

void
group_report_misnumbered(struct problem_set *problems, const char *file, uint32_t number,
                         uint32_t of)
{
    problem_set_add(problems, file,
                    "named as shard %" PRIu32 " of %" PRIu32
                    ", expected a number from 1 to the total; treated as a separate checkpoint",
                    number, of);
}

static void
group_singles(struct grouper *grouper)
{
    uint32_t number, of;
    char stem[256];

    for (size_t i = 0; i < grouper->count; i++) {
        const struct suffix suffix = group_file_suffix(grouper->files[i]);
        size_t first = grouper->member_count;

        if (grouper->use[i] != USE_NONE || !group_single_name(grouper->files[i], stem))
            continue;
        if (!suffix.container->is_converted &&
            group_misnumbered_name(grouper->files[i], &number, &of))
            group_report_misnumbered(grouper->problems, grouper->files[i], number, of);
        grouper->use[i] = USE_SHARD;
        add_member(grouper, grouper->files[i]);
        add_group(grouper, GROUP_SINGLE, suffix.container, add_stem(grouper, stem, suffix), NULL,
                  first, 0);
    }
}

int
group_compare_names(const struct group *x, const struct group *y)
{
    int order = strcmp(x->stem, y->stem);

    if (!order)
        order = container_compare(x->container, y->container);
    if (!order && strcmp(x->suffix, ST_SUFFIX) != 0 && strcmp(y->suffix, ST_SUFFIX) != 0)
        return strcmp(x->suffix, y->suffix);
    if (order)
        return order;
    return (strcmp(y->suffix, ST_SUFFIX) == 0) - (strcmp(x->suffix, ST_SUFFIX) == 0);
}

/* Whether the stem of the files differs from the one that is shown. Loaders prefer such files. */
static bool
has_hidden_stem(const struct group *group)
{
    const char *file = group_file(group);

    return group_hidden_stem_length(group->container, file, strcspn(file, ".-")) > 0;
}

/* Whether the index has the name that transformers reads. */
static bool
has_usual_index(const struct group *group)
{
    char usual[300];

    if (!group->index)
        return false;
    group_name_index(group->stem, group->suffix, usual);
    return strcmp(group->index, usual) == 0;
}

/* Groups of one stem, by precedence: with an index, a complete numbered set, a single file, an
 * incomplete set, an index of which no shard exists. */
static int
precedence(const struct group *group)
{
    if (group->kind == GROUP_INDEX)
        return group->member_count > 0 || group->index_error ? 0 : 4;
    if (group->kind == GROUP_SINGLE)
        return 2;
    return group->missing_count == 0 ? 1 : 3;
}

static int
compare_groups(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    int order = group_compare_names(x, y);

    if (!order)
        order = precedence(x) - precedence(y);
    if (order)
        return order;
    if (x->missing_count != y->missing_count)
        return x->missing_count < y->missing_count ? -1 : 1;
    if (has_hidden_stem(x) != has_hidden_stem(y))
        return has_hidden_stem(x) ? -1 : 1;
    if (has_usual_index(x) != has_usual_index(y))
        return has_usual_index(x) ? -1 : 1;
    if (x->index && y->index && (order = strcmp(x->index, y->index)))
        return order;
    if (x->member_count && y->member_count)
        return strcmp(x->members[0], y->members[0]);
    return x->member_count ? -1 : 1;
}

/* Sets the pointers that were offsets, and sorts the members and the groups. */
static void
resolve_groups(struct grouper *grouper)
{
    for (size_t i = 0; i < grouper->group_count; i++) {
        struct group *group = &grouper->groups[i];

        group->stem = grouper->stems.data + (size_t)group->stem;
        group->suffix = group->stem + strlen(group->stem) + 1;
        if (group->member_count == 0) {
            group->members = NULL; /* there may be no array to point into */
            continue;
        }
        group->members = grouper->members + (size_t)group->members;
        qsort(grouper->members + (group->members - (const char *const *)grouper->members),
              group->member_count, sizeof(*grouper->members), text_compare_strings);
    }
    if (grouper->group_count)
        qsort(grouper->groups, grouper->group_count, sizeof(*grouper->groups), compare_groups);
}

static void
set_group_use(struct grouper *grouper, const struct group *group, unsigned char of_index,
              unsigned char of_members)
{
    if (group->index)
        grouper->use[grouper_find_file(grouper, group->index)] = of_index;
    if (group->invalid_index)
        grouper->use[grouper_find_file(grouper, group->invalid_index)] = of_index;
    for (uint32_t i = 0; i < group->member_count; i++)
        grouper->use[grouper_find_file(grouper, group->members[i])] = of_members;
}

size_t
group_first_of_stem(const struct group *groups, size_t count, const char *stem)
{
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (strcmp(groups[middle].stem, stem) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Finds the group whose files are named after an invalid index. If there is none, the index is an
 * ordinary file. */
static void
assign_invalid_index(struct grouper *grouper, const struct group_index *named)
{
    size_t at = grouper_find_file(grouper, named->file);
    struct suffix suffix;
    char stem[256];

    if (at == SIZE_MAX || !group_split_index_name(named->file, stem, &suffix))
        return;
    for (size_t i = group_first_of_stem(grouper->groups, grouper->group_count, stem);
         i < grouper->group_count; i++) {
        struct group *group = &grouper->groups[i];

        if (strcmp(group->stem, stem) != 0)
            break;
        if (group->kind == GROUP_INDEX || !is_named_after(group_file(group), stem, suffix))
            continue;
        group->invalid_index = named->file;
        return;
    }
    grouper->use[at] = USE_NONE;
}

/* An invalid index is an ordinary file, too, if no index is generated in its place. */
static void
show_invalid_indexes(struct grouper *grouper)
{
    for (size_t i = 0; i < grouper->group_count; i++) {
        const struct group *group = &grouper->groups[i];

        if (group->invalid_index && (group->kind == GROUP_SINGLE || group->is_unchanged))
            grouper->use[grouper_find_file(grouper, group->invalid_index)] = USE_NONE;
    }
}

/* The safetensors groups of one stem. */
struct safetensors_stem {
    struct group *first; /* NULL: there is none */
    uint32_t count; /* adjacent */
    bool is_unindexed; /* all with the suffix of `first` are sets whose index transformers, at
                          least, does not find */
};

static void
safetensors_stem_add(struct safetensors_stem *stem, struct group *group)
{
    if (!stem->first || strcmp(stem->first->stem, group->stem) != 0)
        *stem = (struct safetensors_stem){.first = group, .is_unindexed = true};
    stem->count++;
    if (strcmp(stem->first->suffix, group->suffix) == 0)
        stem->is_unindexed &= group->kind == GROUP_NUMBERED
                                  ? !group->invalid_index
                                  : group->index && !has_usual_index(group);
}

/* Marks each group of a converted container whose stem also exists as safetensors. If that is only
 * a set without an index, or with one of another name than transformers reads, the set is shown
 * unchanged: transformers prefers PyTorch weights to it, but not to a merged file or a generated
 * index. */
static void
find_converted_duplicates(struct grouper *grouper, bool *is_dropped)
{
    struct safetensors_stem last = {0};

    for (size_t i = 0; i < grouper->group_count; i++) {
        struct group *group = &grouper->groups[i];

        if (group->container == &container_safetensors)
            safetensors_stem_add(&last, group);
        if (!group->container->is_converted || !last.first ||
            strcmp(last.first->stem, group->stem) != 0)
            continue;
        is_dropped[i] = true;
        for (uint32_t j = 0; last.is_unindexed && j < last.count; j++)
            last.first[j].is_unchanged = true;
        last.is_unindexed = false; /* all are marked */
    }
}

static void
drop_groups(struct grouper *grouper, const bool *is_dropped)
{
    size_t kept = 0;

    for (size_t i = 0; i < grouper->group_count; i++)
        if (is_dropped[i])
            set_group_use(grouper, &grouper->groups[i], USE_NONE, USE_NONE);
        else
            grouper->groups[kept++] = grouper->groups[i];
    if (kept == grouper->group_count)
        return;
    grouper->group_count = kept;
    /* A file of a dropped group may also be in a group that is kept. */
    for (size_t i = 0; i < kept; i++)
        set_group_use(grouper, &grouper->groups[i], USE_INDEX, USE_SHARD);
}

static errint_t
drop_converted_duplicates(struct grouper *grouper)
{
    bool *is_dropped = calloc(grouper->group_count + 1, sizeof(*is_dropped));

    if (!is_dropped)
        return -ENOMEM;
    find_converted_duplicates(grouper, is_dropped);
    drop_groups(grouper, is_dropped);
    free(is_dropped);
    return 0;
}

/* Writes the name of the file that aria2 downloads, which may not exist yet. Returns false if
 * `control` is not the name of a control file. */
static bool
name_of_download(const char *control, char name[NAME_MAX + 1])
{
    if (!text_has_suffix(control, ARIA2_CONTROL_SUFFIX))
        return false;
    snprintf(name, NAME_MAX + 1, "%.*s", (int)(strlen(control) - strlen(ARIA2_CONTROL_SUFFIX)),
             control);
    return true;
}

/* Whether the directory has a file that loaders take for safetensors weights or their index, or
 * such a file is being downloaded. */
static bool
has_safetensors(const struct grouper *grouper, const struct group_index *indexes, size_t count)
{
    char name[NAME_MAX + 1];

    for (size_t i = 0; i < grouper->group_count; i++)
        if (grouper->groups[i].container == &container_safetensors)
            return true;
    for (size_t i = 0; i < count; i++)
        if (group_index_container(indexes[i].file) == &container_safetensors)
            return true;
    for (size_t i = 0; i < grouper->count; i++)
        if (name_of_download(grouper->files[i], name) &&
            group_file_suffix(name).container == &container_safetensors)
            return true;
    return false;
}

static bool
is_convertible(const struct group *group)
{
    return group->container->is_converted && !group_is_name_of_other_format(group_file(group));
}

/* Marks the groups of converted containers whose files are not converted: all if there are several,
 * because loaders choose among files by their suffixes. */
static void
mark_unconverted_groups(struct grouper *grouper, bool converts)
{
    size_t convertible = 0;

    for (size_t i = 0; i < grouper->group_count; i++)
        convertible += is_convertible(&grouper->groups[i]);
    for (size_t i = 0; i < grouper->group_count; i++) {
        struct group *group = &grouper->groups[i];

        if (group->container->is_converted)
            group->is_unchanged = !converts || convertible > 1 || !is_convertible(group);
    }
}

static void
mark_second_groups(struct grouper *grouper)
{
    for (size_t i = 1; i < grouper->group_count; i++) {
        struct group *group = &grouper->groups[i];
        const struct group *previous = group - 1;
        char stem[QUOTED_SIZE];

        group->second = strcmp(group->stem, previous->stem) == 0;
        group->shadowed = group->second && strcmp(group->suffix, previous->suffix) == 0;
        if (group->shadowed && group->container == &container_safetensors && !group->is_unchanged)
            problem_set_add(grouper->problems, group_file(group),
                            "another checkpoint has the name %s: not shown in merged/, and "
                            "neither is re-cut; its tensors have their own directory",
                            quoted(stem, group->stem, strlen(group->stem)));
    }
}

/* Finds the members whose download by aria2 is not finished. */
static void
find_unfinished(struct grouper *grouper)
{
    char name[NAME_MAX + 1], *member = name;

    for (size_t i = 0; i < grouper->count; i++) {
        if (!name_of_download(grouper->files[i], name))
            continue;
        for (size_t j = 0; j < grouper->group_count; j++) {
            struct group *group = &grouper->groups[j];

            if (bsearch(&member, group->members, group->member_count, sizeof(*group->members),
                        text_compare_strings))
                group->unfinished += hash64(name, strlen(name), 0) | 1;
        }
    }
}

/* Turns unknown members into missing ones. Returns false if the group has neither a member nor an
 * index then. */
static bool
remove_unknown_members(const struct grouper *grouper, struct group *group)
{
    const char **members = (const char **)(uintptr_t)group->members;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < group->member_count; i++)
        if (!grouper->is_unknown[grouper_find_file(grouper, members[i])])
            members[kept++] = members[i];
    group->missing_count += group->member_count - kept;
    group->member_count = kept;
    return kept > 0 || group->index;
}

static void
leave_out_unknown(struct grouper *grouper)
{
    size_t kept = 0;

    if (!grouper->is_unknown)
        return;
    for (size_t i = 0; i < grouper->group_count; i++)
        if (remove_unknown_members(grouper, &grouper->groups[i]))
            grouper->groups[kept++] = grouper->groups[i];
    grouper->group_count = kept;
}

static void
gather_files(const struct grouper *grouper, struct grouping *grouping)
{
    for (size_t i = 0; i < grouper->count; i++)
        if (grouper->use[i] == USE_NONE && !(grouper->is_unknown && grouper->is_unknown[i]))
            grouping->files[grouping->file_count++] = grouper->files[i];
}

errint_t
group_files(const char *const *files, size_t count, const bool *is_unknown,
            const struct group_index *indexes, size_t index_count, bool converts,
            struct problem_set *problems, struct grouping *grouping)
{
    struct grouper grouper = {.files = files,
                              .count = count,
                              .is_unknown = is_unknown,
                              .problems = problems,
                              .use = calloc(count + 1, 1),
                              .stems = BUFFER_INIT};
    errint_t error = -ENOMEM;

    memset(grouping, 0, sizeof(*grouping));
    grouping->files = malloc((count + 1) * sizeof(*grouping->files));
    if (!grouper.use || !grouping->files)
        goto out;
    for (size_t i = 0; i < index_count; i++) {
        size_t at = grouper_find_file(&grouper, indexes[i].file);

        if (at != SIZE_MAX)
            grouper.use[at] = USE_INDEX;
    }
    for (size_t i = 0; i < index_count; i++)
        if (indexes[i].index)
            group_by_index(&grouper, &indexes[i]);
    for (size_t i = 0; i < index_count; i++)
        if (indexes[i].error && indexes[i].error != -EBADMSG)
            group_by_unread_index(&grouper, &indexes[i]);
    group_numbered(&grouper);
    group_singles(&grouper);
    if (grouper.failed || buffer_failed(&grouper.stems))
        goto out;
    resolve_groups(&grouper);
    for (size_t i = 0; i < index_count; i++)
        if (indexes[i].error == -EBADMSG)
            assign_invalid_index(&grouper, &indexes[i]);
    if (drop_converted_duplicates(&grouper))
        goto out;
    mark_second_groups(&grouper);
    mark_unconverted_groups(&grouper, converts && !has_safetensors(&grouper, indexes, index_count));
    show_invalid_indexes(&grouper);
    find_unfinished(&grouper);
    leave_out_unknown(&grouper);
    gather_files(&grouper, grouping);
    error = 0;

out:
    grouping->groups = grouper.groups;
    grouping->group_count = grouper.group_count;
    grouping->members = grouper.members;
    grouping->stems = grouper.stems.data;
    free(grouper.use);
    if (error)
        grouping_free(grouping);
    return error;
}

void
grouping_free(struct grouping *grouping)
{
    free(grouping->groups);
    free(grouping->members);
    free(grouping->stems);
    free(grouping->files);
    memset(grouping, 0, sizeof(*grouping));
}
