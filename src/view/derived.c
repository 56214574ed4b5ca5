/* SPDX-License-Identifier: Apache-2.0 */
#include "view/derived.h"

#include "view/index.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The sizes of what is made of one version; hangs on checkpoint->derived. */
struct derived {
    pthread_mutex_t lock; /* guards the rest; held while it is worked out */
    bool merged_known, merged_index_known, parts_known, tensor_index_known[2], shard_index_known;
    errint_t merged_error, parts_error;
    uint64_t merged_size, merged_index_size;
    uint64_t tensor_index_size[2]; /* by `part` */
    uint64_t shard_index_size, part_index_size;
    struct layout_part *parts;
    uint64_t *part_sizes;
    size_t part_count;
    struct header_budget *budget; /* what the parts are charged to */
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

static bool
is_whole(const struct checkpoint *checkpoint)
{
    return !checkpoint->unsound;
}

/* ---- memory ---- */

/* What laying out takes for each tensor: its place in the shards and in the file; and, where
 * a checkpoint is re-cut, a part, with the room that a growing array has and had. */
enum {
    ORDER_BYTES = 2 * sizeof(struct tensor_ref),
    CUT_BYTES = 3 * sizeof(struct layout_part) + sizeof(uint64_t),
};

/* Charges memory for laying out; give it back with header_budget_give(). -ENOBUFS: no room.
 * Settled at once, since more is charged before it is given back. */
static errint_t
take_for_order(const struct checkpoint *checkpoint, uint64_t *bytes)
{
    struct header_budget *budget = catalog_budget(checkpoint->catalog);

    *bytes = ORDER_BYTES * ((uint64_t)checkpoint->tensor_count + 2);
    if (header_budget_take(budget, *bytes) != 0)
        return -ENOBUFS;
    header_budget_settle(budget, *bytes, *bytes);
    return 0;
}

static errint_t
report_no_room(struct checkpoint *checkpoint)
{
    checkpoint_report_no_room(checkpoint, checkpoint->tensor_count, "a file made of its tensors");
    return -ENOMEM;
}

/* ---- making ---- */

static void
say_too_large(const struct checkpoint *checkpoint, const char *what)
{
    problem_set_add(checkpoint->problems, checkpoint->directory,
                    checkpoint->shard_count ? checkpoint->shards[0]->name : NULL,
                    "HeaderTooLarge: no %s: its header would be over %u bytes, and safetensors "
                    "could not read it",
                    what, ST_MAX_HEADER);
}

/* The file of a checkpoint that is one file already: the same bytes, by which others know it. */
static errint_t
make_alone(const struct checkpoint *checkpoint, uint64_t *size, struct extent_list **list)
{
    struct backing *backing = checkpoint->shards[0]->backing;

    *size = backing->identity.size;
    return list ? list_of_backing(backing, list) : 0;
}

/* A file of all tensors. `list` may be NULL: only its size is wanted. */
static errint_t
make_whole(const struct checkpoint *checkpoint, uint64_t *size, struct extent_list **list)
{
    uint64_t bytes;
    errint_t error;
    struct tensor_ref *refs;

    if (checkpoint->shard_count == 1)
        return make_alone(checkpoint, size, list);
    error = take_for_order(checkpoint, &bytes);
    if (error)
        return error;
    refs = layout_shard_order(checkpoint);
    error = refs ? layout_file(checkpoint, refs, checkpoint->tensor_count, size, list) : -ENOMEM;
    free(refs);
    header_budget_give(catalog_budget(checkpoint->catalog), bytes);
    return error;
}

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
    struct blob *blob;

    if (buffer_failed(text)) {
        buffer_free(text);
        return -ENOMEM;
    }
    blob = blob_new(text->data, text->length);
    *text = (struct buffer)BUFFER_INIT;
    if (!blob)
        return -ENOMEM;
    extent_builder_add_blob(&builder, blob, 0, blob->length);
    blob_unref(blob);
    *list = extent_builder_finish(&builder);
    return *list ? 0 : -ENOMEM;
}

/* ---- parts ---- */

/* What work_out_parts() does, memory charged. */
static errint_t
cut_parts(struct checkpoint *checkpoint, struct derived *derived,
          const struct view_options *options)
{
    struct tensor_ref *refs = layout_shard_order(checkpoint);
    struct buffer index = BUFFER_COUNTING;
    errint_t error;

    if (!refs)
        return -ENOMEM;
    error = layout_cut(checkpoint, refs, options->shards, options->shard_size, &derived->parts,
                       &derived->part_count);
    if (!error)
        derived->part_sizes = calloc(derived->part_count, sizeof(*derived->part_sizes));
    if (!error && !derived->part_sizes)
        error = -ENOMEM;
    if (!error && derived->part_count == 1)
        error = make_whole(checkpoint, &derived->part_sizes[0], NULL);
    for (size_t i = 0; !error && derived->part_count > 1 && i < derived->part_count; i++)
        error = layout_file(checkpoint, refs + derived->parts[i].first, derived->parts[i].count,
                            &derived->part_sizes[i], NULL);
    if (!error)
        error = index_of_parts(checkpoint, derived->parts, derived->part_count, &index);
    derived->part_index_size = index.length;
    free(refs);
    return error;
}

/* -ENOBUFS: no room in the budget. After an error there are no parts. */
static errint_t
work_out_parts(struct checkpoint *checkpoint, struct derived *derived,
               const struct view_options *options)
{
    uint64_t bytes = (ORDER_BYTES + CUT_BYTES) * ((uint64_t)checkpoint->tensor_count + 16);
    errint_t error;

    if (header_budget_take(derived->budget, bytes) != 0)
        return -ENOBUFS;
    error = cut_parts(checkpoint, derived, options);
    derived->charged =
        derived->part_count * (2 * sizeof(*derived->parts) + sizeof(*derived->part_sizes));
    header_budget_settle(derived->budget, bytes, derived->charged);
    if (error)
        drop_parts(derived);
    return error;
}

/* The parts, worked out once; derived->lock held. */
static errint_t
parts_locked(struct checkpoint *checkpoint, struct derived *derived,
             const struct view_options *options)
{
    if (!derived->parts_known) {
        derived->parts_error =
            is_whole(checkpoint) ? work_out_parts(checkpoint, derived, options) : -ENOENT;
        if (derived->parts_error == -EFBIG)
            say_too_large(checkpoint, "re-cut shards");
        if (derived->parts_error == -ENOBUFS)
            derived->parts_error = report_no_room(checkpoint);
        derived->parts_known = derived->parts_error != -ENOMEM;
    }
    return derived->parts_error == -EFBIG ? -ENOENT : derived->parts_error;
}

errint_t
derived_parts(struct checkpoint *checkpoint, const struct view_options *options, uint32_t *parts)
{
    struct derived *derived = derived_of(checkpoint);
    errint_t error;

    if (!derived)
        return -ENOMEM;
    pthread_mutex_lock(&derived->lock);
    error = parts_locked(checkpoint, derived, options);
    *parts = (uint32_t)derived->part_count;
    pthread_mutex_unlock(&derived->lock);
    return error;
}

/* ---- sizes ---- */

static errint_t
merged_locked(struct checkpoint *checkpoint, struct derived *derived, uint64_t *size)
{
    if (!derived->merged_known) {
        derived->merged_error =
            is_whole(checkpoint) ? make_whole(checkpoint, &derived->merged_size, NULL) : -ENOENT;
        if (derived->merged_error == -EFBIG) {
            say_too_large(checkpoint, "merged file");
            derived->merged_error = -ENOENT;
        }
        if (derived->merged_error == -ENOBUFS)
            derived->merged_error = report_no_room(checkpoint);
        derived->merged_known = derived->merged_error != -ENOMEM;
    }
    *size = derived->merged_size;
    return derived->merged_error;
}

static errint_t
part_locked(struct checkpoint *checkpoint, struct derived *derived,
            const struct view_options *options, const struct made *made, uint64_t *size)
{
    errint_t error = parts_locked(checkpoint, derived, options);

    if (error)
        return error;
    if (made->kind == MADE_PART_INDEX) {
        *size = derived->part_index_size;
        return 0;
    }
    if (made->part >= derived->part_count)
        return -ENOENT;
    *size = derived->part_sizes[made->part];
    return 0;
}

static void
write_tensor_index(const struct checkpoint *checkpoint, const struct made *made,
                   struct buffer *text)
{
    const char *directory =
        made->part && checkpoint->shard_count ? checkpoint->shards[0]->name : checkpoint->stem;

    index_of_tensors(checkpoint, directory, text);
}

static errint_t
write_index(const struct checkpoint *checkpoint, const struct derived *derived,
            const struct made *made, struct buffer *text)
{
    const struct layout_part whole = {0, checkpoint->tensor_count};

    if (made->kind == MADE_MERGED_INDEX)
        return index_of_parts(checkpoint, &whole, 1, text);
    if (made->kind == MADE_PART_INDEX)
        return index_of_parts(checkpoint, derived->parts, derived->part_count, text);
    if (made->kind == MADE_SHARD_INDEX)
        index_of_shards(checkpoint, text);
    else
        write_tensor_index(checkpoint, made, text);
    return 0;
}

static errint_t
index_locked(const struct checkpoint *checkpoint, const struct derived *derived,
             const struct made *made, bool *known, uint64_t *known_size, uint64_t *size)
{
    struct buffer text = BUFFER_COUNTING;

    if (!*known) {
        errint_t error = write_index(checkpoint, derived, made, &text);

        if (error)
            return error;
        *known_size = text.length;
        *known = true;
    }
    *size = *known_size;
    return 0;
}

errint_t
derived_size(struct checkpoint *checkpoint, const struct view_options *options,
             const struct made *made, uint64_t *size)
{
    struct derived *derived = derived_of(checkpoint);
    errint_t error = -ENOENT;

    if (!derived)
        return -ENOMEM;
    pthread_mutex_lock(&derived->lock);
    switch (made->kind) {
    case MADE_MERGED:
        error = merged_locked(checkpoint, derived, size);
        break;
    case MADE_MERGED_INDEX:
        error = merged_locked(checkpoint, derived, size);
        if (!error)
            error = index_locked(checkpoint, derived, made, &derived->merged_index_known,
                                 &derived->merged_index_size, size);
        break;
    case MADE_PART:
    case MADE_PART_INDEX:
        error = part_locked(checkpoint, derived, options, made, size);
        break;
    case MADE_SHARD_INDEX:
        if (is_whole(checkpoint))
            error = index_locked(checkpoint, derived, made, &derived->shard_index_known,
                                 &derived->shard_index_size, size);
        break;
    case MADE_TENSOR_INDEX:
        error = index_locked(checkpoint, derived, made, &derived->tensor_index_known[made->part],
                             &derived->tensor_index_size[made->part], size);
        break;
    }
    pthread_mutex_unlock(&derived->lock);
    return error;
}

/* ---- opening ---- */

static errint_t
make_part(struct checkpoint *checkpoint, const struct layout_part *part, struct extent_list **list)
{
    struct tensor_ref *refs;
    uint64_t bytes, size;
    errint_t error = take_for_order(checkpoint, &bytes);

    if (error)
        return error;
    refs = layout_shard_order(checkpoint);
    error = refs ? layout_file(checkpoint, refs + part->first, part->count, &size, list) : -ENOMEM;
    free(refs);
    header_budget_give(catalog_budget(checkpoint->catalog), bytes);
    return error;
}

static errint_t
make_index(struct checkpoint *checkpoint, const struct derived *derived, const struct made *made,
           uint64_t size, struct extent_list **list)
{
    uint64_t bytes = size + sizeof(**list) + 2 * sizeof(struct extent);
    struct buffer text = BUFFER_INIT;
    errint_t error;

    if (header_budget_take(derived->budget, bytes) != 0)
        return -ENOBUFS;
    buffer_reserve(&text, size);
    error = write_index(checkpoint, derived, made, &text);
    if (!error)
        error = list_of_text(&text, list);
    buffer_free(&text);
    layout_settle_list(derived->budget, bytes, error ? NULL : *list);
    return error;
}

static errint_t
make_list(struct checkpoint *checkpoint, const struct view_options *options,
          const struct made *made, struct extent_list **list)
{
    uint64_t size;
    /* The parts are known when this succeeds, and do not change any more. */
    errint_t error = derived_size(checkpoint, options, made, &size);
    const struct derived *derived = derived_of(checkpoint);

    if (error)
        return error;
    if (made->kind == MADE_MERGED || (made->kind == MADE_PART && derived->part_count == 1))
        error = make_whole(checkpoint, &size, list);
    else if (made->kind == MADE_PART)
        error = make_part(checkpoint, &derived->parts[made->part], list);
    else
        error = make_index(checkpoint, derived, made, size, list);
    return error == -ENOBUFS ? report_no_room(checkpoint) : error;
}

/* ---- lists made of late ---- */

enum { SLOTS = 16, MOST_IDLE = 32 << 20 };

struct opened_slot {
    struct extent_list *list; /* NULL: empty */
    uint64_t serial; /* of the checkpoint */
    enum made_kind kind;
    uint32_t part;
    uint64_t used; /* larger: later */
};

struct opened {
    pthread_mutex_t lock; /* guards all; never held while a list is made */
    uint64_t clock;
    struct opened_slot slots[SLOTS];
};

struct opened *
opened_new(void)
{
    struct opened *opened = calloc(1, sizeof(*opened));

    if (opened)
        pthread_mutex_init(&opened->lock, NULL);
    return opened;
}

void
opened_free(struct opened *opened)
{
    if (!opened)
        return;
    for (int i = 0; i < SLOTS; i++)
        extent_list_unref(opened->slots[i].list);
    pthread_mutex_destroy(&opened->lock);
    free(opened);
}

static struct opened_slot *
find_slot(struct opened *opened, const struct checkpoint *checkpoint, const struct made *made)
{
    for (int i = 0; i < SLOTS; i++) {
        struct opened_slot *slot = &opened->slots[i];

        if (slot->list && slot->serial == checkpoint->serial && slot->kind == made->kind &&
            slot->part == made->part)
            return slot;
    }
    return NULL;
}

static struct opened_slot *
oldest_slot(struct opened *opened)
{
    struct opened_slot *oldest = &opened->slots[0];

    for (int i = 0; i < SLOTS; i++) {
        if (!opened->slots[i].list)
            return &opened->slots[i];
        if (opened->slots[i].used < oldest->used)
            oldest = &opened->slots[i];
    }
    return oldest;
}

errint_t
opened_get(struct opened *opened, struct checkpoint *checkpoint, const struct view_options *options,
           const struct made *made, struct extent_list **list)
{
    struct extent_list *before = NULL;
    struct opened_slot *slot;
    errint_t error;

    pthread_mutex_lock(&opened->lock);
    slot = find_slot(opened, checkpoint, made);
    if (slot) {
        slot->used = ++opened->clock;
        *list = extent_list_ref(slot->list);
    }
    pthread_mutex_unlock(&opened->lock);
    if (slot)
        return 0;
    error = make_list(checkpoint, options, made, list);
    if (error)
        return error;
    pthread_mutex_lock(&opened->lock);
    if (!find_slot(opened, checkpoint, made)) {
        slot = oldest_slot(opened);
        before = slot->list;
        *slot = (struct opened_slot){extent_list_ref(*list), checkpoint->serial, made->kind,
                                     made->part, ++opened->clock};
    }
    pthread_mutex_unlock(&opened->lock);
    extent_list_unref(before);
    return 0;
}

/* The least lately used list that nobody but this table holds. */
static struct opened_slot *
idle_slot(struct opened *opened, uint64_t *idle_bytes)
{
    struct opened_slot *oldest = NULL;

    *idle_bytes = 0;
    for (int i = 0; i < SLOTS; i++) {
        struct opened_slot *slot = &opened->slots[i];

        if (!slot->list || atomic_load(&slot->list->references) > 1)
            continue;
        *idle_bytes += layout_list_bytes(slot->list);
        if (!oldest || slot->used < oldest->used)
            oldest = slot;
    }
    return oldest;
}

void
opened_trim(struct opened *opened)
{
    for (;;) {
        struct extent_list *list = NULL;
        struct opened_slot *slot;
        uint64_t idle_bytes;

        pthread_mutex_lock(&opened->lock);
        slot = idle_slot(opened, &idle_bytes);
        if (slot && idle_bytes > MOST_IDLE) {
            list = slot->list;
            slot->list = NULL;
        }
        pthread_mutex_unlock(&opened->lock);
        if (!list)
            return;
        extent_list_unref(list);
    }
}
