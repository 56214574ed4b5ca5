/* SPDX-License-Identifier: Apache-2.0 */
#include "view/derived.h"

#include "view/index.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct derived {
    pthread_mutex_t lock; /* guards the rest; held while something is computed */
    struct {
        bool known;
        errint_t error;
        uint64_t size;
    } files[MADE_KINDS]; /* [MADE_PART].error: why there are no parts; its size is not used */
    struct layout_part *parts;
    uint64_t *part_sizes;
    size_t part_count;
    struct header_budget *budget;
    uint64_t charged; /* bytes, for the parts */
};

static void
drop_parts(struct derived *derived)
{
    free(derived->parts);
    free(derived->part_sizes);
    derived->parts = NULL;
    derived->part_sizes = NULL;
    derived->part_count = 0;
    header_budget_give(derived->budget, derived->charged);
    derived->charged = 0;
}

void
view_derived_free(void *pointer)
{
    struct derived *derived = pointer;

    drop_parts(derived);
    pthread_mutex_destroy(&derived->lock);
    free(derived);
}

static struct derived *
derived_of(struct checkpoint *checkpoint)
{
    void *derived = atomic_load(&checkpoint->derived);
    struct derived *fresh;

    if (derived)
        return derived;
    fresh = calloc(1, sizeof(*fresh));
    if (!fresh)
        return NULL;
    pthread_mutex_init(&fresh->lock, NULL);
    fresh->budget = catalog_budget(checkpoint->catalog);
    if (atomic_compare_exchange_strong(&checkpoint->derived, &derived, fresh)) {
        if (checkpoint->shard_count > 1)
            layout_check_metadata(checkpoint);
        return fresh;
    }
    view_derived_free(fresh);
    return derived;
}

/* Bytes for each tensor while a file is laid out: its position in shard order and in file order.
 * While a checkpoint is re-cut, also a part, counted twice for the copy when the array is resized,
 * and the part's size. */
enum {
    ORDER_BYTES = 2 * sizeof(struct tensor_ref),
    CUT_BYTES = 2 * sizeof(struct layout_part) + sizeof(uint64_t),
};

/* ---- sizes ---- */

/* A checkpoint of one file is served as that file, since tools identify it by its hash. */
static bool
is_the_shard(const struct checkpoint *checkpoint, size_t tensors)
{
    return checkpoint->shard_count == 1 && tensors == checkpoint->tensor_count;
}

/* The size of a file of `refs`, `tensors` tensors in shard order. */
static errint_t
size_of_tensors(const struct checkpoint *checkpoint, const struct tensor_ref *refs, size_t tensors,
                uint64_t *size)
{
    if (!is_the_shard(checkpoint, tensors))
        return layout_file(checkpoint, refs, tensors, size, NULL);
    *size = checkpoint->shards[0]->backing->identity.size;
    return 0;
}

static errint_t
cut_into_parts(const struct checkpoint *checkpoint, struct derived *derived,
               const struct view_options *options, const struct tensor_ref *refs)
{
    errint_t error = layout_cut(checkpoint, refs, options->shards, options->shard_size,
                                &derived->parts, &derived->part_count);

    if (error)
        return error;
    derived->part_sizes = calloc(derived->part_count, sizeof(*derived->part_sizes));
    if (!derived->part_sizes)
        return -ENOMEM;
    for (size_t i = 0; !error && i < derived->part_count; i++)
        error = size_of_tensors(checkpoint, refs + derived->parts[i].first, derived->parts[i].count,
                                &derived->part_sizes[i]);
    return error;
}

/* Computes the size of the merged file, or the parts and their sizes. -ENOBUFS: no room in the
 * budget. */
static errint_t
lay_out(const struct checkpoint *checkpoint, struct derived *derived,
        const struct view_options *options, enum made_kind kind, uint64_t *size)
{
    uint64_t bytes = (ORDER_BYTES + CUT_BYTES) * ((uint64_t)checkpoint->tensor_count + 16);
    struct tensor_ref *refs;
    errint_t error = header_budget_take(derived->budget, bytes);

    if (error)
        return error;
    refs = layout_shard_order(checkpoint);
    if (!refs)
        error = -ENOMEM;
    else if (kind == MADE_MERGED)
        error = size_of_tensors(checkpoint, refs, checkpoint->tensor_count, size);
    else
        error = cut_into_parts(checkpoint, derived, options, refs);
    free(refs);
    if (kind == MADE_PART)
        derived->charged =
            derived->part_count * (sizeof(*derived->parts) + sizeof(*derived->part_sizes));
    header_budget_settle(derived->budget, bytes, kind == MADE_PART ? derived->charged : 0);
    if (error && kind == MADE_PART)
        drop_parts(derived);
    return error;
}

static errint_t
write_made_index(const struct checkpoint *checkpoint, const struct derived *derived,
                 enum made_kind kind, struct buffer *text)
{
    const struct layout_part whole = {0, checkpoint->tensor_count};

    switch (kind) {
    case MADE_MERGED_INDEX:
        return index_of_parts(checkpoint, &whole, 1, text);
    case MADE_PART_INDEX:
        return index_of_parts(checkpoint, derived->parts, derived->part_count, text);
    case MADE_SHARD_INDEX:
        index_of_shards(checkpoint, text);
        return 0;
    default:
        index_of_tensors(checkpoint,
                         kind == MADE_TENSOR_INDEX_BY_FILE && checkpoint->shard_count
                             ? checkpoint->shards[0]->name
                             : checkpoint->stem,
                         text);
        return 0;
    }
}

static errint_t made_size(struct checkpoint *checkpoint, struct derived *derived,
                          const struct view_options *options, enum made_kind kind, uint64_t *size);

static errint_t
compute_made_size(struct checkpoint *checkpoint, struct derived *derived,
                  const struct view_options *options, enum made_kind kind, uint64_t *size)
{
    bool of_tensors = kind == MADE_TENSOR_INDEX || kind == MADE_TENSOR_INDEX_BY_FILE;
    struct buffer text = BUFFER_COUNTING;
    errint_t error = 0;

    if (checkpoint->unsound && !of_tensors)
        return -ENOENT;
    if (kind == MADE_MERGED || kind == MADE_PART)
        return lay_out(checkpoint, derived, options, kind, size);
    if (kind == MADE_MERGED_INDEX)
        error = made_size(checkpoint, derived, options, MADE_MERGED, size);
    else if (kind == MADE_PART_INDEX)
        error = made_size(checkpoint, derived, options, MADE_PART, size);
    if (!error)
        error = write_made_index(checkpoint, derived, kind, &text);
    *size = text.length;
    return error;
}

static errint_t
report_no_room(struct checkpoint *checkpoint)
{
    checkpoint_report_no_room(checkpoint, checkpoint->tensor_count, "a file made of its tensors");
    return -ENOMEM;
}

/* The size of a kind of file, computed once; derived->lock held. */
static errint_t
made_size(struct checkpoint *checkpoint, struct derived *derived,
          const struct view_options *options, enum made_kind kind, uint64_t *size)
{
    errint_t error;

    if (!derived->files[kind].known) {
        error = compute_made_size(checkpoint, derived, options, kind, &derived->files[kind].size);
        if (error == -ENOBUFS)
            error = report_no_room(checkpoint);
        if (error == -ENOMEM)
            return error;
        if (error == -EFBIG) {
            problem_set_add(checkpoint->problems, checkpoint->directory,
                            checkpoint->shard_count ? checkpoint->shards[0]->name : NULL,
                            "HeaderTooLarge: no %s: its header would be over %u bytes, and "
                            "safetensors could not read it",
                            kind == MADE_PART ? "re-cut shards" : "merged file", ST_MAX_HEADER);
            error = -ENOENT;
        }
        derived->files[kind].error = error;
        derived->files[kind].known = true;
    }
    *size = derived->files[kind].size;
    return derived->files[kind].error;
}

errint_t
derived_size(struct checkpoint *checkpoint, const struct view_options *options,
             const struct made *made, uint64_t *size)
{
    struct derived *derived = derived_of(checkpoint);
    errint_t error;

    if (!derived)
        return -ENOMEM;
    pthread_mutex_lock(&derived->lock);
    error = made_size(checkpoint, derived, options, made->kind, size);
    if (!error && made->kind == MADE_PART) {
        if (made->part < derived->part_count)
            *size = derived->part_sizes[made->part];
        else
            error = -ENOENT;
    }
    pthread_mutex_unlock(&derived->lock);
    return error;
}

errint_t
derived_parts(struct checkpoint *checkpoint, const struct view_options *options, uint32_t *parts)
{
    const struct made first = {MADE_PART, 0};
    uint64_t size;
    errint_t error = derived_size(checkpoint, options, &first, &size);

    /* The parts are immutable once they are computed. */
    *parts = error ? 0 : (uint32_t)derived_of(checkpoint)->part_count;
    return error;
}

/* ---- extent lists ---- */

errint_t
list_of_backing(struct backing *backing, struct extent_list **list)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;

    extent_builder_add_backing(&builder, backing, 0, backing->identity.size);
    *list = extent_builder_finish(&builder);
    return *list ? 0 : -ENOMEM;
}

errint_t
list_of_text(struct buffer *text, struct extent_list **list)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    bool failed = buffer_failed(text);
    struct blob *blob = failed ? NULL : blob_new(text->data, text->length);

    if (failed)
        buffer_free(text);
    *text = (struct buffer)BUFFER_INIT;
    if (!blob)
        return -ENOMEM;
    extent_builder_add_blob(&builder, blob, 0, blob->length);
    blob_unref(blob);
    *list = extent_builder_finish(&builder);
    return *list ? 0 : -ENOMEM;
}

static errint_t
list_of_tensors(const struct checkpoint *checkpoint, const struct layout_part *part,
                struct extent_list **list)
{
    struct header_budget *budget = catalog_budget(checkpoint->catalog);
    uint64_t bytes = ORDER_BYTES * ((uint64_t)checkpoint->tensor_count + 2), size;
    struct tensor_ref *refs;
    errint_t error;

    if (is_the_shard(checkpoint, part->count))
        return list_of_backing(checkpoint->shards[0]->backing, list);
    error = header_budget_take(budget, bytes);
    if (error)
        return error;
    header_budget_settle(budget, bytes, bytes); /* the list is charged before this is given back */
    refs = layout_shard_order(checkpoint);
    error = refs ? layout_file(checkpoint, refs + part->first, part->count, &size, list) : -ENOMEM;
    free(refs);
    header_budget_give(budget, bytes);
    return error;
}

static errint_t
list_of_index(const struct checkpoint *checkpoint, const struct derived *derived,
              enum made_kind kind, uint64_t size, struct extent_list **list)
{
    uint64_t bytes = size + sizeof(**list) + 2 * sizeof(struct extent);
    struct buffer text = BUFFER_INIT;
    errint_t error = header_budget_take(derived->budget, bytes);

    if (error)
        return error;
    buffer_reserve(&text, size);
    error = write_made_index(checkpoint, derived, kind, &text);
    if (!error)
        error = list_of_text(&text, list);
    buffer_free(&text);
    layout_settle_list(derived->budget, bytes, error ? NULL : *list);
    return error;
}

errint_t
derived_list(struct checkpoint *checkpoint, const struct view_options *options,
             const struct made *made, struct extent_list **list)
{
    const struct layout_part whole = {0, checkpoint->tensor_count};
    const struct derived *derived;
    uint64_t size;
    errint_t error = derived_size(checkpoint, options, made, &size);

    if (error)
        return error;
    derived = derived_of(checkpoint);
    if (made->kind == MADE_MERGED || made->kind == MADE_PART)
        error = list_of_tensors(
            checkpoint, made->kind == MADE_PART ? &derived->parts[made->part] : &whole, list);
    else
        error = list_of_index(checkpoint, derived, made->kind, size, list);
    return error == -ENOBUFS ? report_no_room(checkpoint) : error;
}
