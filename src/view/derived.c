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
    bool merged_known, parts_known, tensor_index_known, shard_index_known;
    errint_t merged_error, parts_error;
    uint64_t merged_size;
    uint64_t tensor_index_size, shard_index_size, part_index_size;
    struct layout_part *parts;
    uint64_t *part_sizes;
    size_t part_count;
};

void
view_derived_free(void *pointer)
{
    struct derived *derived = pointer;

    pthread_mutex_destroy(&derived->lock);
    free(derived->parts);
    free(derived->part_sizes);
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

static errint_t
make_merged(const struct checkpoint *checkpoint, uint64_t *size, struct extent_list **list)
{
    struct tensor_ref *refs = layout_shard_order(checkpoint);
    errint_t error =
        refs ? layout_file(checkpoint, refs, checkpoint->tensor_count, size, list) : -ENOMEM;

    free(refs);
    return error;
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

static errint_t
work_out_parts(struct checkpoint *checkpoint, struct derived *derived,
               const struct view_options *options)
{
    struct tensor_ref *refs = layout_shard_order(checkpoint);
    struct buffer index = BUFFER_INIT;
    errint_t error;

    if (!refs)
        return -ENOMEM;
    error = layout_cut(checkpoint, refs, options->shards, options->shard_size, &derived->parts,
                       &derived->part_count);
    if (!error)
        derived->part_sizes = calloc(derived->part_count, sizeof(*derived->part_sizes));
    if (!error && !derived->part_sizes)
        error = -ENOMEM;
    for (size_t i = 0; !error && i < derived->part_count; i++)
        error = layout_file(checkpoint, refs + derived->parts[i].first, derived->parts[i].count,
                            &derived->part_sizes[i], NULL);
    if (!error)
        error = index_of_parts(checkpoint, derived->parts, derived->part_count, &index);
    if (!error && buffer_failed(&index))
        error = -ENOMEM;
    derived->part_index_size = index.length;
    buffer_free(&index);
    free(refs);
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
        if (derived->parts_error)
            derived->part_count = 0;
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
            is_whole(checkpoint) ? make_merged(checkpoint, &derived->merged_size, NULL) : -ENOENT;
        if (derived->merged_error == -EFBIG) {
            say_too_large(checkpoint, "merged file");
            derived->merged_error = -ENOENT;
        }
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
        return derived->part_count > 1 ? 0 : -ENOENT;
    }
    if (made->part >= derived->part_count)
        return -ENOENT;
    *size = derived->part_sizes[made->part];
    return 0;
}

static errint_t
index_locked(struct checkpoint *checkpoint, const struct made *made, bool *known,
             uint64_t *known_size, uint64_t *size)
{
    struct buffer text = BUFFER_INIT;

    if (!*known) {
        if (made->kind == MADE_TENSOR_INDEX)
            index_of_tensors(checkpoint, made->name, &text);
        else
            index_of_shards(checkpoint, &text);
        *known_size = text.length;
        *known = !buffer_failed(&text);
        buffer_free(&text);
    }
    *size = *known_size;
    return *known ? 0 : -ENOMEM;
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
    case MADE_PART:
    case MADE_PART_INDEX:
        error = part_locked(checkpoint, derived, options, made, size);
        break;
    case MADE_SHARD_INDEX:
        if (is_whole(checkpoint))
            error = index_locked(checkpoint, made, &derived->shard_index_known,
                                 &derived->shard_index_size, size);
        break;
    case MADE_TENSOR_INDEX:
        error = index_locked(checkpoint, made, &derived->tensor_index_known,
                             &derived->tensor_index_size, size);
        break;
    }
    pthread_mutex_unlock(&derived->lock);
    return error;
}

/* ---- opening ---- */

static errint_t
make_part(struct checkpoint *checkpoint, const struct view_options *options,
          const struct made *made, struct extent_list **list)
{
    struct tensor_ref *refs = layout_shard_order(checkpoint);
    struct derived *derived = derived_of(checkpoint);
    struct layout_part part = {0, 0};
    errint_t error = -ENOMEM;
    uint64_t size;

    if (refs && derived) {
        pthread_mutex_lock(&derived->lock);
        error = part_locked(checkpoint, derived, options, made, &size);
        if (!error)
            part = derived->parts[made->part];
        pthread_mutex_unlock(&derived->lock);
    }
    if (!error)
        error = layout_file(checkpoint, refs + part.first, part.count, &size, list);
    free(refs);
    return error;
}

static errint_t
make_part_index(struct checkpoint *checkpoint, const struct view_options *options,
                struct buffer *text)
{
    struct derived *derived = derived_of(checkpoint);
    errint_t error;

    if (!derived)
        return -ENOMEM;
    pthread_mutex_lock(&derived->lock);
    error = parts_locked(checkpoint, derived, options);
    if (!error)
        error = index_of_parts(checkpoint, derived->parts, derived->part_count, text);
    pthread_mutex_unlock(&derived->lock);
    return error;
}

static errint_t
make_list(struct checkpoint *checkpoint, const struct view_options *options,
          const struct made *made, struct extent_list **list)
{
    struct buffer text = BUFFER_INIT;
    errint_t error = 0;
    uint64_t size;

    switch (made->kind) {
    case MADE_MERGED:
        return make_merged(checkpoint, &size, list);
    case MADE_PART:
        return make_part(checkpoint, options, made, list);
    case MADE_PART_INDEX:
        error = make_part_index(checkpoint, options, &text);
        break;
    case MADE_SHARD_INDEX:
        index_of_shards(checkpoint, &text);
        break;
    case MADE_TENSOR_INDEX:
        index_of_tensors(checkpoint, made->name, &text);
        break;
    }
    if (error) {
        buffer_free(&text);
        return error;
    }
    return list_of_text(&text, list);
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

static uint64_t
list_bytes(const struct extent_list *list)
{
    uint64_t bytes = list->count * sizeof(list->extents[0]);

    for (uint32_t i = 0; i < list->count; i++)
        if (list->extents[i].blob)
            bytes += list->extents[i].length;
    return bytes;
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
        *idle_bytes += list_bytes(slot->list);
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
