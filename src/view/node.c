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
