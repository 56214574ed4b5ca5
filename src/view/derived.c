/* SPDX-License-Identifier: Apache-2.0 */
#include "view/derived.h"

#include "base/array.h"
#include "view/gguf_layout.h"
#include "view/index.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The files that a checkpoint is cut into. */
struct cut {
    struct layout_part *parts;
    uint64_t *sizes;
    size_t count;
    uint64_t charged; /* bytes */
};

struct derived {
    pthread_mutex_t lock; /* guards the rest; held while something is computed */
    struct {
        bool known;
        errint_t error;
        uint64_t size;
    } files[MADE_KINDS]; /* MADE_PART and MADE_SHARD: `size` is unused; the sizes are in cuts[] */
    struct cut cuts[2]; /* see cut_of() */
    struct header_budget *budget;
};

/* The cut that files of this kind are parts of: of the source's shards, or of re-cut shards. */
static struct cut *
cut_of(struct derived *derived, enum made_kind kind)
{
    return &derived->cuts[kind == MADE_SHARD || kind == MADE_SHARD_INDEX];
}

static void
drop_cut(struct derived *derived, struct cut *cut)
{
    free(cut->parts);
    free(cut->sizes);
    header_budget_give(derived->budget, cut->charged);
    *cut = (struct cut){0};
}

void
view_derived_free(void *pointer)
{
    struct derived *derived = pointer;

    for (size_t i = 0; i < COUNT_OF(derived->cuts); i++)
        drop_cut(derived, &derived->cuts[i]);
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

/* Bytes per tensor while a file is laid out: its position in shard order and in file order. While a
 * checkpoint is cut, also a part, counted twice because resizing copies the array, and the size of
 * the part. */
enum {
    ORDER_BYTES = 2 * sizeof(struct tensor_ref),
    CUT_BYTES = 2 * sizeof(struct layout_part) + sizeof(uint64_t),
};

/* ---- sizes ---- */

/* A checkpoint of one file is shown unchanged, since tools identify it by its hash. */
static bool
is_shown_unchanged(const struct checkpoint *checkpoint, size_t tensors)
{
    return checkpoint->shard_count == 1 && tensors == checkpoint->tensor_count &&
           !checkpoint->container->is_converted;
}

static bool
is_gguf_checkpoint(const struct checkpoint *checkpoint)
{
    return checkpoint->container == &container_gguf;
}

/* Computes the size of the file that contains `refs`, `tensors` tensors in shard order. */
static errint_t
size_of_tensors(const struct checkpoint *checkpoint, const struct tensor_ref *refs, size_t tensors,
                uint64_t *size)
{
    if (is_shown_unchanged(checkpoint, tensors)) {
        *size = checkpoint->shards[0]->backing->identity.size;
        return 0;
    }
    return is_gguf_checkpoint(checkpoint) ? gguf_layout_file(checkpoint, size, NULL)
                                          : layout_file(checkpoint, refs, tensors, size, NULL);
}

static errint_t
cut_into_parts(const struct checkpoint *checkpoint, struct cut *cut, enum made_kind kind,
               const struct view_options *options, const struct tensor_ref *refs)
{
    errint_t error = kind == MADE_SHARD ? layout_cut_shards(checkpoint, &cut->parts, &cut->count)
                                        : layout_cut(checkpoint, refs, options->shards,
                                                     options->shard_size, &cut->parts, &cut->count);

    if (error)
        return error;
    cut->sizes = calloc(cut->count, sizeof(*cut->sizes));
    if (!cut->sizes)
        return -ENOMEM;
    for (size_t i = 0; !error && i < cut->count; i++)
        error = size_of_tensors(checkpoint, refs + cut->parts[i].first, cut->parts[i].count,
                                &cut->sizes[i]);
    return error;
}

/* Computes the size of the merged file, or the parts and their sizes. -ENOBUFS: no room in the
 * budget. */
static errint_t
lay_out(const struct checkpoint *checkpoint, struct derived *derived,
        const struct view_options *options, enum made_kind kind, uint64_t *size)
{
    uint64_t bytes = (ORDER_BYTES + CUT_BYTES) *
                     ((uint64_t)checkpoint->tensor_count + checkpoint->shard_count + 16);
    struct cut *cut = kind == MADE_MERGED ? NULL : cut_of(derived, kind);
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
        error = cut_into_parts(checkpoint, cut, kind, options, refs);
    free(refs);
    if (cut)
        cut->charged = cut->count * (sizeof(*cut->parts) + sizeof(*cut->sizes));
    header_budget_settle(derived->budget, bytes, cut ? cut->charged : 0);
    if (error && cut)
        drop_cut(derived, cut);
    return error;
}

static errint_t
write_made_index(const struct checkpoint *checkpoint, struct derived *derived, enum made_kind kind,
                 struct buffer *text)
{
    const struct layout_part whole = {0, checkpoint->tensor_count};
    const struct cut *cut = cut_of(derived, kind);

    switch (kind) {
    case MADE_MERGED_INDEX:
        return index_of_parts(checkpoint, &whole, 1, text);
    case MADE_PART_INDEX:
    case MADE_SHARD_INDEX: /* parts is NULL if the view shows the source's */
        return index_of_parts(checkpoint, cut->parts, cut->count, text);
    default:
        index_of_tensors(checkpoint,
                         kind == MADE_TENSOR_INDEX_BY_FILE && checkpoint->shard_count
                             ? checkpoint->shards[0]->name
                             : checkpoint->stem,
                         text);
        return 0;
    }
}

/* Indexes in tensors/. They name the tensors that can be read, so they exist without the others. */
static bool
is_of_tensors(enum made_kind kind)
{
    return kind == MADE_TENSOR_INDEX || kind == MADE_TENSOR_INDEX_BY_FILE;
}

bool
derived_is_unread(const struct checkpoint *checkpoint, enum made_kind kind)
{
    return checkpoint->has_unread_index || (checkpoint->has_unread_shard && !is_of_tensors(kind));
}

static errint_t made_size(struct checkpoint *checkpoint, struct derived *derived,
                          const struct view_options *options, enum made_kind kind, uint64_t *size);

static errint_t
compute_made_size(struct checkpoint *checkpoint, struct derived *derived,
                  const struct view_options *options, enum made_kind kind, uint64_t *size)
{
    struct buffer text = BUFFER_COUNTING;
    errint_t error = 0;

    if (checkpoint->is_absent || checkpoint->has_unread_index ||
        (checkpoint_fault(checkpoint) && !is_of_tensors(kind)))
        return -ENOENT;
    if (kind == MADE_MERGED || kind == MADE_PART || kind == MADE_SHARD)
        return lay_out(checkpoint, derived, options, kind, size);
    if (kind == MADE_MERGED_INDEX)
        error = made_size(checkpoint, derived, options, MADE_MERGED, size);
    else if (kind == MADE_PART_INDEX)
        error = made_size(checkpoint, derived, options, MADE_PART, size);
    else if (kind == MADE_SHARD_INDEX && checkpoint->container->is_converted)
        error = made_size(checkpoint, derived, options, MADE_SHARD, size);
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

/* `error`: of layout_file(). */
static void
report_too_large(struct checkpoint *checkpoint, enum made_kind kind, errint_t error)
{
    const char *file = checkpoint->shard_count ? checkpoint->shards[0]->name : NULL;
    const char *what = kind == MADE_MERGED  ? "merged file"
                       : kind == MADE_SHARD ? "converted shards"
                                            : "re-cut shards";

    if (error == -EFBIG)
        problem_set_add(checkpoint->problems, file,
                        "HeaderTooLarge: no %s: its header would be over %u bytes, and safetensors "
                        "could not read it",
                        what, ST_MAX_HEADER);
    else
        problem_set_add(checkpoint->problems, file,
                        "no %s: it would be longer than a file can be (2^63 bytes)", what);
}

/* Returns the size of a kind of file, which is computed once. derived->lock is held. */
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
        if (error == -EFBIG || error == -EOVERFLOW) {
            report_too_large(checkpoint, kind, error);
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
    if (!error && (made->kind == MADE_PART || made->kind == MADE_SHARD)) {
        const struct cut *cut = cut_of(derived, made->kind);

        if (made->part < cut->count)
            *size = cut->sizes[made->part];
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
    if (!error)
        *parts = (uint32_t)cut_of(derived_of(checkpoint), MADE_PART)->count;
    else
        *parts = error == -ENOMEM ? PARTS_UNKNOWN : 0;
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

    extent_builder_add_buffer(&builder, text);
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

    if (is_shown_unchanged(checkpoint, part->count))
        return list_of_backing(checkpoint->shards[0]->backing, list);
    if (is_gguf_checkpoint(checkpoint))
        return gguf_layout_file(checkpoint, &size, list);
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
list_of_index(const struct checkpoint *checkpoint, struct derived *derived, enum made_kind kind,
              uint64_t size, struct extent_list **list)
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
    struct derived *derived;
    uint64_t size;
    errint_t error = derived_size(checkpoint, options, made, &size);

    if (error)
        return error;
    derived = derived_of(checkpoint);
    if (made->kind == MADE_MERGED)
        error = list_of_tensors(checkpoint, &whole, list);
    else if (made->kind == MADE_PART || made->kind == MADE_SHARD)
        error = list_of_tensors(checkpoint, &cut_of(derived, made->kind)->parts[made->part], list);
    else
        error = list_of_index(checkpoint, derived, made->kind, size, list);
    return error == -ENOBUFS ? report_no_room(checkpoint) : error;
}
