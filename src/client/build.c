/* SPDX-License-Identifier: Apache-2.0 */
#include "client/build.h"

#include "base/array.h"
#include "base/text.h"
#include "client/gpu/cufile.h"
#include "format/dtype.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* Strings and shapes lie one after another in blocks of this size. */
enum { BLOCK = 1 << 16 };

struct memory_block {
    struct memory_block *next;
    size_t used, size;
    uint64_t data[];
};

struct fstfs_checkpoint *
build_begin(struct fstfs *fstfs)
{
    struct fstfs_checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));

    if (!checkpoint)
        return NULL;
    checkpoint->fstfs = fstfs;
    pthread_mutex_init(&checkpoint->lock, NULL);
    return checkpoint;
}

/* Memory that goes with the checkpoint, aligned for a uint64_t. */
static void *
keep(struct fstfs_checkpoint *checkpoint, size_t size)
{
    struct memory_block *block = checkpoint->blocks;
    void *memory;

    size = (size + 7) / 8 * 8;
    if (!block || block->size - block->used < size) {
        size_t room = size > BLOCK ? size : BLOCK;

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

/* A copy with a NUL behind it. */
static char *
keep_text(struct fstfs_checkpoint *checkpoint, const char *text, size_t length)
{
    char *copy = keep(checkpoint, length + 1);

    if (!copy)
        return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

static bool
grow(void **array, size_t count, size_t size)
{
    void *more = array_room(*array, count, size);

    if (more)
        *array = more;
    return more != NULL;
}

/* A list that is all of the file; NULL: out of memory. */
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
build_source(struct fstfs_checkpoint *checkpoint, const char *path,
             const struct file_identity *identity, uint32_t *place)
{
    struct tensor_source source = {.path = keep_text(checkpoint, path, strlen(path))};

    if (!source.path ||
        !grow((void **)&checkpoint->sources, checkpoint->source_count, sizeof(source)))
        return -ENOMEM;
    source.list = whole_file(source.path, identity);
    if (!source.list)
        return -ENOMEM;
    /* As long as it is open the engine keeps its descriptors. */
    extent_list_opened(source.list);
    *place = (uint32_t)checkpoint->source_count;
    checkpoint->sources[checkpoint->source_count++] = source;
    return 0;
}

/* False: it has more than 2^64 - 1. */
static bool
bits_of_shape(const struct tensor_given *given, unsigned bits_of_one, uint64_t *bits)
{
    bool fits = true;

    *bits = bits_of_one;
    for (unsigned i = 0; i < given->rank; i++) {
        if (given->shape[i] == 0) {
            *bits = 0;
            return true;
        }
        fits &= !__builtin_mul_overflow(*bits, given->shape[i], bits);
    }
    return fits;
}

static errint_t
check_given(const struct fstfs_checkpoint *checkpoint, const struct tensor_given *given,
            enum dtype dtype)
{
    const struct tensor_source *source = &checkpoint->sources[given->source];
    uint64_t bits, end;

    if (__builtin_add_overflow(given->offset, given->size, &end) || end > source->list->size)
        return fail(-EBADMSG, "%.*s: bytes from %llu on, %llu of them, are not within %s",
                    (int)given->name_length, given->name, (unsigned long long)given->offset,
                    (unsigned long long)given->size, source->path);
    if (dtype == DTYPE_UNKNOWN)
        return 0; /* nobody can say what its elements are */
    if (!bits_of_shape(given, dtype_bits(dtype), &bits) || bits % 8 || bits / 8 != given->size)
        return fail(-EBADMSG, "%.*s: its shape and dtype do not make the %llu bytes that it has",
                    (int)given->name_length, given->name, (unsigned long long)given->size);
    return 0;
}

errint_t
build_tensor(struct fstfs_checkpoint *checkpoint, const struct tensor_given *given)
{
    enum dtype dtype = dtype_from_name(given->dtype, given->dtype_length);
    errint_t error = check_given(checkpoint, given, dtype);
    uint64_t *shape;
    struct client_tensor *tensor;

    if (error)
        return error;
    shape = keep(checkpoint, given->rank * sizeof(*shape));
    if (!shape || !grow((void **)&checkpoint->tensors, checkpoint->count, sizeof(*tensor)))
        return -ENOMEM;
    if (given->rank > 0)
        memcpy(shape, given->shape, given->rank * sizeof(*shape));
    tensor = &checkpoint->tensors[checkpoint->count];
    tensor->source = given->source;
    tensor->shown = (struct fstfs_tensor){
        .name = keep_text(checkpoint, given->name, given->name_length),
        .name_length = given->name_length,
        .dtype = dtype == DTYPE_UNKNOWN ? keep_text(checkpoint, given->dtype, given->dtype_length)
                                        : dtype_name(dtype),
        .bits = dtype == DTYPE_UNKNOWN ? 0 : dtype_bits(dtype),
        .rank = given->rank,
        .shape = shape,
        .size = given->size,
        .file = checkpoint->sources[given->source].path,
        .offset = given->offset,
    };
    if (!tensor->shown.name || !tensor->shown.dtype)
        return -ENOMEM;
    checkpoint->count++;
    return 0;
}

errint_t
build_metadata(struct fstfs_checkpoint *checkpoint, const char *key, size_t key_length,
               const char *value, size_t value_length)
{
    struct fstfs_metadata pair = {
        .key = keep_text(checkpoint, key, key_length),
        .key_length = key_length,
        .value = keep_text(checkpoint, value, value_length),
        .value_length = value_length,
    };

    if (!pair.key || !pair.value ||
        !grow((void **)&checkpoint->metadata, checkpoint->metadata_count, sizeof(pair)))
        return -ENOMEM;
    checkpoint->metadata[checkpoint->metadata_count++] = pair;
    return 0;
}

static int
compare_names(const void *a, const void *b)
{
    const struct fstfs_tensor *x = &((const struct client_tensor *)a)->shown;
    const struct fstfs_tensor *y = &((const struct client_tensor *)b)->shown;

    return text_compare(x->name, x->name_length, y->name, y->name_length);
}

static int
compare_keys(const void *a, const void *b)
{
    const struct fstfs_metadata *x = a, *y = b;

    return text_compare(x->key, x->key_length, y->key, y->key_length);
}

/* Each key once, and only those whose values agree. */
static void
join_metadata(struct fstfs_checkpoint *checkpoint)
{
    struct fstfs_metadata *all = checkpoint->metadata;
    size_t count = checkpoint->metadata_count, kept = 0, end;

    if (count == 0)
        return;
    qsort(all, count, sizeof(*all), compare_keys);
    for (size_t i = 0; i < count; i = end) {
        bool agreed = true;

        for (end = i + 1; end < count && compare_keys(&all[i], &all[end]) == 0; end++)
            agreed &= text_compare(all[i].value, all[i].value_length, all[end].value,
                                   all[end].value_length) == 0;
        if (agreed)
            all[kept++] = all[i];
    }
    checkpoint->metadata_count = kept;
}

void
build_end(struct fstfs_checkpoint *checkpoint)
{
    if (checkpoint->count > 0)
        qsort(checkpoint->tensors, checkpoint->count, sizeof(*checkpoint->tensors), compare_names);
    join_metadata(checkpoint);
}

void
checkpoint_destroy(struct fstfs_checkpoint *checkpoint)
{
    struct memory_block *next;

    if (!checkpoint)
        return;
    unmap_sources(checkpoint);
    for (size_t i = 0; i < checkpoint->source_count; i++) {
        cufile_close(checkpoint->sources[i].cufile);
        extent_list_closed(checkpoint->sources[i].list);
        extent_list_unref(checkpoint->sources[i].list);
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
