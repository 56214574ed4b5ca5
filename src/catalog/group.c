/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/group.h"

#include "format/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool
ends_with(const char *text, size_t length, const char *end)
{
    size_t end_length = strlen(end);

    return length >= end_length && memcmp(text + length - end_length, end, end_length) == 0;
}

/* stem = a + (b ? "." + b : ""); false when it does not fit or is empty. */
static bool
make_stem(char stem[256], const char *a, size_t a_length, const char *b, size_t b_length)
{
    if (a_length == 0 || a_length + 1 + b_length > 255)
        return false;
    if (!stem)
        return true;
    memcpy(stem, a, a_length);
    if (b_length) {
        stem[a_length++] = '.';
        memcpy(stem + a_length, b, b_length);
    }
    stem[a_length + b_length] = '\0';
    return true;
}

/* Whether an index's name goes on so behind the suffix: .index.json, .index.VARIANT.json or
 * .VARIANT.index.json. The variant is empty in the first. */
static bool
split_index_rest(const char *rest, const char **variant, size_t *length)
{
    const char *end;

    *variant = rest;
    *length = 0;
    if (strcmp(rest, ".index.json") == 0)
        return true;
    if (!ends_with(rest, strlen(rest), ".json"))
        return false;
    end = rest + strlen(rest) - strlen(".json");
    if (strncmp(rest, ".index.", 7) == 0)
        rest += 7;
    else if (*rest == '.' && ends_with(rest, (size_t)(end - rest), ".index")) {
        rest += 1;
        end -= strlen(".index");
    } else
        return false;
    if (end <= rest || memchr(rest, '.', (size_t)(end - rest)))
        return false;
    *variant = rest;
    *length = (size_t)(end - rest);
    return true;
}

/* As group_index_name(); gives the suffix, too. */
static bool
split_index_name(const char *file, char stem[256], const char **suffix, size_t *suffix_length)
{
    const char *variant;
    size_t length, end;

    /* The last suffix: a stem may hold one, too. */
    for (end = strlen(file); end > 0; end--) {
        if (file[end] != '.')
            continue;
        *suffix_length = st_suffix_length(file, end);
        if (!*suffix_length || !split_index_rest(file + end, &variant, &length))
            continue;
        *suffix = file + end - *suffix_length;
        return make_stem(stem, file, (size_t)(*suffix - file), variant, length);
    }
    return false;
}

bool
group_index_name(const char *file, char stem[256])
{
    const char *suffix;
    size_t length;

    return split_index_name(file, stem, &suffix, &length);
}

void
group_name_index(const char *stem, const char *suffix, char file[300])
{
    static const char *const known[] = {"model.", "diffusion_pytorch_model.", "pytorch_model."};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        size_t length = strlen(known[i]);

        if (strncmp(stem, known[i], length) == 0 && stem[length] && !strchr(stem + length, '.')) {
            snprintf(file, 300, "%.*s%s.index.%s.json", (int)length - 1, stem, suffix,
                     stem + length);
            return;
        }
    }
    snprintf(file, 300, "%s%s.index.json", stem, suffix);
}

/* Reads at least five digits backwards from `end`; NULL when there are none. */
static const char *
digits_before(const char *start, const char *end, uint32_t *value)
{
    const char *at = end;
    uint64_t sum = 0, unit = 1;

    while (at > start && at[-1] >= '0' && at[-1] <= '9' && end - at < 9) {
        sum += (uint64_t)(*--at - '0') * unit;
        unit *= 10;
    }
    *value = (uint32_t)sum;
    return end - at >= 5 ? at : NULL;
}

/* STEM-NNNNN-of-MMMMM ending at `end`; gives where the stem ends. */
static const char *
numbered_stem_end(const char *file, const char *end, uint32_t *number, uint32_t *of)
{
    const char *at = digits_before(file, end, of);

    if (!at || at - file < 4 || memcmp(at - 4, "-of-", 4) != 0)
        return NULL;
    at = digits_before(file, at - 4, number);
    if (!at || at - file < 2 || at[-1] != '-')
        return NULL;
    return at - 1;
}

/* The suffix of a safetensors file; "": it is none. */
static const char *
file_suffix(const char *file)
{
    size_t length = strlen(file);

    return file + length - st_suffix_length(file, length);
}

/* As group_numbered_name(), with numbers of any size. */
static bool
split_numbered_name(const char *file, char stem[256], uint32_t *number, uint32_t *of)
{
    const char *end = file_suffix(file), *stem_end, *dot;

    if (!*end)
        return false;
    stem_end = numbered_stem_end(file, end, number, of);
    if (stem_end)
        return make_stem(stem, file, (size_t)(stem_end - file), NULL, 0);
    dot = memrchr(file, '.', (size_t)(end - file));
    if (!dot || dot + 1 == end)
        return false;
    stem_end = numbered_stem_end(file, dot, number, of);
    return stem_end &&
           make_stem(stem, file, (size_t)(stem_end - file), dot + 1, (size_t)(end - dot - 1));
}

bool
group_numbered_name(const char *file, char stem[256], uint32_t *number, uint32_t *of)
{
    return split_numbered_name(file, stem, number, of) && *number >= 1 && *number <= *of;
}

bool
group_single_name(const char *file, char stem[256])
{
    const char *suffix = file_suffix(file);

    return *suffix && make_stem(stem, file, (size_t)(suffix - file), NULL, 0);
}

/* ---- grouping ---- */

enum { FREE, SHARD, INDEX };

struct numbered {
    const char *file;
    size_t position; /* in the sorted names */
    size_t stem; /* where in the stems' text */
    uint32_t number, of;
};

struct work {
    const char *const *files;
    size_t count;
    const char *directory;
    struct problem_set *problems;
    unsigned char *use; /* of each file: FREE, SHARD or INDEX */
    struct group *groups;
    size_t group_count, group_capacity;
    /* While groups are gathered their stems and members are places in these;
     * they become pointers when nothing grows any more. */
    struct buffer stems;
    const char **members;
    size_t member_count, member_capacity;
    bool failed;
};

static int
compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static size_t
find_file(const struct work *work, const char *name)
{
    const char *const *found =
        bsearch(&name, work->files, work->count, sizeof(*work->files), compare_names);

    return found ? (size_t)(found - work->files) : SIZE_MAX;
}

/* Behind each stem is its suffix. */
static size_t
add_stem(struct work *work, const char *stem, const char *suffix, size_t length)
{
    size_t at = work->stems.length;

    buffer_add(&work->stems, stem, strlen(stem) + 1);
    buffer_add(&work->stems, suffix, length);
    buffer_add_char(&work->stems, '\0');
    return at;
}

static size_t
add_stem_of_file(struct work *work, const char *stem, const char *file)
{
    const char *suffix = file_suffix(file);

    return add_stem(work, stem, suffix, strlen(suffix));
}

static void
add_member(struct work *work, const char *name)
{
    if (work->member_count == work->member_capacity) {
        size_t capacity = work->member_capacity ? 2 * work->member_capacity : 64;
        const char **members = realloc(work->members, capacity * sizeof(*members));

        if (!members) {
            work->failed = true;
            return;
        }
        work->members = members;
        work->member_capacity = capacity;
    }
    work->members[work->member_count++] = name;
}

/* Adds a group whose members were added since `first`. */
static void
add_group(struct work *work, enum group_kind kind, size_t stem, const char *index, size_t first,
          uint32_t missing)
{
    struct group *group;

    if (work->group_count == work->group_capacity) {
        size_t capacity = work->group_capacity ? 2 * work->group_capacity : 16;
        struct group *groups = realloc(work->groups, capacity * sizeof(*groups));

        if (!groups) {
            work->failed = true;
            return;
        }
        work->groups = groups;
        work->group_capacity = capacity;
    }
    group = &work->groups[work->group_count++];
    *group = (struct group){
        .stem = (const char *)stem,
        .index = index,
        .members = (const char *const *)first,
        .member_count = (uint32_t)(work->member_count - first),
        .missing_count = missing,
        .kind = kind,
    };
}

static void
group_by_index(struct work *work, const struct group_index *named)
{
    size_t first = work->member_count, most = problem_set_named(work->problems);
    const char *suffix;
    size_t suffix_length;
    uint32_t missing = 0;
    char stem[256];

    if (!split_index_name(named->file, stem, &suffix, &suffix_length))
        return;
    if (named->index->shard_count == 0) {
        problem_set_add(work->problems, work->directory, named->file,
                        "the index names no shard: no checkpoint is made of it");
        return;
    }
    for (uint32_t i = 0; i < named->index->shard_count; i++) {
        const char *shard = named->index->shards[i];
        size_t at = find_file(work, shard);

        if (at == SIZE_MAX) {
            char name[QUOTED_SIZE];

            if (missing++ < most)
                problem_set_add(
                    work->problems, work->directory, named->file,
                    "the index names %s, which is not there: its tensors are missing, and "
                    "there is no merged file",
                    quoted(name, shard, strlen(shard)));
            continue;
        }
        work->use[at] = SHARD;
        add_member(work, work->files[at]);
    }
    if (missing > most)
        problem_set_add(work->problems, work->directory, named->file,
                        "%u of the %u shards the index names are not there: their tensors are "
                        "missing, and there is no merged file",
                        missing, named->index->shard_count);
    add_group(work, GROUP_INDEX, add_stem(work, stem, suffix, suffix_length), named->file, first,
              missing);
}

static int
compare_numbered(const void *a, const void *b, void *stems)
{
    const struct numbered *x = a, *y = b;
    int order = strcmp((char *)stems + x->stem, (char *)stems + y->stem);

    if (!order)
        order = strcmp(file_suffix(x->file), file_suffix(y->file));
    if (order)
        return order;
    if (x->of != y->of)
        return x->of < y->of ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return strcmp(x->file, y->file);
}

/* One set: `count` files of the same stem, suffix and M, by number. */
static void
group_numbered_set(struct work *work, const struct numbered *set, size_t count)
{
    size_t first = work->member_count, most = problem_set_named(work->problems);
    uint32_t expected = 1, there = 0, missing, said = 0;
    const char *name = work->stems.data + set[0].stem;
    char stem[QUOTED_SIZE];

    quoted(stem, name, strlen(name));
    for (size_t i = 0; i < count; i++) {
        for (; expected < set[i].number && said < most; expected++, said++)
            problem_set_add(
                work->problems, work->directory, set[0].file,
                "shard %u of %u of %s is not there: its tensors are missing, and there is "
                "no merged file",
                expected, set[0].of, stem);
        if (i > 0 && set[i].number == set[i - 1].number)
            problem_set_add(
                work->problems, work->directory, set[i].file,
                "a second file for shard %u of %u: tensors of both are shown from neither",
                set[i].number, set[i].of);
        else
            there++;
        expected = set[i].number + 1;
        work->use[set[i].position] = SHARD;
        add_member(work, set[i].file);
    }
    for (; expected <= set[0].of && said < most; expected++, said++)
        problem_set_add(work->problems, work->directory, set[0].file,
                        "shard %u of %u of %s is not there: its tensors are missing, and there is "
                        "no merged file",
                        expected, set[0].of, stem);
    missing = set[0].of - there;
    if (missing > said)
        problem_set_add(work->problems, work->directory, set[0].file,
                        "%u of the %u shards of %s are not there: their tensors are missing, and "
                        "there is no merged file",
                        missing, set[0].of, stem);
    add_group(work, GROUP_NUMBERED, set[0].stem, NULL, first, missing);
}

static void
group_numbered(struct work *work)
{
    struct numbered *all = malloc((work->count + 1) * sizeof(*all));
    size_t count = 0;
    char stem[256];

    if (!all) {
        work->failed = true;
        return;
    }
    for (size_t i = 0; i < work->count; i++) {
        struct numbered *one = &all[count];

        if (work->use[i] == FREE &&
            group_numbered_name(work->files[i], stem, &one->number, &one->of)) {
            one->file = work->files[i];
            one->position = i;
            one->stem = add_stem_of_file(work, stem, one->file);
            count++;
        }
    }
    if (count && !buffer_failed(&work->stems)) {
        qsort_r(all, count, sizeof(*all), compare_numbered, work->stems.data);
        for (size_t i = 0, end; i < count; i = end) {
            for (end = i + 1;
                 end < count && all[end].of == all[i].of &&
                 strcmp(work->stems.data + all[end].stem, work->stems.data + all[i].stem) == 0 &&
                 strcmp(file_suffix(all[end].file), file_suffix(all[i].file)) == 0;
                 end++)
                ;
            group_numbered_set(work, all + i, end - i);
        }
    }
    free(all);
}

static void
group_singles(struct work *work)
{
    uint32_t number, of;
    char stem[256];

    for (size_t i = 0; i < work->count; i++) {
        size_t first = work->member_count;

        if (work->use[i] != FREE || !group_single_name(work->files[i], stem))
            continue;
        if (split_numbered_name(work->files[i], NULL, &number, &of))
            problem_set_add(work->problems, work->directory, work->files[i],
                            "named as shard %u of %u, expected a number from 1 to the total; taken "
                            "for a checkpoint of its own",
                            number, of);
        work->use[i] = SHARD;
        add_member(work, work->files[i]);
        add_group(work, GROUP_SINGLE, add_stem_of_file(work, stem, work->files[i]), NULL, first, 0);
    }
}

int
group_compare_names(const struct group *x, const struct group *y)
{
    int order = strcmp(x->stem, y->stem);

    if (!order && strcmp(x->suffix, ST_SUFFIX) != 0 && strcmp(y->suffix, ST_SUFFIX) != 0)
        return strcmp(x->suffix, y->suffix);
    if (order)
        return order;
    return (strcmp(y->suffix, ST_SUFFIX) == 0) - (strcmp(x->suffix, ST_SUFFIX) == 0);
}

static int
compare_groups(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    int order = group_compare_names(x, y);

    if (order)
        return order;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->missing_count != y->missing_count)
        return x->missing_count < y->missing_count ? -1 : 1;
    if (x->index && y->index && (order = strcmp(x->index, y->index)))
        return order;
    if (x->member_count && y->member_count)
        return strcmp(x->members[0], y->members[0]);
    return x->member_count ? -1 : 1;
}

static void
settle(struct work *work)
{
    for (size_t i = 0; i < work->group_count; i++) {
        struct group *group = &work->groups[i];

        group->stem = work->stems.data + (size_t)group->stem;
        group->suffix = group->stem + strlen(group->stem) + 1;
        if (group->member_count == 0) {
            group->members = NULL; /* and there may be no members at all to point into */
            continue;
        }
        group->members = work->members + (size_t)group->members;
        qsort(work->members + (group->members - (const char *const *)work->members),
              group->member_count, sizeof(*work->members), compare_names);
    }
    if (work->group_count)
        qsort(work->groups, work->group_count, sizeof(*work->groups), compare_groups);
    for (size_t i = 1; i < work->group_count; i++) {
        struct group *group = &work->groups[i];
        const struct group *above = group - 1;
        char stem[QUOTED_SIZE];

        group->second = strcmp(group->stem, above->stem) == 0;
        if (!group->second || strcmp(group->suffix, above->suffix) != 0)
            continue;
        group->shadowed = true;
        problem_set_add(work->problems, work->directory,
                        group->index ? group->index
                                     : (group->member_count ? group->members[0] : NULL),
                        "shown in tensors/ and npy/ only, as another directory: another "
                        "checkpoint has the name %s",
                        quoted(stem, group->stem, strlen(group->stem)));
    }
}

static void
gather_files(const struct work *work, struct grouping *grouping)
{
    for (size_t i = 0; i < work->count; i++)
        if (work->use[i] == FREE)
            grouping->files[grouping->file_count++] = work->files[i];
}

errint_t
group_files(const char *const *files, size_t count, const struct group_index *indexes,
            size_t index_count, const char *directory, struct problem_set *problems,
            struct grouping *grouping)
{
    struct work work = {.files = files,
                        .count = count,
                        .directory = directory,
                        .problems = problems,
                        .use = calloc(count + 1, 1),
                        .stems = BUFFER_INIT};

    memset(grouping, 0, sizeof(*grouping));
    grouping->files = malloc((count + 1) * sizeof(*grouping->files));
    if (!work.use || !grouping->files)
        goto fail;
    for (size_t i = 0; i < index_count; i++) {
        size_t at = find_file(&work, indexes[i].file);

        if (at != SIZE_MAX)
            work.use[at] = INDEX;
    }
    for (size_t i = 0; i < index_count; i++)
        if (indexes[i].index)
            group_by_index(&work, &indexes[i]);
    group_numbered(&work);
    group_singles(&work);
    if (work.failed || buffer_failed(&work.stems))
        goto fail;
    settle(&work);
    gather_files(&work, grouping);
    grouping->groups = work.groups;
    grouping->group_count = work.group_count;
    grouping->members = work.members;
    grouping->stems = work.stems.data;
    free(work.use);
    return 0;

fail:
    free(work.use);
    free(work.groups);
    free(work.members);
    buffer_free(&work.stems);
    free(grouping->files);
    memset(grouping, 0, sizeof(*grouping));
    return -ENOMEM;
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
