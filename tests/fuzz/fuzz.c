/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz.h"

#include "base/quote.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Maximum of requested memory: much more than any input may need. */
#define ADMITTED_MOST (UINT64_C(64) << 20)

/* The original stderr. libFuzzer took its own copy of it before fuzz_quiet(). */
static FILE *real_stderr;

void
fuzz_quiet(void)
{
    FILE *nowhere = fopen("/dev/null", "w");

    real_stderr = stderr;
    if (nowhere)
        stdout = stderr = nowhere;
}

void
fuzz_fail(const char *file, int line, const char *what)
{
    fprintf(real_stderr ? real_stderr : stderr, "%s:%d: failed: %s\n", file, line, what);
    abort();
}

uint8_t
input_byte(struct input *input)
{
    if (!input->left)
        return 0;
    input->left--;
    return (uint8_t)*input->at++;
}

uint64_t
input_number(struct input *input)
{
    uint64_t number = 0;

    for (unsigned i = 0; i < 8; i++)
        number |= (uint64_t)input_byte(input) << 8 * i;
    return number;
}

const char *
input_text(struct input *input, size_t *length)
{
    const char *text = input->at;
    const char *end = input->left ? memchr(text, 0xff, input->left) : NULL;

    *length = end ? (size_t)(end - text) : input->left;
    input->at += *length + (end ? 1 : 0);
    input->left -= *length + (end ? 1 : 0);
    return text;
}

int
fuzz_file(const char *name)
{
    int fd = memfd_create(name, 0);

    EXPECT(fd >= 0);
    return fd;
}

void
fuzz_file_write(int fd, const uint8_t *data, size_t size)
{
    EXPECT(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
}

errint_t
fuzz_admit(void *arg, uint64_t bytes, struct reason *reason)
{
    (void)arg;
    (void)reason;
    EXPECT(bytes <= ADMITTED_MOST);
    return 0;
}

bool
fuzz_is_shown(const char *text, size_t length)
{
    for (size_t at = 0; at < length;) {
        uint32_t code;
        unsigned used = utf8_decode(text + at, length - at, &code);

        if (!used || quote_hides(code))
            return false;
        at += used;
    }
    return true;
}

void
fuzz_expect_reason(const struct reason *reason)
{
    size_t length = strnlen(reason->text, sizeof(reason->text));

    EXPECT(reason->rule && *reason->rule);
    EXPECT(length > 0 && length < sizeof(reason->text));
    EXPECT(fuzz_is_shown(reason->text, length));
}

void
fuzz_expect_problems(struct problems *problems, struct problem_set *set, const char *start)
{
    struct buffer out = BUFFER_INIT;
    size_t at = 0;

    problems_write(problems, &set, 1, &out);
    EXPECT(!buffer_failed(&out));
    while (at < out.length) {
        const char *line = out.data + at;
        size_t length = strcspn(line, "\n");

        EXPECT(strncmp(line, start, strlen(start)) == 0 && line[length] == '\n');
        EXPECT(fuzz_is_shown(line, length));
        at += length + 1;
    }
    buffer_free(&out);
}

int
fuzz_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);

    return order ? order : (a_length > b_length) - (a_length < b_length);
}

/* ---- tables ---- */

static void
expect_size(const struct st_table *table, const struct st_tensor *tensor)
{
    unsigned __int128 bits = 1;
    size_t length;
    const char *dtype = st_dtype_text(table, tensor, &length);

    EXPECT(dtype_from_name(dtype, length) == (enum dtype)tensor->dtype);
    if (tensor->dtype == DTYPE_UNKNOWN)
        return;
    /* No intermediate product exceeds 2^64: the parser refuses such shapes. */
    for (uint32_t d = 0; d < tensor->rank; d++)
        bits *= table->dims[tensor->shape + d];
    EXPECT(bits * dtype_bits((enum dtype)tensor->dtype) ==
           (unsigned __int128)(tensor->end - tensor->begin) * 8);
}

static int
compare_places(const void *a, const void *b, void *data)
{
    const struct st_table *table = data;
    const struct st_tensor *x = &table->tensors[*(const uint32_t *)a];
    const struct st_tensor *y = &table->tensors[*(const uint32_t *)b];

    return fuzz_compare(table->text + x->name, x->name_length, table->text + y->name,
                        y->name_length);
}

static void
expect_names_differ(const struct st_table *table)
{
    uint32_t *order = malloc((table->count + 1) * sizeof(*order));

    EXPECT(order);
    for (uint32_t i = 0; i < table->count; i++)
        order[i] = i;
    qsort_r(order, table->count, sizeof(*order), compare_places, (void *)table);
    for (uint32_t i = 1; i < table->count; i++)
        EXPECT(compare_places(&order[i - 1], &order[i], (void *)table) < 0);
    free(order);
}

void
fuzz_expect_table(const struct st_table *table, uint64_t data_length)
{
    uint64_t at = 0;

    EXPECT(table->data_length == data_length);
    EXPECT(table->has_metadata || table->metadata_count == 0);
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        EXPECT(tensor->begin == at && tensor->end >= at);
        EXPECT(fuzz_compare(table->text + tensor->name, tensor->name_length, "__metadata__", 12));
        at = tensor->end;
        expect_size(table, tensor);
    }
    EXPECT(at == data_length);
    expect_names_differ(table);
    for (uint32_t i = 1; i < table->metadata_count; i++) {
        const struct st_metadata *a = &table->metadata[i - 1], *b = a + 1;

        EXPECT(fuzz_compare(table->text + a->key, a->key_length, table->text + b->key,
                            b->key_length) < 0);
    }
}

void
fuzz_expect_in_file(const struct st_table *table, uint64_t file_size)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        EXPECT(tensor->begin <= tensor->end);
        EXPECT(tensor->begin == tensor->end || table->data_start + tensor->end <= file_size);
        expect_size(table, tensor);
    }
}

/* ---- cJSON as the second reader ---- */

/* cJSON's strings end at a NUL, so only the text before the first one is compared. */
static bool
same_text(const char *seen, const char *text, size_t length)
{
    return seen && strlen(seen) == strnlen(text, length) && memcmp(seen, text, strlen(seen)) == 0;
}

/* cJSON's numbers are doubles. */
static bool
same_number(const cJSON *seen, uint64_t number)
{
    return cJSON_IsNumber(seen) && seen->valuedouble == (double)number;
}

/* The tensor of an item of the header: the one at its place, or another empty one, since the table
 * sorts empty tensors at the same offset by name. */
static const struct st_tensor *
tensor_of(const cJSON *item, const struct st_table *table, uint32_t place)
{
    const struct st_tensor *first = &table->tensors[place];

    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[(place + i) % table->count];

        if (same_text(item->string, table->text + tensor->name, tensor->name_length) &&
            (i == 0 || tensor->begin == tensor->end))
            return tensor;
    }
    return first;
}

static void
expect_tensor(const cJSON *item, const struct st_table *table, const struct st_tensor *tensor)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    size_t length;
    const char *name = st_dtype_text(table, tensor, &length);
    uint32_t rank = 0;

    EXPECT(same_text(item->string, table->text + tensor->name, tensor->name_length));
    EXPECT(cJSON_IsString(dtype) && same_text(dtype->valuestring, name, length));
    for (const cJSON *dim = shape->child; dim; dim = dim->next, rank++)
        EXPECT(rank < tensor->rank && same_number(dim, table->dims[tensor->shape + rank]));
    EXPECT(rank == tensor->rank);
    EXPECT(cJSON_GetArraySize(offsets) == 2);
    EXPECT(same_number(cJSON_GetArrayItem(offsets, 0), tensor->begin));
    EXPECT(same_number(cJSON_GetArrayItem(offsets, 1), tensor->end));
}

/* The header has the pairs in any order, the table by key. */
static bool
has_pair(const struct st_table *table, const cJSON *pair)
{
    for (uint32_t i = 0; i < table->metadata_count; i++) {
        const struct st_metadata *known = &table->metadata[i];

        if (same_text(pair->string, table->text + known->key, known->key_length) &&
            same_text(pair->valuestring, table->text + known->value, known->value_length))
            return true;
    }
    return false;
}

static void
expect_metadata(const cJSON *item, const struct st_table *table)
{
    uint32_t count = 0;

    for (const cJSON *pair = item->child; pair; pair = pair->next, count++)
        EXPECT(has_pair(table, pair));
    EXPECT(count == table->metadata_count);
}

void
fuzz_expect_header(const char *json, size_t length, const struct st_table *table)
{
    cJSON *root = cJSON_ParseWithLength(json, length);
    const cJSON *item;
    uint32_t i = 0;

    EXPECT(root && cJSON_IsObject(root));
    item = root->child;
    if (item && strcmp(item->string, "__metadata__") == 0) {
        expect_metadata(item, table);
        item = item->next;
    } else {
        EXPECT(table->metadata_count == 0);
    }
    for (; item; item = item->next, i++) {
        EXPECT(i < table->count);
        expect_tensor(item, table, tensor_of(item, table, i));
    }
    EXPECT(i == table->count);
    cJSON_Delete(root);
}
