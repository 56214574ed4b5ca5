/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules by which files of a directory form checkpoints, for any names and any content of the
 * indexes.
 *
 * Input: file names, each ended by a byte 0xff; the name of an index is followed by its content.
 */
#include "fuzz.h"

#include "catalog/group.h"
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_FILES = 64 };

struct directory {
    char *files[MOST_FILES];
    size_t count;
    struct group_index indexes[MOST_FILES];
    size_t index_count;
};

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fuzz_quiet();
    return 0;
}

/* A valid file name, or NULL. */
static char *
take_name(struct input *input)
{
    size_t length;
    const char *text = input_text(input, &length);

    if (!length || length > 255 || memchr(text, '\0', length) || memchr(text, '/', length))
        return NULL;
    return strndup(text, length);
}

static bool
is_there(const struct directory *directory, const char *name)
{
    for (size_t i = 0; i < directory->count; i++)
        if (strcmp(directory->files[i], name) == 0)
            return true;
    return false;
}

static void
take_index(struct input *input, struct directory *directory, const char *name)
{
    struct group_index *named = &directory->indexes[directory->index_count++];
    size_t length;
    const char *text = input_text(input, &length);
    struct reason reason;

    named->file = name;
    if (st_index_parse(text, length, group_index_container(name), &named->index, &reason))
        named->index = NULL;
}

static int
compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Expects that the name is the stem and a suffix. The stem may lack the start of the container's
 * stem, as `pytorch_` of `pytorch_model`. */
static void
check_single_name(const char *file, const char *stem)
{
    size_t length = strlen(file), suffix, hidden;
    const struct container *container = container_of_name(file, length, &suffix);

    EXPECT(container && strlen(stem) + suffix <= length);
    hidden = length - strlen(stem) - suffix;
    EXPECT(strncmp(file + hidden, stem, strlen(stem)) == 0);
    if (hidden == 0)
        return;
    EXPECT(container->stem && hidden + strlen(container->shown_stem) == strlen(container->stem));
    EXPECT(strncmp(file, container->stem, strlen(container->stem)) == 0);
}

static void
check_names(const char *file)
{
    char stem[256], index[300], again[256];
    uint32_t number, of;

    if (group_index_name(file, stem)) {
        EXPECT(*stem && strlen(stem) < 256);
        group_name_index(stem, strlen(stem) % 2 ? ".sft" : ST_SUFFIX, index);
        /* The name that the index gets in the mount must be recognized as an index of the same
         * stem. */
        EXPECT(strlen(index) > 255 || (group_index_name(index, again) && !strcmp(stem, again)));
    }
    if (group_numbered_name(file, stem, &number, &of))
        EXPECT(*stem && number >= 1 && number <= of && group_single_name(file, again));
    if (group_single_name(file, stem))
        check_single_name(file, stem);
}

static size_t
count_uses(const struct grouping *grouping, const char *file)
{
    size_t uses = 0;

    for (size_t g = 0; g < grouping->group_count; g++)
        for (uint32_t m = 0; m < grouping->groups[g].member_count; m++)
            uses += grouping->groups[g].members[m] == file;
    return uses;
}

/* Expects that each file is exactly one of these: an index, a shard, another file. */
static void
check_files(const struct directory *directory, const struct grouping *grouping)
{
    for (size_t i = 0; i < directory->count; i++) {
        const char *file = directory->files[i];
        size_t uses = count_uses(grouping, file), others = 0, indexes = 0;

        for (size_t f = 0; f < grouping->file_count; f++)
            others += grouping->files[f] == file;
        for (size_t f = 0; f < directory->index_count; f++)
            indexes += directory->indexes[f].file == file;
        /* The index of a checkpoint that is converted may also be listed as a file. */
        if (indexes && others)
            indexes -= group_index_container(file)->is_converted;
        EXPECT(others + indexes + (uses > 0) == 1);
    }
}

static void
check_group(const struct directory *directory, const struct group *group)
{
    char stem[256];
    uint32_t number, of = 0, last = 0, different = 0;

    EXPECT(group->member_count + group->missing_count > 0);
    for (uint32_t m = 0; m < group->member_count; m++) {
        EXPECT(is_there(directory, group->members[m]));
        EXPECT(m == 0 || strcmp(group->members[m - 1], group->members[m]) < 0);
    }
    EXPECT(!group->index == (group->kind != GROUP_INDEX));
    if (group->kind == GROUP_SINGLE)
        EXPECT(group->member_count == 1 && group->missing_count == 0);
    if (group->kind != GROUP_NUMBERED)
        return;
    /* Shards with the same number count once, so all missing numbers are counted. */
    for (uint32_t i = 1; i <= MOST_FILES; i++)
        for (uint32_t m = 0; m < group->member_count; m++)
            if (group_numbered_name(group->members[m], stem, &number, &of) && number == i &&
                last != i) {
                different++;
                last = i;
            }
    if (of <= MOST_FILES)
        EXPECT(different + group->missing_count == of);
}

static void
check_directory(const struct directory *directory)
{
    struct problems *problems = problems_new(&(struct problem_watch){0});
    struct problem_set *set = problem_set_new(problems, "dir");
    struct grouping grouping;

    EXPECT(set);
    EXPECT(group_files((const char *const *)directory->files, directory->count, NULL,
                       directory->indexes, directory->index_count, true, set, &grouping) == 0);
    check_files(directory, &grouping);
    for (size_t g = 0; g < grouping.group_count; g++) {
        const struct group *group = &grouping.groups[g];

        check_group(directory, group);
        EXPECT(g == 0 || strcmp(group[-1].stem, group->stem) <= 0);
        EXPECT(group->second == (g > 0 && strcmp(group[-1].stem, group->stem) == 0));
        EXPECT(group->shadowed == (group->second && strcmp(group[-1].suffix, group->suffix) == 0));
    }
    fuzz_expect_problems(problems, set, "dir");
    grouping_free(&grouping);
    problem_set_unref(set);
    problems_free(problems);
}

/* Expects that files which may be nothing, chosen by their names, are in no group. */
static void
check_unknown(const struct directory *directory)
{
    struct problems *problems = problems_new(&(struct problem_watch){0});
    struct problem_set *set = problem_set_new(problems, "dir");
    bool is_unknown[MOST_FILES];
    struct grouping grouping;

    EXPECT(set);
    for (size_t i = 0; i < directory->count; i++)
        is_unknown[i] = strlen(directory->files[i]) % 3 == 0;
    EXPECT(group_files((const char *const *)directory->files, directory->count, is_unknown,
                       directory->indexes, directory->index_count, true, set, &grouping) == 0);
    for (size_t i = 0; i < directory->count; i++)
        EXPECT(!is_unknown[i] || count_uses(&grouping, directory->files[i]) == 0);
    for (size_t i = 0; i < grouping.file_count; i++)
        EXPECT(strlen(grouping.files[i]) % 3 != 0);
    for (size_t g = 0; g < grouping.group_count; g++)
        EXPECT(grouping.groups[g].index || grouping.groups[g].member_count > 0);
    grouping_free(&grouping);
    problem_set_unref(set);
    problems_free(problems);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {(const char *)data, size};
    static struct directory directory;

    directory.count = directory.index_count = 0;
    while (input.left && directory.count < MOST_FILES) {
        char *name = take_name(&input);

        if (!name || is_there(&directory, name)) {
            free(name);
            continue;
        }
        check_names(name);
        directory.files[directory.count++] = name;
        if (group_index_name(name, NULL))
            take_index(&input, &directory, name);
    }
    if (directory.count)
        qsort(directory.files, directory.count, sizeof(directory.files[0]), compare);
    check_directory(&directory);
    check_unknown(&directory);
    for (size_t i = 0; i < directory.index_count; i++)
        st_index_free(directory.indexes[i].index);
    for (size_t i = 0; i < directory.count; i++)
        free(directory.files[i]);
    return 0;
}
