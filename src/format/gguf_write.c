/* SPDX-License-Identifier: Apache-2.0 */
/* See gguf_write.h. */
#include "format/gguf_write.h"

#include "base/text.h"

#include <inttypes.h>
#include <string.h>

enum { VERSION_WRITTEN = 3 };

/* ---- checks ---- */

static bool
has_split_key(const struct gguf_info *info, enum gguf_split_key key)
{
    return info->split[key].end != 0;
}

static errint_t
check_part(const struct gguf_info *info, uint32_t part, uint32_t count, struct reason *reason)
{
    const uint64_t *value = info->split_value;

    if (!has_split_key(info, GGUF_SPLIT_NO) || value[GGUF_SPLIT_NO] != part)
        return gguf_refuse(reason, "GgufSplit", "split.no is %" PRIu64 "%s, expected %" PRIu32,
                           value[GGUF_SPLIT_NO],
                           has_split_key(info, GGUF_SPLIT_NO) ? "" : " (absent)", part);
    if ((part == 0 || has_split_key(info, GGUF_SPLIT_COUNT)) && value[GGUF_SPLIT_COUNT] != count)
        return gguf_refuse(reason, "GgufSplit", "split.count is %" PRIu64 ", expected %" PRIu32,
                           value[GGUF_SPLIT_COUNT], count);
    if (part == 0 && info->alignment > GGUF_MERGE_ALIGNMENT)
        return gguf_refuse(reason, "GgufAlignment",
                           "general.alignment is %" PRIu32
                           ", expected at most %d to merge the parts",
                           info->alignment, GGUF_MERGE_ALIGNMENT);
    return 0;
}

/* Checks that keys of both parts have the same value. Keys that only `table` has are ignored, as in
 * llama.cpp. Both tables are sorted by key. */
static errint_t
check_part_keys(const struct st_table *first, const struct st_table *table, struct reason *reason)
{
    char shown[QUOTED_SIZE];
    uint32_t at = 0;

    for (uint32_t i = 0; i < table->metadata_count; i++) {
        const struct st_metadata *pair = &table->metadata[i], *same;
        const char *key = table->text + pair->key;
        int order = 1;

        while (at < first->metadata_count &&
               (order = text_compare(first->text + first->metadata[at].key,
                                     first->metadata[at].key_length, key, pair->key_length)) < 0)
            at++;
        if (at == first->metadata_count || order != 0)
            continue;
        same = &first->metadata[at];
        if (same->is_json != pair->is_json ||
            text_compare(first->text + same->value, same->value_length, table->text + pair->value,
                         pair->value_length) != 0)
            return gguf_refuse(reason, "GgufSplit",
                               "the value of key \"%s\" differs from that in the first part",
                               quoted(shown, key, pair->key_length));
    }
    return 0;
}

errint_t
gguf_check_parts(const struct st_table *const *tables, uint32_t count, uint32_t *part,
                 struct reason *reason)
{
    const struct gguf_info *first = tables[0]->gguf;
    uint64_t tensors = 0;
    errint_t error;

    if (count == 1 && !gguf_is_part(first))
        return 0;
    for (*part = 0; *part < count; ++*part) {
        error = check_part(tables[*part]->gguf, *part, count, reason);
        if (!error && *part)
            error = check_part_keys(tables[0], tables[*part], reason);
        if (error)
            return error;
        tensors += tables[*part]->count;
    }
    *part = 0;
    if (first->split_value[GGUF_SPLIT_TENSORS] != tensors)
        return gguf_refuse(reason, "GgufSplit",
                           "split.tensors.count is %" PRIu64 ", all parts have %" PRIu64 " tensors",
                           first->split_value[GGUF_SPLIT_TENSORS], tensors);
    return 0;
}

/* ---- the header ---- */

static void
add_u32le(struct buffer *out, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        buffer_add_char(out, (char)(value >> 8 * i));
}

static uint64_t
total_tensors(const struct st_table *const *tables, uint32_t count)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += tables[i]->count;
    return sum;
}

static void
add_head(struct buffer *out, uint64_t tensors, const struct gguf_info *first)
{
    uint64_t pairs = first->pair_count;

    for (int key = 0; key < GGUF_SPLIT_KEYS; key++)
        pairs -= has_split_key(first, (enum gguf_split_key)key);
    buffer_add_text(out, "GGUF");
    add_u32le(out, VERSION_WRITTEN);
    buffer_add_u64le(out, tensors);
    buffer_add_u64le(out, pairs);
}

/* Adds the descriptions of a part's tensors. Returns the end of their data, which begins at
 * `offset`. */
static uint64_t
add_infos(struct buffer *out, const struct st_table *table, uint32_t alignment, uint64_t offset)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        buffer_add_u64le(out, tensor->name_length);
        buffer_add(out, table->text + tensor->name, tensor->name_length);
        add_u32le(out, tensor->rank);
        for (uint32_t d = tensor->rank; d-- > 0;)
            buffer_add_u64le(out, table->dims[tensor->shape + d]);
        add_u32le(out, gguf_type_number(table, tensor));
        buffer_add_u64le(out, offset);
        offset += gguf_padded(tensor->end - tensor->begin, alignment);
    }
    return offset;
}

/* ---- runs ---- */

struct run_adder {
    void (*add)(void *arg, const struct gguf_run *run);
    void *arg;
    uint64_t position; /* in the merged file */
};

static void
add_run(struct run_adder *runs, const struct gguf_run *run)
{
    runs->position += run->length;
    if (runs->add && (run->length || run->kind == GGUF_RUN_TENSOR))
        runs->add(runs->arg, run);
}

/* Adds the ranges of key-values without the split keys. */
static void
add_pair_runs(struct run_adder *runs, const struct gguf_info *info)
{
    uint64_t at = info->pairs.start;

    for (;;) {
        struct gguf_range next = {info->pairs.end, info->pairs.end};

        for (int key = 0; key < GGUF_SPLIT_KEYS; key++)
            if (has_split_key(info, (enum gguf_split_key)key) && info->split[key].start >= at &&
                info->split[key].start < next.start)
                next = info->split[key];
        add_run(runs, &(struct gguf_run){
                          .kind = GGUF_RUN_PAIRS, .offset = at, .length = next.start - at});
        at = next.end;
        if (next.start == info->pairs.end)
            return;
    }
}

static void
add_tensor_runs(struct run_adder *runs, const struct st_table *table, uint32_t alignment,
                uint32_t part)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];
        uint64_t length = tensor->end - tensor->begin;

        add_run(runs, &(struct gguf_run){.kind = GGUF_RUN_TENSOR,
                                         .part = part,
                                         .tensor = i,
                                         .offset = table->data_start + tensor->begin,
                                         .length = length});
        add_run(runs, &(struct gguf_run){.kind = GGUF_RUN_ZERO,
                                         .length = gguf_padded(length, alignment) - length});
    }
}

uint64_t
gguf_merge(const struct st_table *const *tables, uint32_t count, struct buffer *header,
           void (*add)(void *arg, const struct gguf_run *run), void *arg)
{
    const struct gguf_info *first = tables[0]->gguf;
    struct run_adder runs = {add, arg, 0};
    const size_t start = header->length;
    uint64_t offset = 0, length;

    add_head(header, total_tensors(tables, count), first);
    add_run(&runs, &(struct gguf_run){.kind = GGUF_RUN_HEADER, .length = GGUF_HEAD_BYTES});
    add_pair_runs(&runs, first);
    for (uint32_t i = 0; i < count; i++)
        offset = add_infos(header, tables[i], first->alignment, offset);
    length = header->length - start - GGUF_HEAD_BYTES + runs.position;
    buffer_add_repeat(header, '\0', gguf_padded(length, first->alignment) - length);
    add_run(&runs, &(struct gguf_run){.kind = GGUF_RUN_HEADER,
                                      .offset = GGUF_HEAD_BYTES,
                                      .length = header->length - start - GGUF_HEAD_BYTES});
    for (uint32_t i = 0; i < count; i++)
        add_tensor_runs(&runs, tables[i], first->alignment, i);
    return runs.position;
}
