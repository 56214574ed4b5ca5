/* SPDX-License-Identifier: Apache-2.0 */
#include "view/node.h"

#include "format/npy.h"
#include "view/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct tensor_ref
set_tensor(const struct tensor_set *set, uint32_t position)
{
    return set->checkpoint->tensors[set->order ? set->order[position] : position];
}

static const char *
set_suffix(enum view_kind view)
{
    return view == VIEW_NPY ? ".npy" : "";
}

static size_t
file_name_of(const struct checkpoint *checkpoint, struct tensor_ref ref, enum view_kind view,
             char out[FILE_NAME_SIZE])
{
    const struct st_table *table = checkpoint->shards[ref.shard]->table;
    const struct st_tensor *tensor = &table->tensors[ref.tensor];

    return tensor_file_name(table->text + tensor->name, tensor->name_length, set_suffix(view), out);
}

size_t
set_file_name(const struct tensor_set *set, uint32_t position, char out[256])
{
    return file_name_of(set->checkpoint, set_tensor(set, position), set->view, out);
}

errint_t
set_find(const struct tensor_set *set, const char *name, uint32_t *position)
{
    uint32_t low = 0, high = set->count;
    char file[FILE_NAME_SIZE];

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order;

        set_file_name(set, middle, file);
        order = strcmp(file, name);
        if (order == 0) {
            *position = middle;
            return 0;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -ENOENT;
}

/* Whether file names are the tensors' names and stand in the same order. */
static bool
order_is_plain(const struct checkpoint *checkpoint, enum view_kind view)
{
    if (view == VIEW_NPY)
        return false; /* the suffix changes the order, and unknown dtypes are left out */
    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        struct tensor_ref ref = checkpoint->tensors[i];
        const struct st_table *table = checkpoint->shards[ref.shard]->table;
        const struct st_tensor *tensor = &table->tensors[ref.tensor];

        if (!tensor_name_is_plain(table->text + tensor->name, tensor->name_length, 0))
            return false;
    }
    return true;
}

struct named_position {
    char *name;
    uint32_t position;
};

static int
compare_named(const void *a, const void *b)
{
    const struct named_position *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order ? order : (x->position > y->position) - (x->position < y->position);
}

/* Leaves out the second of two tensors whose file names meet. */
static uint32_t
keep_first(const struct checkpoint *checkpoint, const struct named_position *all, size_t count,
           uint32_t *order)
{
    uint32_t kept = 0;
    char name[QUOTED_SIZE];

    for (size_t i = 0; i < count; i++) {
        if (i > 0 && strcmp(all[i].name, all[i - 1].name) == 0) {
            struct tensor_ref ref = checkpoint->tensors[all[i].position];
            const struct shard *shard = checkpoint->shards[ref.shard];
            const struct st_tensor *tensor = &shard->table->tensors[ref.tensor];

            problem_set_add(checkpoint->problems, checkpoint->directory, shard->name,
                            "tensor %s has no file: its file name meets another's",
                            quoted(name, shard->table->text + tensor->name, tensor->name_length));
            continue;
        }
        order[kept++] = all[i].position;
    }
    return kept;
}

/* What sorting takes: names, twice while they grow; places, and as many for qsort(). */
static uint64_t
sorting_bytes(const struct checkpoint *checkpoint)
{
    uint64_t bytes = 4096;

    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        uint64_t length = 3 * checkpoint_tensor(checkpoint, checkpoint->tensors[i])->name_length;

        bytes += 2 * sizeof(struct named_position) + sizeof(uint32_t) +
                 3 * (length + 5 < FILE_NAME_SIZE ? length + 5 : FILE_NAME_SIZE);
    }
    return bytes;
}

/* As make_order(), memory charged. */
static errint_t
sort_by_file_name(const struct checkpoint *checkpoint, enum view_kind view, uint32_t **order,
                  uint32_t *kept)
{
    size_t count = 0, total = checkpoint->tensor_count;
    struct named_position *all = malloc((total + 1) * sizeof(*all));
    struct buffer names = BUFFER_INIT;
    char file[FILE_NAME_SIZE];

    *order = malloc((total + 1) * sizeof(**order));
    for (uint32_t i = 0; all && i < total; i++) {
        struct tensor_ref ref = checkpoint->tensors[i];

        if (view == VIEW_NPY && checkpoint_tensor(checkpoint, ref)->dtype == DTYPE_UNKNOWN)
            continue;
        all[count].name = (char *)names.length;
        all[count++].position = i;
        buffer_add(&names, file, file_name_of(checkpoint, ref, view, file) + 1);
    }
    if (!all || !*order || buffer_failed(&names)) {
        free(*order);
        free(all);
        buffer_free(&names);
        return -ENOMEM;
    }
    for (size_t i = 0; i < count; i++)
        all[i].name = names.data + (size_t)all[i].name;
    qsort(all, count, sizeof(*all), compare_named);
    *kept = keep_first(checkpoint, all, count, *order);
    free(all);
    buffer_free(&names);
    return 0;
}

static uint64_t
order_bytes(const struct checkpoint *checkpoint)
{
    return ((uint64_t)checkpoint->tensor_count + 1) * sizeof(uint32_t);
}

/* Sorts by file name: count and order of a set. The order stays charged. */
static errint_t
make_order(struct checkpoint *checkpoint, enum view_kind view, uint32_t **order, uint32_t *kept)
{
    struct header_budget *budget = catalog_budget(checkpoint->catalog);
    uint64_t bytes = sorting_bytes(checkpoint);
    errint_t error;

    if (header_budget_take(budget, bytes) != 0) {
        checkpoint_report_no_room(checkpoint, checkpoint->tensor_count,
                                  "the file names of its tensors");
        return -ENOMEM;
    }
    error = sort_by_file_name(checkpoint, view, order, kept);
    header_budget_settle(budget, bytes, error ? 0 : order_bytes(checkpoint));
    return error;
}

static struct tensor_set *
set_new(struct checkpoint *checkpoint, enum view_kind view, uint64_t inode)
{
    struct tensor_set *set = calloc(1, sizeof(*set));

    if (!set)
        return NULL;
    set->count = checkpoint->tensor_count;
    set->view = view;
    set->inode = inode;
    if (!order_is_plain(checkpoint, view) &&
        make_order(checkpoint, view, &set->order, &set->count) != 0) {
        free(set);
        return NULL;
    }
    set->checkpoint = checkpoint_ref(checkpoint);
    return set;
}

void
set_free(struct tensor_set *set)
{
    if (set->order)
        header_budget_give(catalog_budget(set->checkpoint->catalog), order_bytes(set->checkpoint));
    free(set->order);
    checkpoint_unref(set->checkpoint);
    free(set);
}

/* Gives the set a slot; view->lock held. */
static bool
place_set(struct view *view, struct tensor_set *set)
{
    uint32_t slot = view->set_next;

    while (slot < view->set_capacity && view->sets[slot])
        slot++;
    if (slot == view->set_capacity) {
        uint32_t capacity = view->set_capacity ? 2 * view->set_capacity : 64;
        struct tensor_set **sets = realloc(view->sets, capacity * sizeof(*sets));

        if (!sets)
            return false;
        memset(sets + view->set_capacity, 0, (capacity - view->set_capacity) * sizeof(*sets));
        view->sets = sets;
        view->set_capacity = capacity;
    }
    view->sets[slot] = set;
    view->set_next = slot + 1; /* every slot below is taken */
    view->set_count++;
    set->slot = slot;
    return true;
}

void
node_set_unref(struct view *view, struct tensor_set *set, uint64_t count)
{
    pthread_mutex_lock(&view->lock);
    set->references -= count < set->references ? count : set->references;
    if (set->references > 0) {
        pthread_mutex_unlock(&view->lock);
        return;
    }
    view->sets[set->slot] = NULL;
    if (set->slot < view->set_next)
        view->set_next = set->slot;
    view->set_count--;
    pthread_mutex_unlock(&view->lock);
    set_free(set);
}

void
node_set_ref(struct view *view, struct tensor_set *set, uint64_t count)
{
    pthread_mutex_lock(&view->lock);
    set->references += count;
    pthread_mutex_unlock(&view->lock);
}

/* The node's set, counted once more, if it is of this version. */
static struct tensor_set *
current_set(struct view *view, struct node *node, const struct checkpoint *checkpoint)
{
    struct tensor_set *set;

    pthread_mutex_lock(&view->lock);
    set = node->set;
    if (set && set->checkpoint->serial == checkpoint->serial)
        set->references++;
    else
        set = NULL;
    pthread_mutex_unlock(&view->lock);
    return set;
}

errint_t
node_tensor_set(struct view *view, struct node *node, struct checkpoint *checkpoint,
                struct tensor_set **out)
{
    struct tensor_set *set = current_set(view, node, checkpoint), *before;
    bool placed;

    *out = set;
    if (set)
        return 0;
    set = set_new(checkpoint, node->view, node->inode);
    if (!set)
        return -ENOMEM;
    pthread_mutex_lock(&view->lock);
    before = node->set;
    if (before && before->checkpoint->serial == checkpoint->serial) {
        /* Somebody else was faster. */
        before->references++;
        pthread_mutex_unlock(&view->lock);
        set_free(set);
        *out = before;
        return 0;
    }
    placed = place_set(view, set);
    if (placed) {
        set->references = 2; /* the node's and the caller's */
        node->set = set;
    }
    pthread_mutex_unlock(&view->lock);
    if (!placed) {
        set_free(set);
        return -ENOMEM;
    }
    if (before)
        node_set_unref(view, before, 1);
    *out = set;
    return 0;
}

errint_t
npy_text(const struct st_table *table, const struct st_tensor *tensor, struct buffer *header)
{
    errint_t error = npy_header(header, (enum dtype)tensor->dtype, table->dims + tensor->shape,
                                tensor->rank, tensor->end - tensor->begin);

    if (error)
        buffer_free(header);
    return error;
}
