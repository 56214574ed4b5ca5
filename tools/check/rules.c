/* SPDX-License-Identifier: Apache-2.0 */
#include "rules.h"

#include "base/array.h"
#include "base/text.h"
#include "format/json.h"
#include "view/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static uint64_t
element_bytes(const struct st_tensor *tensor)
{
    unsigned bits = tensor->dtype == DTYPE_UNKNOWN ? 8 : dtype_bits((enum dtype)tensor->dtype);

    return bits < 8 ? 1 : bits / 8;
}

static void
check_alignment(struct findings *findings, const char *path, const struct st_table *table)
{
    const struct st_tensor *first = NULL;
    char name[QUOTED_SIZE];
    uint32_t count = 0;

    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        if (tensor->begin == tensor->end ||
            (table->data_start + tensor->begin) % element_bytes(tensor) == 0)
            continue;
        first = first ? first : tensor;
        count++;
    }
    if (count > 0)
        findings_add(findings, strdup(path), false,
                     "%" PRIu32 " of %" PRIu32
                     " tensors are not at a multiple of their element size (the first is %s,"
                     " %s at byte %" PRIu64 "): PyTorch copies or rejects them",
                     count, table->count,
                     quoted(name, table->text + first->name, first->name_length),
                     dtype_name((enum dtype)first->dtype), table->data_start + first->begin);
}

/* Checks the format in __metadata__, which loaders read. */
static void
check_format(struct findings *findings, const char *path, const struct st_table *table)
{
    static const char *const known[] = {"pt", "tf", "flax", "np", "mlx"};
    char shown[QUOTED_SIZE];

    for (uint32_t i = 0; i < table->metadata_count; i++) {
        const struct st_metadata *pair = &table->metadata[i];
        const char *value = table->text + pair->value;
        bool is_known = false;

        if (!text_is(table->text + pair->key, pair->key_length, "format"))
            continue;
        for (size_t k = 0; k < COUNT_OF(known); k++)
            is_known = is_known || text_is(value, pair->value_length, known[k]);
        if (!is_known)
            findings_add(
                findings, strdup(path), false,
                "unknown format in __metadata__ (found \"%s\", expected pt, tf, flax, np or "
                "mlx)",
                quoted(shown, value, pair->value_length));
    }
}

/* Adds a finding and returns false if the text is not UTF-8. */
static bool
check_gguf_text(struct findings *findings, const char *path, const char *what, struct st_text text)
{
    char shown[QUOTED_SIZE];
    size_t at;

    if (json_check_utf8(text.text, text.length, &at))
        return true;
    findings_add(findings, strdup(path), false,
                 "%s \"%s\" is not UTF-8: GGUFReader of the gguf package fails", what,
                 quoted(shown, text.text, text.length));
    return false;
}

/* Reports the first key and the first name that are not UTF-8. llama.cpp does not check them, so
 * gguf_read() accepts them. */
static void
check_gguf_names(struct findings *findings, const char *path, const struct st_table *table)
{
    bool is_fine = true;

    for (uint32_t i = 0; is_fine && i < table->metadata_count; i++)
        is_fine = check_gguf_text(
            findings, path, "key",
            (struct st_text){table->text + table->metadata[i].key, table->metadata[i].key_length});
    is_fine = true;
    for (uint32_t i = 0; is_fine && i < table->count; i++)
        is_fine = check_gguf_text(
            findings, path, "tensor",
            (struct st_text){table->text + table->tensors[i].name, table->tensors[i].name_length});
}

void
rules_check_table(struct findings *findings, const char *path, const struct st_table *table)
{
    if (table->gguf) {
        check_gguf_names(findings, path, table);
        return; /* the rules below are those of safetensors; gguf_read() checks its own */
    }
    check_alignment(findings, path, table);
    check_format(findings, path, table);
}

/* The bytes of all tensors of a file, or only of the parts of the file that they cover: tensors of
 * PyTorch may share storage, which writers of indexes count for each tensor or once. */
static uint64_t
tensor_bytes(const struct st_table *table, bool shared_once)
{
    uint64_t sum = 0, end = 0;

    for (uint32_t i = 0; i < table->count; i++) { /* sorted by begin */
        const struct st_tensor *tensor = &table->tensors[i];
        uint64_t begin = shared_once && tensor->begin < end ? end : tensor->begin;

        sum += tensor->end > begin ? tensor->end - begin : 0;
        end = tensor->end > end ? tensor->end : end;
    }
    return sum;
}

void
rules_check_total_size(struct findings *findings, const struct checkpoint *checkpoint,
                       const char *index, uint32_t missing_shards)
{
    const bool is_converted = checkpoint->container->is_converted;
    uint64_t least = 0, most = 0, found = checkpoint->total_size;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];

        if (is_converted && (!shard->table || shard->table->refused_count))
            return; /* the size of some tensors is unknown */
        least += shard->table ? tensor_bytes(shard->table, true) : 0;
        most += shard->table ? tensor_bytes(shard->table, false) : 0;
    }
    if (found >= least && found <= most)
        return;
    if (!is_converted && missing_shards && found > most)
        findings_add(findings, strdup(index), false,
                     "%" PRIu64 " of %" PRIu64 " bytes of tensors are missing, in %" PRIu32
                     " missing shards",
                     found - most, found, missing_shards);
    else if (!checkpoint->unsound && least == most)
        findings_add(findings, strdup(index), false,
                     "wrong metadata.total_size (found %" PRIu64 ", expected %" PRIu64
                     ", the size of the tensors)",
                     found, most);
    else if (!checkpoint->unsound)
        findings_add(findings, strdup(index), false,
                     "wrong metadata.total_size (found %" PRIu64 ", expected %" PRIu64
                     " to %" PRIu64 ", the size of the tensors, which share storage)",
                     found, least, most);
}

errint_t
rules_check_merged_header(const struct checkpoint *checkpoint)
{
    struct tensor_ref *refs;
    uint64_t headers = 0, size;
    errint_t error;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i]->table)
            headers += checkpoint->shards[i]->table->data_start;
    if (checkpoint->unsound || checkpoint->shard_count == 1 || headers < ST_MAX_HEADER / 2 ||
        checkpoint->container == &container_gguf)
        return 0;
    refs = layout_shard_order(checkpoint);
    error = refs ? layout_file(checkpoint, refs, checkpoint->tensor_count, &size, NULL) : -ENOMEM;
    free(refs);
    if (error == -EFBIG)
        problem_set_add(checkpoint->problems, checkpoint->shards[0]->name,
                        "HeaderTooLarge: the header of the merged file would be longer than "
                        "safetensors can read (%u bytes)",
                        ST_MAX_HEADER);
    return error == -EFBIG ? 0 : error;
}
