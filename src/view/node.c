/* SPDX-License-Identifier: Apache-2.0 */
#include "view/node.h"

#include "base/hash.h"
#include "base/version.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- IDs ---- */

#define TENSOR_ID ((node_id)1 << 63)

node_id
node_id_of(const struct node *node)
{
    return node->number;
}

node_id
node_tensor_id(const struct node *set, uint32_t position)
{
    return TENSOR_ID | (node_id)set->number << 32 | position;
}

/* Returns the chunk of a slot and sets `at` to its index there. */
static unsigned
slot_chunk(uint32_t number, uint64_t *at)
{
    uint64_t shifted = (uint64_t)number + (1u << FIRST_SLOTS_LOG2);
    unsigned log2 = 63 - (unsigned)__builtin_clzll(shifted);

    *at = shifted - ((uint64_t)1 << log2);
    return log2 - FIRST_SLOTS_LOG2;
}

static union node_slot *
node_slot_at(struct node_slots *slots, uint32_t number)
{
    uint64_t at;
    unsigned chunk = slot_chunk(number, &at);

    return atomic_load_explicit(&slots->chunks[chunk], memory_order_acquire) + at;
}

/* Returns the number of a new node; view->lock held. The first one is VIEW_ROOT_ID, for the root.
 * 0: out of memory. Numbers have 31 bits, see node_tensor_id(). */
static uint32_t
take_node_slot(struct node_slots *slots, struct node *node)
{
    uint32_t number = slots->free ? slots->free : slots->used + 1;
    union node_slot *fresh;
    uint64_t at;
    unsigned chunk = slot_chunk(number, &at);

    if (number > INT32_MAX)
        return 0;
    if (!atomic_load(&slots->chunks[chunk])) {
        fresh = malloc(sizeof(*fresh) << (chunk + FIRST_SLOTS_LOG2));
        if (!fresh)
            return 0;
        atomic_store(&slots->chunks[chunk], fresh);
    }
    if (slots->free)
        slots->free = node_slot_at(slots, number)->next;
    else
        slots->used = number;
    node_slot_at(slots, number)->node = node;
    return number;
}

/* view->lock held. */
static void
free_node_slot(struct node_slots *slots, uint32_t number)
{
    node_slot_at(slots, number)->next = slots->free;
    slots->free = number;
}

struct node *
node_of(struct view *view, node_id id, uint32_t *position)
{
    const bool is_tensor = id & TENSOR_ID;
    uint32_t number = is_tensor ? (uint32_t)(id >> 32) & INT32_MAX : (uint32_t)id;

    if (position)
        *position = is_tensor ? (uint32_t)id : NODE_ITSELF;
    return node_slot_at(&view->slots, number)->node;
}

uint64_t
node_child_inode(uint64_t parent, const char *name, size_t length)
{
    uint64_t inode = hash64(name, length, parent);

    return inode > VIEW_ROOT_ID ? inode : inode + 2;
}

/* ---- nodes ---- */

static bool
is_same_version(const struct node *a, const struct node *b)
{
    if (a->checkpoint)
        return a->checkpoint->serial == b->checkpoint->serial && a->is_unread == b->is_unread &&
               a->made.kind == b->made.kind && a->made.part == b->made.part;
    if (a->kind == NODE_DIRECTORY)
        return a->source_device == b->source_device && a->source_inode == b->source_inode;
    /* A stale version stays stale, even if the file becomes readable again. */
    return !a->backing ||
           (a->is_shard == b->is_shard && version_is_current(a->backing) &&
            file_identity_same_content(&a->backing->identity, &b->backing->identity));
}

static struct node *
find_node(struct node *bucket, const struct node *parent, const char *name,
          const struct node *wanted)
{
    for (struct node *node = bucket; node; node = node->next)
        if (node->inode == wanted->inode && node->parent == parent && node->kind == wanted->kind &&
            node->view == wanted->view && strcmp(node->name, name) == 0 &&
            is_same_version(node, wanted))
            return node;
    return NULL;
}

/* Releases what a node holds, except for other nodes. */
static void
release_contents(struct node *node)
{
    source_dir_unref(node->dir);
    dir_listing_unref(node->listing);
    backing_unref(node->backing);
    backing_unref(node->served);
    if (node->order)
        header_budget_give(catalog_budget(node->checkpoint->catalog),
                           tensor_order_bytes(node->checkpoint));
    free(node->order);
    checkpoint_unref(node->checkpoint);
}

static uint64_t *
count_of_kind(struct view *view, const struct node *node)
{
    return node->kind == NODE_TENSOR_SET ? &view->set_count : &view->node_count;
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
    } else if ((number = take_node_slot(&view->slots, fresh)) > 0) {
        *fresh = *wanted;
        fresh->number = number;
        fresh->generation = ++view->generation;
        strcpy(fresh->name, name);
        fresh->references = 1;
        fresh->parent = parent;
        if (parent)
            parent->references++;
        fresh->next = *bucket;
        *bucket = fresh;
        ++*count_of_kind(view, fresh);
    }
    pthread_mutex_unlock(&view->lock);
    if (number)
        return fresh;
    release_contents(wanted);
    free(fresh);
    return node;
}

/* Removes an unreferenced node from the tables; view->lock held. */
static void
unlink_node(struct view *view, struct node *node)
{
    struct node **link = &view->buckets[node->inode % NODE_BUCKETS];

    while (*link != node)
        link = &(*link)->next;
    *link = node->next;
    free_node_slot(&view->slots, node->number);
    --*count_of_kind(view, node);
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
        node_unref(view, node->set, 1); /* a set has neither a set nor a parent */
        release_contents(node);
        free(node);
        node = parent;
        count = 1;
    }
}

void
node_ref(struct view *view, struct node *node)
{
    pthread_mutex_lock(&view->lock);
    node->references++;
    pthread_mutex_unlock(&view->lock);
}

void
nodes_free(struct view *view)
{
    for (size_t i = 0; i < NODE_BUCKETS; i++) {
        struct node *next;

        for (struct node *node = view->buckets[i]; node; node = next) {
            next = node->next;
            release_contents(node);
            free(node);
        }
    }
    for (int i = 0; i < SLOT_CHUNKS; i++)
        free(atomic_load(&view->slots.chunks[i]));
}
