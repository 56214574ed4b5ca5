/* SPDX-License-Identifier: Apache-2.0 */
#include "view/node.h"

#include "base/hash.h"
#include "base/version.h"
#include "view/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- ids ---- */

#define TENSOR_ID ((node_id)1 << 63)

bool
node_is_tensor(node_id id)
{
    return id & TENSOR_ID;
}

node_id
node_id_of(const struct node *node)
{
    return node->number;
}

node_id
node_tensor_id(const struct tensor_set *set, uint32_t position)
{
    return TENSOR_ID | (node_id)set->slot << 32 | position;
}

/* The chunk of a slot; `at` is its index there. */
static unsigned
chunk_of(uint32_t number, uint64_t *at)
{
    uint64_t shifted = (uint64_t)number + (1u << FIRST_SLOTS_LOG2);
    unsigned log2 = 63 - (unsigned)__builtin_clzll(shifted);

    *at = shifted - ((uint64_t)1 << log2);
    return log2 - FIRST_SLOTS_LOG2;
}

static union node_slot *
slot_of(struct node_slots *slots, uint32_t number)
{
    uint64_t at;
    unsigned chunk = chunk_of(number, &at);

    return atomic_load_explicit(&slots->chunks[chunk], memory_order_acquire) + at;
}

/* Finds a slot for a new node; view->lock held. The first one is the root's, VIEW_ROOT_ID. 0: out
 * of memory. */
static uint32_t
take_slot(struct node_slots *slots, struct node *node)
{
    uint32_t number = slots->free ? slots->free : slots->used + 1;
    union node_slot *fresh;
    uint64_t at;
    unsigned chunk = chunk_of(number, &at);

    if (number == UINT32_MAX)
        return 0;
    if (!atomic_load(&slots->chunks[chunk])) {
        fresh = malloc(sizeof(*fresh) << (chunk + FIRST_SLOTS_LOG2));
        if (!fresh)
            return 0;
        atomic_store(&slots->chunks[chunk], fresh);
    }
    if (slots->free)
        slots->free = slot_of(slots, number)->next;
    else
        slots->used = number;
    slot_of(slots, number)->node = node;
    return number;
}

/* view->lock held. */
static void
release_slot(struct node_slots *slots, uint32_t number)
{
    slot_of(slots, number)->next = slots->free;
    slots->free = number;
}

void
node_slots_free(struct node_slots *slots)
{
    for (int i = 0; i < SLOT_CHUNKS; i++)
        free(atomic_load(&slots->chunks[i]));
}

struct node *
node_of(struct view *view, node_id id)
{
    return slot_of(&view->slots, (uint32_t)id)->node;
}

struct tensor_set *
node_set_of(struct view *view, node_id id, uint32_t *position)
{
    uint32_t slot = (uint32_t)(id >> 32) & 0x7fffffff;
    struct tensor_set *set;

    *position = (uint32_t)id;
    pthread_mutex_lock(&view->lock);
    set = view->sets[slot];
    pthread_mutex_unlock(&view->lock);
    return set;
}

uint64_t
node_child_inode(uint64_t parent, const char *name, size_t length)
{
    uint64_t inode = hash64(name, length, parent);

    return inode > VIEW_ROOT_ID ? inode : inode + 2;
}

/* ---- nodes ---- */

static bool
same_version(const struct node *a, const struct node *b)
{
    switch (a->kind) {
    case NODE_WHOLE:
        /* What went stale stays so, even if the file is well again. */
        return a->is_shard == b->is_shard && version_is_current(a->backing) &&
               file_identity_same_content(&a->backing->identity, &b->backing->identity);
    case NODE_MADE:
        return a->checkpoint->serial == b->checkpoint->serial && a->made == b->made &&
               a->part == b->part;
    case NODE_TOP:
    case NODE_PAGES:
    case NODE_PAGE:
    case NODE_DIRECTORY:
    case NODE_TENSORS:
        break;
    }
    return true;
}

static struct node *
find_node(struct node *bucket, const struct node *parent, const char *name,
          const struct node *wanted)
{
    for (struct node *node = bucket; node; node = node->next)
        if (node->inode == wanted->inode && node->parent == parent && node->kind == wanted->kind &&
            node->view == wanted->view && strcmp(node->name, name) == 0 &&
            same_version(node, wanted))
            return node;
    return NULL;
}

/* Lets go of what a node holds, but its parent. */
static void
release_contents(struct node *node)
{
    source_dir_unref(node->dir);
    dir_listing_unref(node->listing);
    backing_unref(node->backing);
    backing_unref(node->served);
    checkpoint_unref(node->checkpoint);
}

struct node *
node_find_or_add(struct view *view, struct node *parent, const char *name, struct node *wanted)
{
    struct node *fresh = malloc(sizeof(*fresh) + strlen(name) + 1), *node;
    struct node **bucket = &view->buckets[wanted->inode % NODE_BUCKETS];
    uint32_t number = 0;

    if (!fresh) {
        release_contents(wanted);
        return NULL;
    }
    pthread_mutex_lock(&view->lock);
    node = find_node(*bucket, parent, name, wanted);
    if (node) {
        node->references++;
        node->ownership = wanted->ownership;
    } else if ((number = take_slot(&view->slots, fresh)) > 0) {
        *fresh = *wanted;
        fresh->number = number;
        strcpy(fresh->name, name);
        fresh->references = 1;
        fresh->parent = parent;
        if (parent)
            parent->references++;
        fresh->next = *bucket;
        *bucket = fresh;
        view->node_count++;
    }
    pthread_mutex_unlock(&view->lock);
    if (number)
        return fresh;
    release_contents(wanted);
    free(fresh);
    return node;
}

/* Takes a node that nobody counts any more out of the table; view->lock held. */
static void
unlink_node(struct view *view, struct node *node)
{
    struct node **link = &view->buckets[node->inode % NODE_BUCKETS];

    while (*link != node)
        link = &(*link)->next;
    *link = node->next;
    release_slot(&view->slots, node->number);
    view->node_count--;
}

void
node_unref(struct view *view, struct node *node, uint64_t count)
{
    while (node) {
        struct node *parent;

        pthread_mutex_lock(&view->lock);
        node->references -= count < node->references ? count : node->references;
        if (node->references > 0 || node == view->root) {
            pthread_mutex_unlock(&view->lock);
            return;
        }
        unlink_node(view, node);
        pthread_mutex_unlock(&view->lock);
        parent = node->parent;
        if (node->set)
            node_set_unref(view, node->set, 1);
        release_contents(node);
        free(node);
        node = parent;
        count = 1;
    }
}

/* ---- sets ---- */

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
