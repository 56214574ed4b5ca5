/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint rules: which files of a directory belong together. */
#include "catalog/group.h"

#include "base/text.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

START_TEST(index_names)
{
    static const struct {
        const char *file, *stem;
    } cases[] = {
        {"model.safetensors.index.json", "model"},
        {"model.safetensors.index.fp16.json", "model.fp16"},
        {"diffusion_pytorch_model.safetensors.fp16.index.json", "diffusion_pytorch_model.fp16"},
        {"model.fp16.safetensors.index.json", "model.fp16"},
        {"a.safetensors.b.safetensors.index.json", "a.safetensors.b"},
        {"model.sft.index.json", "model"},
        {"model.SafeTensors.index.fp16.json", "model.fp16"},
        {"model.safetensors.index.sft.json", "model.sft"},
        {"model.safetensors.safetensors.index.json", "model.safetensors"},
        {"model.safetensors", NULL},
        {"model.sft", NULL},
        {".sft.index.json", NULL},
        {"pytorch_model.bin.index.json", "model"},
        {"pytorch_model.bin.index.fp16.json", "model.fp16"},
        {"diffusion_pytorch_model.bin.index.json", "diffusion_pytorch_model"},
        {"model.pt.index.json", "model"},
        {"pytorch_model.safetensors.index.json", "pytorch_model"},
        {"model.txt.index.json", NULL},
        {".safetensors.index.json", NULL},
        {"model.safetensors.index.json.bak", NULL},
        {"model.safetensors.index..json", NULL},
        {"model.safetensors.json", NULL},
        {"model.safetensors.index.a.b.json", NULL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char stem[256];
        bool is = group_index_name(cases[i].file, stem);

        ck_assert_msg(is == (cases[i].stem != NULL), "%s", cases[i].file);
        if (is)
            ck_assert_str_eq(stem, cases[i].stem);
    }
}
END_TEST

START_TEST(index_name_of_a_stem)
{
    char file[300];

    group_name_index("model", ".safetensors", file);
    ck_assert_str_eq(file, "model.safetensors.index.json");
    group_name_index("model.fp16", ".safetensors", file);
    ck_assert_str_eq(file, "model.safetensors.index.fp16.json");
    group_name_index("diffusion_pytorch_model.bf16", ".safetensors", file);
    ck_assert_str_eq(file, "diffusion_pytorch_model.safetensors.index.bf16.json");
    group_name_index("my.stem", ".safetensors", file);
    ck_assert_str_eq(file, "my.stem.safetensors.index.json");
    group_name_index("model.fp16", ".sft", file);
    ck_assert_str_eq(file, "model.sft.index.fp16.json");
}
END_TEST

START_TEST(numbered_names)
{
    static const struct {
        const char *file, *stem;
        uint32_t number, of;
    } cases[] = {
        {"model-00001-of-00002.safetensors", "model", 1, 2},
        {"model-00002-of-00002.safetensors", "model", 2, 2},
        {"a-b-000123-of-100000.safetensors", "a-b", 123, 100000},
        {"model-00001-of-00002.fp16.safetensors", "model.fp16", 1, 2},
        {"model.fp16-00001-of-00002.safetensors", "model.fp16", 1, 2},
        {"model-00001-of-00002.sft", "model", 1, 2},
        {"model-00001-of-00002.fp16.SAFETENSORS", "model.fp16", 1, 2},
        {"model-00003-of-00002.safetensors", NULL, 0, 0},
        {"model-00000-of-00002.safetensors", NULL, 0, 0},
        {"model-1-of-2.safetensors", NULL, 0, 0},
        {"-00001-of-00002.safetensors", NULL, 0, 0},
        {"pytorch_model-00001-of-00002.bin", "model", 1, 2},
        {"pytorch_model-00001-of-00002.fp16.bin", "model.fp16", 1, 2},
        {"pytorch_model.fp16-00002-of-00002.PT", "model.fp16", 2, 2},
        {"model-00001-of-00002.txt", NULL, 0, 0},
        {"model-00001-of-00002.safetensors.tmp", NULL, 0, 0},
        {".safetensors", NULL, 0, 0},
        {"model-99999999999-of-99999999999.safetensors", NULL, 0, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t number, of;
        char stem[256];
        bool is = group_numbered_name(cases[i].file, stem, &number, &of);

        ck_assert_msg(is == (cases[i].stem != NULL), "%s", cases[i].file);
        if (!is)
            continue;
        ck_assert_str_eq(stem, cases[i].stem);
        ck_assert_uint_eq(number, cases[i].number);
        ck_assert_uint_eq(of, cases[i].of);
    }
}
END_TEST

START_TEST(single_names)
{
    static const struct {
        const char *file, *stem;
    } cases[] = {
        {"model.safetensors", "model"},
        {"pytorch_model.safetensors", "pytorch_model"},
        {"pytorch_model.bin", "model"},
        {"pytorch_model.fp16.bin", "model.fp16"},
        {"pytorch_model_fsdp.bin", "pytorch_model_fsdp"},
        {"diffusion_pytorch_model.bin", "diffusion_pytorch_model"},
        {"adapter_model.bin", "adapter_model"},
        {"consolidated.00.pth", "consolidated.00"},
        {"last.CKPT", "last"},
        {"x.pt", "x"},
        {".pt", NULL},
        {"config.json", NULL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char stem[256];
        bool is = group_single_name(cases[i].file, stem);

        ck_assert_msg(is == (cases[i].stem != NULL), "%s", cases[i].file);
        if (is)
            ck_assert_str_eq(stem, cases[i].stem);
    }
}
END_TEST

/* Groups `files` (sorted) with the given indexes and sets `problem_count` to the number of lines
 * of problems. */
static struct grouping
group_all(const char *const *files, size_t count, struct group_index *indexes, size_t index_count,
          size_t *problem_count)
{
    struct problems *problems = problems_new(&(struct problem_watch){0});
    struct problem_set *set = problem_set_new(problems, "dir");
    struct grouping grouping;

    ck_assert_int_eq(group_files(files, count, NULL, indexes, index_count, true, set, &grouping),
                     0);
    *problem_count = problem_set_count(set);
    problem_set_unref(set);
    problems_free(problems);
    return grouping;
}

static struct st_index *
torch_index_of(const char *file)
{
    struct st_index *index;
    struct reason reason;
    char json[100];

    snprintf(json, sizeof(json), "{\"weight_map\": {\"x\": \"%s\"}}", file);
    ck_assert_int_eq(st_index_parse(json, strlen(json), &container_safetensors, &index, &reason),
                     -EBADMSG);
    ck_assert_int_eq(st_index_parse(json, strlen(json), &container_torch, &index, &reason), 0);
    return index;
}

static struct st_index *
index_of(const char *json)
{
    struct st_index *index;
    struct reason reason;

    ck_assert_int_eq(st_index_parse(json, strlen(json), &container_safetensors, &index, &reason),
                     0);
    return index;
}

START_TEST(a_stem_in_two_containers)
{
    static const char *const files[] = {
        "a-00001-of-00003.bin",
        "a.safetensors",
        "b.pt",
        "b.sft",
        "c.bin",
        "model.safetensors",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
    };
    struct group_index indexes[] = {
        {.file = "pytorch_model.bin.index.json", .index = torch_index_of("x.bin")}};
    size_t problems;
    struct grouping grouping = group_all(files, 8, indexes, 1, &problems);

    ck_assert_uint_eq(grouping.group_count, 4);
    for (size_t i = 0; i < 4; i++)
        ck_assert(grouping.groups[i].container == &container_safetensors || i == 2);
    ck_assert_str_eq(grouping.groups[2].stem, "c");
    ck_assert_str_eq(grouping.groups[2].suffix, ".safetensors");
    ck_assert_ptr_eq(grouping.groups[2].container, &container_torch);
    ck_assert_uint_eq(grouping.file_count, 4);
    ck_assert_str_eq(grouping.files[0], "a-00001-of-00003.bin");
    ck_assert_str_eq(grouping.files[1], "b.pt");
    ck_assert_str_eq(grouping.files[2], "pytorch_model.bin");
    ck_assert_str_eq(grouping.files[3], "pytorch_model.bin.index.json");
    ck_assert_uint_eq(problems, 0); /* missing shards of other containers are not reported */
    grouping_free(&grouping);
    st_index_free(indexes[0].index);
}
END_TEST

START_TEST(several_files_of_pytorch_with_one_stem)
{
    static const char *const files[] = {
        "model.bin", "model.ckpt", "model-00001-of-00001.pt", "pytorch_model.bin", "x.bin", "x.pt",
    };
    static const char *const first_members[] = {
        "model-00001-of-00001.pt", "pytorch_model.bin", "model.bin", "model.ckpt", "x.bin", "x.pt",
    };
    const char *sorted[6];
    size_t problems;
    struct grouping grouping;

    memcpy(sorted, files, sizeof(sorted));
    qsort(sorted, 6, sizeof(sorted[0]), text_compare_strings);
    grouping = group_all(sorted, 6, NULL, 0, &problems);
    ck_assert_uint_eq(grouping.group_count, 6);
    for (size_t i = 0; i < 6; i++) {
        ck_assert_str_eq(grouping.groups[i].members[0], first_members[i]);
        ck_assert(grouping.groups[i].shadowed == (i != 0 && i != 4));
    }
    ck_assert_uint_eq(problems, 0);
    grouping_free(&grouping);
}
END_TEST

START_TEST(an_index_has_precedence)
{
    static const char *const files[] = {
        "config.json",        "extra.safetensors",        "part-a.safetensors",
        "part-b.safetensors", "w.safetensors.index.json",
    };
    struct st_index *index = index_of("{\"weight_map\": {\"x\": \"part-a.safetensors\","
                                      "\"y\": \"part-b.safetensors\"}}");
    struct group_index indexes[] = {{.file = "w.safetensors.index.json", .index = index}};
    size_t problems;
    struct grouping grouping = group_all(files, 5, indexes, 1, &problems);

    ck_assert_uint_eq(grouping.group_count, 2);
    ck_assert_str_eq(grouping.groups[0].stem, "extra");
    ck_assert_int_eq(grouping.groups[0].kind, GROUP_SINGLE);
    ck_assert_str_eq(grouping.groups[1].stem, "w");
    ck_assert_int_eq(grouping.groups[1].kind, GROUP_INDEX);
    ck_assert_uint_eq(grouping.groups[1].member_count, 2);
    ck_assert_uint_eq(grouping.groups[1].missing_count, 0);
    ck_assert_uint_eq(grouping.file_count, 1);
    ck_assert_str_eq(grouping.files[0], "config.json");
    ck_assert_uint_eq(problems, 0);
    grouping_free(&grouping);
    st_index_free(index);
}
END_TEST

START_TEST(files_missing_from_an_index)
{
    static const char *const files[] = {"a.safetensors", "m.safetensors.index.json"};
    struct st_index *index = index_of("{\"weight_map\": {\"x\": \"a.safetensors\","
                                      "\"y\": \"b.safetensors\"}}");
    struct group_index indexes[] = {{.file = "m.safetensors.index.json", .index = index}};
    size_t problems;
    struct grouping grouping = group_all(files, 2, indexes, 1, &problems);

    ck_assert_uint_eq(grouping.group_count, 1);
    ck_assert_uint_eq(grouping.groups[0].member_count, 1);
    ck_assert_uint_eq(grouping.groups[0].missing_count, 1);
    ck_assert_uint_eq(problems, 1);
    grouping_free(&grouping);
    st_index_free(index);
}
END_TEST

/* All files that are named after it are members, of one set or another. */
START_TEST(an_index_that_cannot_be_read)
{
    static const char *const files[] = {
        "m-00001-of-00002.safetensors",
        "m-00001-of-00003.safetensors",
        "m.safetensors",
        "m.safetensors.index.json",
        "n.safetensors",
    };
    struct group_index indexes[] = {{.file = "m.safetensors.index.json", .error = -EACCES}};
    size_t problems;
    struct grouping grouping = group_all(files, 5, indexes, 1, &problems);

    ck_assert_uint_eq(grouping.group_count, 2);
    ck_assert_str_eq(grouping.groups[0].index, indexes[0].file);
    ck_assert_int_eq(grouping.groups[0].index_error, -EACCES);
    ck_assert_uint_eq(grouping.groups[0].member_count, 3);
    ck_assert_str_eq(grouping.groups[1].stem, "n");
    ck_assert_int_eq(grouping.groups[1].index_error, 0);
    grouping_free(&grouping);
}
END_TEST

START_TEST(an_index_that_is_no_file)
{
    static const char *const files[] = {
        "m-00001-of-00002.safetensors",
        "m-00001-of-00003.safetensors",
        "other.safetensors",
    };
    struct group_index indexes[] = {{.file = "m.safetensors.index.json", .error = -EIO},
                                    {.file = "n.safetensors.index.json", .error = -EIO}};
    size_t problems;
    struct grouping grouping = group_all(files, 3, indexes, 2, &problems);

    ck_assert_uint_eq(grouping.group_count, 2);
    ck_assert_str_eq(grouping.groups[0].stem, "m");
    ck_assert_ptr_null(grouping.groups[0].index);
    ck_assert_int_eq(grouping.groups[0].index_error, -EIO);
    ck_assert_uint_eq(grouping.groups[0].member_count, 2);
    ck_assert_str_eq(grouping.groups[1].stem, "other");
    ck_assert_int_eq(grouping.groups[1].index_error, 0);
    grouping_free(&grouping);
}
END_TEST

/* Files that may be anything or nothing are missing, and keep other groups from their names. */
START_TEST(files_that_are_not_known)
{
    static const char *const files[] = {
        "a-00001-of-00002.safetensors",
        "a-00002-of-00002.safetensors",
        "a.safetensors",
        "model.safetensors",
        "pytorch_model.bin",
        "side.json",
        "x.safetensors",
    };
    static const bool is_unknown[] = {false, true, false, true, false, true, true};
    struct problems *problems = problems_new(&(struct problem_watch){0});
    struct problem_set *set = problem_set_new(problems, "dir");
    struct grouping grouping;

    ck_assert_int_eq(group_files(files, 7, is_unknown, NULL, 0, true, set, &grouping), 0);
    ck_assert_uint_eq(grouping.group_count, 2);
    ck_assert_int_eq(grouping.groups[0].kind, GROUP_NUMBERED);
    ck_assert_uint_eq(grouping.groups[0].member_count, 1);
    ck_assert_uint_eq(grouping.groups[0].missing_count, 1);
    ck_assert_str_eq(grouping.groups[1].members[0], "a.safetensors");
    ck_assert(grouping.groups[1].shadowed);
    ck_assert_uint_eq(grouping.file_count, 1);
    ck_assert_str_eq(grouping.files[0], "pytorch_model.bin");
    grouping_free(&grouping);
    problem_set_unref(set);
    problems_free(problems);
}
END_TEST

START_TEST(numbered_sets_with_missing_shards)
{
    static const char *const files[] = {
        "a-00001-of-00002.safetensors", "a-00002-of-00002.safetensors",
        "b-00001-of-00003.safetensors", "b-00003-of-00003.safetensors",
        "c-00001-of-00001.safetensors",
    };
    size_t problems;
    struct grouping grouping = group_all(files, 5, NULL, 0, &problems);

    ck_assert_uint_eq(grouping.group_count, 3);
    ck_assert_str_eq(grouping.groups[0].stem, "a");
    ck_assert_uint_eq(grouping.groups[0].missing_count, 0);
    ck_assert_str_eq(grouping.groups[1].stem, "b");
    ck_assert_uint_eq(grouping.groups[1].missing_count, 1);
    ck_assert_str_eq(grouping.groups[2].stem, "c");
    ck_assert_int_eq(grouping.groups[2].kind, GROUP_NUMBERED);
    ck_assert_uint_eq(problems, 1);
    grouping_free(&grouping);
}
END_TEST

START_TEST(two_files_with_one_shard_number)
{
    static const char *const files[] = {
        "model-00001-of-00002.fp16.safetensors",
        "model.fp16-00001-of-00002.safetensors",
    };
    size_t problems;
    struct grouping grouping = group_all(files, 2, NULL, 0, &problems);

    ck_assert_uint_eq(grouping.group_count, 1);
    ck_assert_uint_eq(grouping.groups[0].member_count, 2);
    ck_assert_uint_eq(grouping.groups[0].missing_count, 1);
    ck_assert_uint_eq(problems, 2);
    grouping_free(&grouping);
}
END_TEST

START_TEST(precedence_of_groups_with_one_stem)
{
    static const char *const files[] = {
        "model-00001-of-00002.safetensors",
        "model-00001-of-00003.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors",
    };
    size_t problems;
    struct grouping grouping = group_all(files, 4, NULL, 0, &problems);

    ck_assert_uint_eq(grouping.group_count, 3);
    ck_assert_uint_eq(grouping.groups[0].missing_count, 0);
    ck_assert(!grouping.groups[0].shadowed);
    ck_assert_int_eq(grouping.groups[1].kind, GROUP_SINGLE);
    ck_assert(grouping.groups[1].shadowed);
    ck_assert_uint_eq(grouping.groups[2].missing_count, 2);
    ck_assert(grouping.groups[2].shadowed);
    grouping_free(&grouping);
}
END_TEST

START_TEST(empty_directory)
{
    size_t problems;
    struct grouping grouping = group_all(NULL, 0, NULL, 0, &problems);

    ck_assert_uint_eq(grouping.group_count, 0);
    ck_assert_uint_eq(grouping.file_count, 0);
    grouping_free(&grouping);
}
END_TEST

static void
count_reported(void *arg, const char *directory, const char *name, const char *text)
{
    ck_assert_str_eq(directory, "dir");
    ck_assert_str_eq(name, "model-00002-of-00017.safetensors");
    ck_assert(strstr(text, " not exist"));
    ++*(size_t *)arg;
}

START_TEST(reports_as_many_as_requested)
{
    static const char *const files[] = {
        /* every second shard: nine runs are missing */
        "model-00002-of-00017.safetensors", "model-00004-of-00017.safetensors",
        "model-00006-of-00017.safetensors", "model-00008-of-00017.safetensors",
        "model-00010-of-00017.safetensors", "model-00012-of-00017.safetensors",
        "model-00014-of-00017.safetensors", "model-00016-of-00017.safetensors"};
    static const size_t named[] = {0, 5, SIZE_MAX};
    static const size_t expected[] = {3 + 1, 5 + 1, 9}; /* and one line with the total */

    for (size_t i = 0; i < 3; i++) {
        size_t reported = 0;
        struct problem_watch watch = {count_reported, &reported, named[i]};
        struct problems *problems = problems_new(&watch);
        struct problem_set *set = problem_set_new(problems, "dir");
        struct grouping grouping;

        ck_assert_int_eq(group_files(files, 8, NULL, NULL, 0, true, set, &grouping), 0);
        ck_assert_uint_eq(reported, problem_set_count(set));
        ck_assert_uint_eq(reported, expected[i]);
        problem_set_unref(set);
        problems_free(problems);
        grouping_free(&grouping);
    }
}
END_TEST

static Suite *
suite(void)
{
    Suite *group = suite_create("group");
    TCase *all = tcase_create("group");

    tcase_add_test(all, index_names);
    tcase_add_test(all, index_name_of_a_stem);
    tcase_add_test(all, numbered_names);
    tcase_add_test(all, single_names);
    tcase_add_test(all, an_index_has_precedence);
    tcase_add_test(all, files_missing_from_an_index);
    tcase_add_test(all, an_index_that_cannot_be_read);
    tcase_add_test(all, an_index_that_is_no_file);
    tcase_add_test(all, files_that_are_not_known);
    tcase_add_test(all, numbered_sets_with_missing_shards);
    tcase_add_test(all, two_files_with_one_shard_number);
    tcase_add_test(all, precedence_of_groups_with_one_stem);
    tcase_add_test(all, a_stem_in_two_containers);
    tcase_add_test(all, several_files_of_pytorch_with_one_stem);
    tcase_add_test(all, empty_directory);
    tcase_add_test(all, reports_as_many_as_requested);
    suite_add_tcase(group, all);
    return group;
}

#include "check_main.h"
