/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/group.h"

#include "base/array.h"
#include "base/buffer.h"
#include "base/text.h"
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

/* Whether `rest`, the part of a file name after the suffix, is that of an index: .index.json,
 * .index.VARIANT.json or .VARIANT.index.json. The variant of the first form is empty. */
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

/* As group_index_name(); also returns the suffix. */
static bool
split_index_name(const char *file, char stem[256], const char **suffix, size_t *suffix_length)
{
    const char *variant;
    size_t length, end;

    /* Search backwards for the suffix: the stem may contain one, too. */
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

/* Reads at least five digits that end at `end`. Returns their start; NULL: there are fewer. */
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

/* Parses STEM-NNNNN-of-MMMMM, which ends at `end`. Returns the end of the stem, or NULL. */
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

/* The suffix of a safetensors file; "" for other files. */
static const char *
file_suffix(const char *file)
{
    size_t length = strlen(file);

    return file + length - st_suffix_length(file, length);
}

/* As group_numbered_name(), but the numbers may be out of range. */
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
    const char *directory;
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

/* Adds a stem, followed by its suffix. Returns its offset. */
static size_t
add_stem(struct grouper *grouper, const char *stem, const char *suffix, size_t length)
{
    size_t at = grouper->stems.length;

    buffer_add(&grouper->stems, stem, strlen(stem) + 1);
    buffer_add(&grouper->stems, suffix, length);
    buffer_add_char(&grouper->stems, '\0');
    return at;
}

static size_t
add_stem_of_file(struct grouper *grouper, const char *stem, const char *file)
{
    const char *suffix = file_suffix(file);

    return add_stem(grouper, stem, suffix, strlen(suffix));
}

static void
add_member(struct grouper *grouper, const char *name)
{
    const char **members = array_room(grouper->members, grouper->member_count, sizeof(*members));

    if (!members) {
        grouper->failed = true;
        return;
    }
    grouper->members = members;
    grouper->members[grouper->member_count++] = name;
}

/* Adds a group whose members start at index `first`. `stem`: an offset. */
static void
add_group(struct grouper *grouper, enum group_kind kind, size_t stem, const char *index,
          size_t first, uint32_t missing)
{
    struct group *groups = array_room(grouper->groups, grouper->group_count, sizeof(*groups));

    if (!groups) {
        grouper->failed = true;
        return;
    }
    grouper->groups = groups;
    groups[grouper->group_count++] = (struct group){
        .stem = (const char *)stem,
        .index = index,
        .members = (const char *const *)first,
        .member_count = (uint32_t)(grouper->member_count - first),
        .missing_count = missing,
        .kind = kind,
    };
}

static void
group_by_index(struct grouper *grouper, const struct group_index *named)
{
    size_t first = grouper->member_count, most = problem_set_named(grouper->problems);
    const char *suffix;
    size_t suffix_length;
    uint32_t missing = 0;
    char stem[256];

    if (!split_index_name(named->file, stem, &suffix, &suffix_length))
        return;
    if (named->index->shard_count == 0) {
        problem_set_add(grouper->problems, grouper->directory, named->file,
                        "the index names no shard: no checkpoint is made of it");
        return;
    }
    for (uint32_t i = 0; i < named->index->shard_count; i++) {
        const char *shard = named->index->shards[i];
        size_t at = grouper_find_file(grouper, shard);

        if (at == SIZE_MAX) {
            char name[QUOTED_SIZE];

            if (missing++ < most)
                problem_set_add(
                    grouper->problems, grouper->directory, named->file,
                    "the index names %s, which does not exist: its tensors are missing, and "
                    "there is no merged file",
                    quoted(name, shard, strlen(shard)));
            continue;
        }
        grouper->use[at] = USE_SHARD;
        add_member(grouper, grouper->files[at]);
    }
    if (missing > most)
        problem_set_add(grouper->problems, grouper->directory, named->file,
                        "%u of the %u shards that the index names do not exist: their tensors are "
                        "missing, and there is no merged file",
                        missing, named->index->shard_count);
    add_group(grouper, GROUP_INDEX, add_stem(grouper, stem, suffix, suffix_length), named->file,
              first, missing);
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

/* Makes a group of `count` files of the same stem, suffix and M, sorted by number. */
static void
group_numbered_set(struct grouper *grouper, const struct numbered *set, size_t count)
{
    size_t first = grouper->member_count, most = problem_set_named(grouper->problems);
    uint32_t expected = 1, found = 0, missing, reported = 0;
    const char *name = grouper->stems.data + set[0].stem;
    char stem[QUOTED_SIZE];

    quoted(stem, name, strlen(name));
    for (size_t i = 0; i < count; i++) {
        for (; expected < set[i].number && reported < most; expected++, reported++)
            problem_set_add(
                grouper->problems, grouper->directory, set[0].file,
                "shard %u of %u of %s does not exist: its tensors are missing, and there is "
                "no merged file",
                expected, set[0].of, stem);
        if (i > 0 && set[i].number == set[i - 1].number)
            problem_set_add(
                grouper->problems, grouper->directory, set[i].file,
                "a second file for shard %u of %u: tensors that are in both are not shown",
                set[i].number, set[i].of);
        else
            found++;
        expected = set[i].number + 1;
        grouper->use[set[i].position] = USE_SHARD;
        add_member(grouper, set[i].file);
    }
    for (; expected <= set[0].of && reported < most; expected++, reported++)
        problem_set_add(
            grouper->problems, grouper->directory, set[0].file,
            "shard %u of %u of %s does not exist: its tensors are missing, and there is "
            "no merged file",
            expected, set[0].of, stem);
    missing = set[0].of - found;
    if (missing > reported)
        problem_set_add(grouper->problems, grouper->directory, set[0].file,
                        "%u of the %u shards of %s do not exist: their tensors are missing, and "
                        "there is no merged file",
                        missing, set[0].of, stem);
    add_group(grouper, GROUP_NUMBERED, set[0].stem, NULL, first, missing);
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

        if (grouper->use[i] == USE_NONE &&
            group_numbered_name(grouper->files[i], stem, &one->number, &one->of)) {
            one->file = grouper->files[i];
            one->position = i;
            one->stem = add_stem_of_file(grouper, stem, one->file);
            count++;
        }
    }
    if (count && !buffer_failed(&grouper->stems)) {
        qsort_r(all, count, sizeof(*all), compare_numbered, grouper->stems.data);
        for (size_t i = 0, end; i < count; i = end) {
            for (end = i + 1; end < count && all[end].of == all[i].of &&
                              strcmp(grouper->stems.data + all[end].stem,
                                     grouper->stems.data + all[i].stem) == 0 &&
                              strcmp(file_suffix(all[end].file), file_suffix(all[i].file)) == 0;
                 end++)
                ;
            group_numbered_set(grouper, all + i, end - i);
        }
    }
    free(all);
}

static void
group_singles(struct grouper *grouper)
{
    uint32_t number, of;
    char stem[256];

    for (size_t i = 0; i < grouper->count; i++) {
        size_t first = grouper->member_count;

        if (grouper->use[i] != USE_NONE || !group_single_name(grouper->files[i], stem))
            continue;
        if (split_numbered_name(grouper->files[i], NULL, &number, &of))
            problem_set_add(grouper->problems, grouper->directory, grouper->files[i],
                            "named as shard %u of %u, expected a number from 1 to the total; taken "
                            "for a checkpoint of its own",
                            number, of);
        grouper->use[i] = USE_SHARD;
        add_member(grouper, grouper->files[i]);
        add_group(grouper, GROUP_SINGLE, add_stem_of_file(grouper, stem, grouper->files[i]), NULL,
                  first, 0);
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
    for (size_t i = 1; i < grouper->group_count; i++) {
        struct group *group = &grouper->groups[i];
        const struct group *above = group - 1;
        char stem[QUOTED_SIZE];

        group->second = strcmp(group->stem, above->stem) == 0;
        if (!group->second || strcmp(group->suffix, above->suffix) != 0)
            continue;
        group->shadowed = true;
        problem_set_add(grouper->problems, grouper->directory,
                        group->index ? group->index
                                     : (group->member_count ? group->members[0] : NULL),
                        "shown in tensors/ and npy/ only, in a directory of its own: another "
                        "checkpoint has the name %s",
                        quoted(stem, group->stem, strlen(group->stem)));
    }
}

static void
gather_files(const struct grouper *grouper, struct grouping *grouping)
{
    for (size_t i = 0; i < grouper->count; i++)
        if (grouper->use[i] == USE_NONE)
            grouping->files[grouping->file_count++] = grouper->files[i];
}

errint_t
group_files(const char *const *files, size_t count, const struct group_index *indexes,
            size_t index_count, const char *directory, struct problem_set *problems,
            struct grouping *grouping)
{
    struct grouper grouper = {.files = files,
                              .count = count,
                              .directory = directory,
                              .problems = problems,
                              .use = calloc(count + 1, 1),
                              .stems = BUFFER_INIT};

    memset(grouping, 0, sizeof(*grouping));
    grouping->files = malloc((count + 1) * sizeof(*grouping->files));
    if (!grouper.use || !grouping->files)
        goto fail;
    for (size_t i = 0; i < index_count; i++) {
        size_t at = grouper_find_file(&grouper, indexes[i].file);

        if (at != SIZE_MAX)
            grouper.use[at] = USE_INDEX;
    }
    for (size_t i = 0; i < index_count; i++)
        if (indexes[i].index)
            group_by_index(&grouper, &indexes[i]);
    group_numbered(&grouper);
    group_singles(&grouper);
    if (grouper.failed || buffer_failed(&grouper.stems))
        goto fail;
    resolve_groups(&grouper);
    gather_files(&grouper, grouping);
    grouping->groups = grouper.groups;
    grouping->group_count = grouper.group_count;
    grouping->members = grouper.members;
    grouping->stems = grouper.stems.data;
    free(grouper.use);
    return 0;

fail:
    free(grouper.use);
    free(grouper.groups);
    free(grouper.members);
    buffer_free(&grouper.stems);
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
