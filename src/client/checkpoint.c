/* SPDX-License-Identifier: Apache-2.0 */
#include "client/checkpoint.h"

#include "base/array.h"
#include "base/text.h"
#include "client/error.h"
#include "client/gpu/cufile.h"
#include "client/library.h"
#include "format/dtype.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Strings and shapes are stored one after another in blocks of this size. */
enum { MEMORY_BLOCK_BYTES = 1 << 16 };

struct memory_block {
    struct memory_block *next;
    size_t used, size;
    uint64_t data[];
};

struct fstfs_checkpoint *
checkpoint_new(struct fstfs *fstfs)
{
    struct fstfs_checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));

    if (!checkpoint)
        return NULL;
    checkpoint->fstfs = fstfs;
    pthread_mutex_init(&checkpoint->lock, NULL);
    return checkpoint;
}

/* Memory that is freed with the checkpoint, aligned for a uint64_t. */
static void *
checkpoint_allocate(struct fstfs_checkpoint *checkpoint, size_t size)
{
    struct memory_block *block = checkpoint->blocks;
    void *memory;

    size = (size + 7) / 8 * 8;
    if (!block || block->size - block->used < size) {
        size_t room = size > MEMORY_BLOCK_BYTES ? size : MEMORY_BLOCK_BYTES;

        block = malloc(sizeof(*block) + room);
        if (!block)
            return NULL;
        block->next = checkpoint->blocks;
        block->used = 0;
        block->size = room;
        checkpoint->blocks = block;
    }
    memory = (char *)block->data + block->used;
    block->used += size;
    return memory;
}

/* A NUL-terminated copy, freed with the checkpoint. */
static char *
checkpoint_copy_text(struct fstfs_checkpoint *checkpoint, const char *text, size_t length)
{
    char *copy = checkpoint_allocate(checkpoint, length + 1);

    if (!copy)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

/* An extent list of the whole file. NULL: out of memory. */
static struct extent_list *
whole_file(const char *path, const struct file_identity *identity)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct backing *backing = backing_new(AT_FDCWD, path, identity);

    if (!backing)
        return NULL;
    extent_builder_add_backing(&builder, backing, 0, identity->size);
    backing_unref(backing);
    return extent_builder_finish(&builder);
}

errint_t
checkpoint_add_source(struct fstfs_checkpoint *checkpoint, const char *path,
                      const struct file_identity *identity, uint32_t *place)
{
    struct tensor_source source = {.path = checkpoint_copy_text(checkpoint, path, strlen(path))};

    source.list = source.path ? whole_file(source.path, identity) : NULL;
    if (!source.list)
        return -ENOMEM;
    *place = (uint32_t)checkpoint->source_count;
    if (!array_add(checkpoint->sources, checkpoint->source_count, source)) {
        extent_list_unref(source.list);
        return -ENOMEM;
    }
    /* While a list is open, the engine keeps its descriptors open. */
    extent_list_opened(source.list);
    return 0;
}

/* The number of bits of all elements. False: it does not fit in 64 bits. */
static bool
bits_of_shape(const struct tensor_description *description, unsigned bits_of_one, uint64_t *bits)
{
    bool fits = true;

    *bits = bits_of_one;
    for (unsigned i = 0; i < description->rank; i++) {
        if (description->shape[i] == 0) {
            *bits = 0;
            return true;
        }
        fits &= !__builtin_mul_overflow(*bits, description->shape[i], bits);
    }
    return fits;
}

static errint_t
check_description(const struct fstfs_checkpoint *checkpoint,
                  const struct tensor_description *description, enum dtype dtype)
{
    const struct tensor_source *source = &checkpoint->sources[description->source];
    uint64_t bits, end;

    if (__builtin_add_overflow(description->offset, description->size, &end) ||
        end > source->list->size)
        return fail(-EBADMSG, "%.*s: %llu bytes at offset %llu are not within the file %s",
                    (int)description->name_length, description->name,
                    (unsigned long long)description->size, (unsigned long long)description->offset,
                    source->path);
    if (dtype == DTYPE_UNKNOWN)
        return 0; /* the size of an element is not known */
    if (!bits_of_shape(description, dtype_bits(dtype), &bits) || bits % 8 ||
        bits / 8 != description->size)
        return fail(-EBADMSG, "%.*s: its size, %llu bytes, does not match its shape and dtype",
                    (int)description->name_length, description->name,
                    (unsigned long long)description->size);
    return 0;
}

errint_t
checkpoint_add_tensor(struct fstfs_checkpoint *checkpoint,
                      const struct tensor_description *description)
{
    enum dtype dtype = dtype_from_name(description->dtype, description->dtype_length);
    errint_t error = check_description(checkpoint, description, dtype);
    uint64_t *shape;
    struct client_tensor tensor;

    if (error)
        return error;
    shape = checkpoint_allocate(checkpoint, description->rank * sizeof(*shape));
    if (!shape)
        return -ENOMEM;
    if (description->rank > 0)
        memcpy(shape, description->shape, description->rank * sizeof(*shape));
    tensor.source = description->source;
    tensor.public = (struct fstfs_tensor){
        .name = checkpoint_copy_text(checkpoint, description->name, description->name_length),
        .name_length = description->name_length,
        .dtype = dtype == DTYPE_UNKNOWN ? checkpoint_copy_text(checkpoint, description->dtype,
                                                               description->dtype_length)
                                        : dtype_name(dtype),
        .bits = dtype == DTYPE_UNKNOWN ? 0 : dtype_bits(dtype),
        .rank = description->rank,
        .shape = shape,
        .size = description->size,
        .file = checkpoint->sources[description->source].path,
        .offset = description->offset,
    };
    if (!tensor.public.name || !tensor.public.dtype)
        return -ENOMEM;
    return array_add(checkpoint->tensors, checkpoint->count, tensor) ? 0 : -ENOMEM;
}

errint_t
checkpoint_add_metadata(struct fstfs_checkpoint *checkpoint, const char *key, size_t key_length,
                        const char *value, size_t value_length)
{
    struct fstfs_metadata pair = {
        .key = checkpoint_copy_text(checkpoint, key, key_length),
        .key_length = key_length,
        .value = checkpoint_copy_text(checkpoint, value, value_length),
        .value_length = value_length,
    };

    return pair.key && pair.value &&
                   array_add(checkpoint->metadata, checkpoint->metadata_count, pair)
               ? 0
               : -ENOMEM;
}

static int
compare_tensor_names(const void *a, const void *b)
{
    const struct fstfs_tensor *x = &((const struct client_tensor *)a)->public;
    const struct fstfs_tensor *y = &((const struct client_tensor *)b)->public;

    return text_compare(x->name, x->name_length, y->name, y->name_length);
}

static int
compare_metadata_keys(const void *a, const void *b)
{
    const struct fstfs_metadata *x = a, *y = b;

    return text_compare(x->key, x->key_length, y->key, y->key_length);
}

/* Keeps one pair of each key that has the same value in all files, and drops all other keys. */
static void
checkpoint_join_metadata(struct fstfs_checkpoint *checkpoint)
{
    struct fstfs_metadata *all = checkpoint->metadata;
    size_t count = checkpoint->metadata_count, kept = 0, end;

    if (count == 0)
        return;
    qsort(all, count, sizeof(*all), compare_metadata_keys);
    for (size_t i = 0; i < count; i = end) {
        bool agreed = true;

        for (end = i + 1; end < count && compare_metadata_keys(&all[i], &all[end]) == 0; end++)
            agreed &= text_compare(all[i].value, all[i].value_length, all[end].value,
                                   all[end].value_length) == 0;
        if (agreed)
            all[kept++] = all[i];
    }
    checkpoint->metadata_count = kept;
}

void
checkpoint_finish(struct fstfs_checkpoint *checkpoint)
{
    if (checkpoint->count > 0)
        qsort(checkpoint->tensors, checkpoint->count, sizeof(*checkpoint->tensors),
              compare_tensor_names);
    checkpoint_join_metadata(checkpoint);
}

void
checkpoint_destroy(struct fstfs_checkpoint *checkpoint)
{
    struct memory_block *next;

    if (!checkpoint)
        return;
    for (size_t i = 0; i < checkpoint->source_count; i++) {
        struct tensor_source *source = &checkpoint->sources[i];

        if (source->mapping)
            munmap(source->mapping, source->list->size);
        cufile_close(source->cufile);
        extent_list_closed(source->list);
        extent_list_unref(source->list);
    }
    for (struct memory_block *block = checkpoint->blocks; block; block = next) {
        next = block->next;
        free(block);
    }
    free(checkpoint->sources);
    free(checkpoint->tensors);
    free(checkpoint->metadata);
    free(checkpoint->through_mount);
    pthread_mutex_destroy(&checkpoint->lock);
    free(checkpoint);
}

bool
checkpoint_has(const struct fstfs_checkpoint *checkpoint, const struct fstfs_tensor *tensor)
{
    const struct client_tensor *own = (const struct client_tensor *)tensor;

    return own >= checkpoint->tensors && own < checkpoint->tensors + checkpoint->count;
}

void
fstfs_close(struct fstfs_checkpoint *checkpoint)
{
    if (checkpoint && !library_is_inherited(checkpoint->fstfs))
        checkpoint_destroy(checkpoint);
}

const char *
fstfs_through_mount(const struct fstfs_checkpoint *checkpoint)
{
    return checkpoint->through_mount;
}

uint64_t
fstfs_version_hash(const struct fstfs_checkpoint *checkpoint)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < checkpoint->source_count; i++)
        hash = file_identity_hash(&source_backing(&checkpoint->sources[i])->identity, hash);
    return hash;
}

size_t
fstfs_count(const struct fstfs_checkpoint *checkpoint)
{
    return checkpoint->count;
}

const struct fstfs_tensor *
fstfs_tensor(const struct fstfs_checkpoint *checkpoint, size_t index)
{
    return index < checkpoint->count ? &checkpoint->tensors[index].public : NULL;
}

const struct fstfs_tensor *
fstfs_find(const struct fstfs_checkpoint *checkpoint, const char *name)
{
    const struct client_tensor key = {.public = {.name = name, .name_length = strlen(name)}};
    const struct client_tensor *found = NULL;

    if (checkpoint->count > 0)
        found = bsearch(&key, checkpoint->tensors, checkpoint->count, sizeof(key),
                        compare_tensor_names);
    return found ? &found->public : NULL;
}

const struct fstfs_metadata *
fstfs_metadata(const struct fstfs_checkpoint *checkpoint, size_t index)
{
    return index < checkpoint->metadata_count ? &checkpoint->metadata[index] : NULL;
}
