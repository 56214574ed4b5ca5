/* SPDX-License-Identifier: Apache-2.0 */
#include "format/index.h"
#include "random.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static errint_t
parse(const char *json, size_t length, struct st_index **index, struct reason *reason)
{
    char *copy = malloc(length ? length : 1);

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, json, length);
    errint_t error = st_index_parse(copy, length, &container_safetensors, index, reason);
    free(copy);
    return error;
}

#define MAP(shard) "{\"weight_map\":{\"a\":\"" shard "\"}}"
#define GOOD "{\"a\":\"m.safetensors\"}"

static const struct {
    const char *json;
    const char *text; /* part of the reason; NULL: accepted */
} cases[] = {
    {MAP("model.safetensors"), NULL},
    {MAP("a.safetensors"), NULL},
    {MAP("..a.b c\\u00e9.safetensors"), "expected a plain name"},
    {MAP("\\u006d.safetensors"), NULL},
    {MAP(""), "names the file \"\""},
    {MAP(".safetensors"), "expected a plain name"},
    {MAP("safetensors"), "expected a plain name"},
    {MAP("model.bin"), "names the file \"model.bin\""},
    {MAP("model.safetensors.bin"), "expected a plain name"},
    {MAP("model.SAFETENSORS"), NULL},
    {MAP("model.Sft"), NULL},
    {MAP(".sft"), "expected a plain name"},
    {MAP("modelsft"), "expected a plain name"},
    {MAP("model.safetensors "), "expected a plain name"},
    {MAP("/model.safetensors"), "expected a plain name"},
    {MAP("\\/model.safetensors"), "expected a plain name"},
    {MAP("../model.safetensors"), "expected a plain name"},
    {MAP("a/model.safetensors"), "expected a plain name"},
    {MAP("a\\u002fmodel.safetensors"), "expected a plain name"},
    {MAP("a\\\\model.safetensors"), "expected a plain name"},
    {MAP(".model.safetensors"), "expected a plain name"},
    {MAP("a\\u0000.safetensors"), "\"a\\x00.safetensors\""},
    {MAP("a\\n.bin"), "\"a\\x0a.bin\""},
    {"\xEF\xBB\xBF{\"weight_map\":" GOOD "}", NULL},
    {" {\"weight_map\":{}} ", NULL},
    {"{\"weight_map\":" GOOD ",\"metadata\":[1,{}],\"other\":null}", NULL},
    {"", "not JSON"},
    {"\xEF\xBB\xBF", "not JSON"},
    {"{\"weight_map\":" GOOD "}x", "not JSON"},
    {"{\"weight_map\":" GOOD ",}", "not JSON"},
    {"{\"weight_map\":{\"\xff\":\"m.safetensors\"}}", "not UTF-8"},
    {"[]", "not a JSON object"},
    {"{}", "weight_map is missing"},
    {"{\"Weight_Map\":" GOOD "}", "weight_map is missing"},
    {"{\"metadata\":{\"weight_map\":" GOOD "}}", "weight_map is missing"},
    {"{\"weight_map\":null}", "weight_map is not an object"},
    {"{\"weight_map\":[\"m.safetensors\"]}", "weight_map is not an object"},
    {"{\"weight_map\":" GOOD ",\"weight_map\":" GOOD "}", "weight_map appears twice"},
    {"{\"weight_map\":{\"a\":1}}", "the value of \"a\" is not a string"},
    {"{\"weight_map\":{\"a\":null}}", "the value of \"a\" is not a string"},
    {"{\"weight_map\":{\"a\":\"m.safetensors\",\"a\":\"m.safetensors\"}}", "\"a\" more than once"},
    {"{\"weight_map\":{\"a\":\"m.safetensors\",\"b\":\"m.safetensors\",\"\\u0061\":"
     "\"n.safetensors\"}}",
     "\"a\" more than once"},
};

START_TEST(rules)
{
    struct st_index *index;
    struct reason reason;
    const char *json = cases[_i].json;
    errint_t error = parse(json, strlen(json), &index, &reason);

    if (!cases[_i].text) {
        ck_assert_msg(error == 0, "%s: %s", json, reason.text);
        st_index_free(index);
        return;
    }
    ck_assert_int_eq(error, -EBADMSG);
    ck_assert_str_eq(reason.rule, "InvalidIndex");
    ck_assert_msg(strstr(reason.text, cases[_i].text) != NULL, "%s: %s", json, reason.text);
}
END_TEST

START_TEST(sorted)
{
    const char json[] = "{\"weight_map\":{\"b\":\"n.safetensors\",\"ab\":\"m.safetensors\",\"\":"
                        "\"n.safetensors\",\"a\\u0000\":\"n.safetensors\",\"a\":"
                        "\"\\u006d.safetensors\",\"c\":\"k.safetensors\"}}";
    static const struct {
        const char *name;
        size_t length;
        const char *shard;
    } expected[] = {
        {"", 0, "n.safetensors"},   {"a", 1, "m.safetensors"}, {"a\0", 2, "n.safetensors"},
        {"ab", 2, "m.safetensors"}, {"b", 1, "n.safetensors"}, {"c", 1, "k.safetensors"},
    };
    struct st_index *index;
    struct reason reason;

    ck_assert_int_eq(parse(json, sizeof(json) - 1, &index, &reason), 0);
    ck_assert_uint_eq(index->shard_count, 3);
    ck_assert_str_eq(index->shards[0], "k.safetensors");
    ck_assert_str_eq(index->shards[1], "m.safetensors");
    ck_assert_str_eq(index->shards[2], "n.safetensors");
    ck_assert_uint_eq(index->count, 6);
    for (uint32_t i = 0; i < index->count; i++) {
        const struct st_index_entry *entry = &index->entries[i];
        ck_assert_uint_eq(entry->name_length, expected[i].length);
        ck_assert_mem_eq(index->text + entry->name, expected[i].name, expected[i].length);
        ck_assert_str_eq(index->shards[entry->shard], expected[i].shard);
    }
    ck_assert(!index->has_total_size);
    st_index_free(index);
}
END_TEST

START_TEST(total_sizes)
{
    static const struct {
        const char *metadata;
        bool has;
        uint64_t size;
        const char *bad;
    } sizes[] = {
        {"{\"total_size\":0}", true, 0, ""},
        {"{\"total_size\":50182743296,\"x\":[]}", true, 50182743296u, ""},
        {"{\"total_size\":5.0}", true, 5, ""},
        {"{\"total_size\":9007199254740992}", true, 9007199254740992u, ""},
        {"{\"total_size\":9007199254740994}", false, 0, "9007199254740994"},
        {"{\"total_size\":5.5}", false, 0, "5.5"},
        {"{\"total_size\":-1}", false, 0, "-1"},
        {"{\"total_size\":1e300}", false, 0, "1e+300"},
        {"{\"total_size\":\"5\\u001b\"}", false, 0, "\"5\\\\u001b\""},
        {"{\"total_size\":null}", false, 0, "null"},
        {"{\"total_size\":true}", false, 0, "true"},
        {"{\"Total_Size\":5}", false, 0, ""},
        {"[5]", false, 0, ""},
        {"null", false, 0, ""},
        {"5", false, 0, ""},
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct buffer text = BUFFER_INIT;
        struct st_index *index;
        struct reason reason;
        buffer_addf(&text, "{\"metadata\":%s,\"weight_map\":{}}", sizes[i].metadata);
        ck_assert_int_eq(parse(text.data, text.length, &index, &reason), 0);
        ck_assert_msg(index->has_total_size == sizes[i].has, "%s", sizes[i].metadata);
        ck_assert_uint_eq(index->total_size, sizes[i].size);
        ck_assert_str_eq(index->bad_total_size, sizes[i].bad);
        st_index_free(index);
        buffer_free(&text);
    }
}
END_TEST

START_TEST(too_big)
{
    struct st_index *index;
    struct reason reason;

    ck_assert_int_eq(
        st_index_parse("", (size_t)ST_MAX_INDEX + 1, &container_safetensors, &index, &reason),
        -EBADMSG);
    ck_assert_str_eq(reason.rule, "InvalidIndex");
}
END_TEST

/* Changed and truncated texts: any result, but no access out of bounds. */
START_TEST(mutations)
{
    static const char json[] =
        "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\\n\":"
        "\"m-1.safetensors\",\"c\":\"m-2.safetensors\"}} ";
    unsigned good = 0;

    random_state = 11;
    for (unsigned turn = 0; turn < 20000; turn++) {
        char changed[sizeof(json)];
        size_t length = sizeof(json) - 1;
        struct st_index *index;
        struct reason reason;
        memcpy(changed, json, sizeof(json));
        changed[random_below(length)] = "{}[]\",:\\01a u/\x80"[random_below(15)];
        if (random_below(4) == 0)
            length = random_below(length);
        if (parse(changed, length, &index, &reason) == 0) {
            good++;
            st_index_free(index);
        }
    }
    ck_assert_uint_gt(good, 100);
    ck_assert_uint_lt(good, 19900);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("index");
    TCase *c = tcase_create("index");

    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, rules, 0, sizeof(cases) / sizeof(cases[0]));
    tcase_add_test(c, sorted);
    tcase_add_test(c, total_sizes);
    tcase_add_test(c, too_big);
    tcase_add_test(c, mutations);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
