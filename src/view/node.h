/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: the objects that the kernel refers to by ID.
 *
 * A node's reference count is the kernel's lookup count, plus one for each child node and for each
 * call or open directory that holds it. The kernel does not forget an ID while a request uses it,
 * so a call needs no reference to the node of its ID. Tables and counts are guarded by view->lock,
 * which is never held across storage access.
 *
 * Tensor files have no nodes. Each version of a directory of tensors has one (NODE_TENSOR_SET); the
 * ID of a tensor file is the number of that node and a position in it.
 */
#ifndef FSTFS_VIEW_NODE_H
#define FSTFS_VIEW_NODE_H

#include "view/derived.h"
#include "view/listing.h"
#include "view/view.h"

#include <pthread.h>

enum node_kind {
    NODE_TOP, /* the root, if it contains the views */
    NODE_PAGES, /* .fstfs */
    NODE_PAGE,
    NODE_DIRECTORY, /* a directory of the source, in one view */
    NODE_TENSORS, /* a checkpoint's directory in tensors/ or npy/ */
    NODE_TENSOR_SET, /* one version of the files in such a directory */
    NODE_SOURCE_FILE, /* a file of the source, unchanged */
    NODE_MADE_FILE, /* made of a checkpoint */
};

struct node {
    struct node *next; /* in its bucket; guarded by view->lock */
    uint64_t references; /* guarded by view->lock */
    struct node *parent; /* counted; NULL: the root, or a NODE_TENSOR_SET */
    enum node_kind kind;
    enum view_kind view;
    uint64_t inode; /* for stat(2); of a NODE_TENSOR_SET, its directory's */
    uint32_t number; /* its ID: an index of view->slots */
    uint32_t generation; /* differs from that of the nodes that had this number before */

    /* NODE_DIRECTORY */
    struct source_dir *dir;
    /* Of the directory of the source, if callers are checked; 0: whichever is at the path. */
    uint64_t source_device, source_inode;
    struct dir_listing *listing; /* the last one made; guarded by view->lock */

    /* NODE_TENSORS */
    struct node *set; /* the last one made; counted; guarded by view->lock */

    struct shown_names *shown; /* of open directories; not counted; guarded by view->lock */

    /* NODE_TENSOR_SET and NODE_MADE_FILE */
    struct checkpoint *checkpoint;
    struct made made; /* NODE_MADE_FILE */
    uint64_t size; /* NODE_MADE_FILE */
    bool is_unread; /* NODE_MADE_FILE: `size` is an estimate, and the file cannot be opened */
    uint32_t count; /* NODE_TENSOR_SET: files */
    uint32_t *order; /* indices into checkpoint->tensors by file name; NULL: the same order */

    /* NODE_SOURCE_FILE */
    struct backing *backing;
    struct ownership ownership; /* guarded by view->lock: chmod keeps the node */
    struct backing *served; /* is_shard: the version that readers get, since the first open;
                             * guarded by view->lock */
    bool is_shard; /* opened as the backing of its checkpoint; if its header is refused, only if the
                    * container is kept */

    const struct view_page *page; /* NODE_PAGE */
    char name[];
};

/* Bytes of node->order, which are charged to the catalog's budget. */
static inline uint64_t
tensor_order_bytes(const struct checkpoint *checkpoint)
{
    return ((uint64_t)checkpoint->tensor_count + 1) * sizeof(uint32_t);
}

enum { NODE_BUCKETS = 65536 };

/*
 * Nodes by number, so that IDs do not reveal addresses of the daemon: name_to_handle_at() returns
 * IDs to every caller. Chunks never move, so that an ID that the kernel holds is resolved without
 * the lock; each chunk has twice the slots of the one before it. Number 0 is not used.
 */
union node_slot {
    struct node *node;
    uint32_t next; /* of a free slot: the next free one; 0: none */
};

enum { FIRST_SLOTS_LOG2 = 6, SLOT_CHUNKS = 32 - FIRST_SLOTS_LOG2 };

struct node_slots {
    union node_slot *_Atomic chunks[SLOT_CHUNKS]; /* the rest is guarded by view->lock */
    uint32_t used; /* highest number in use so far */
    uint32_t free; /* head of the list of free slots; 0: none */
};

struct view {
    struct catalog *catalog;
    struct view_options options;
    pthread_mutex_t lock; /* guards nodes and their counts */
    struct node *buckets[NODE_BUCKETS]; /* by inode */
    struct node_slots slots;
    struct node *root;
    uint32_t generation; /* of the last node */
    uint64_t node_count, set_count; /* a NODE_TENSOR_SET is counted only as a set */
    struct list_cache *lists;
    struct timespec started; /* time stamp of files and directories that are not in the source */
};

extern const char view_pages_name[]; /* ".fstfs" */

/* ---- IDs ---- */

enum { NODE_ITSELF = UINT32_MAX };

node_id node_id_of(const struct node *node);
node_id node_tensor_id(const struct node *set, uint32_t position);
/* The node of an ID that the kernel holds. Sets *position, unless it is NULL, to the position of a
 * tensor file, or to NODE_ITSELF. */
struct node *node_of(struct view *view, node_id id, uint32_t *position);

/* ---- nodes ---- */

/*
 * Finds the node that `wanted` describes (same parent, name, kind and version) or adds it, and
 * returns a reference. Takes ownership of what `wanted` holds (dir, backing, checkpoint, order),
 * also on failure. NULL: out of memory.
 */
struct node *node_find_or_add(struct view *view, struct node *parent, const char *name,
                              struct node *wanted);
void node_ref(struct view *view, struct node *node);
void node_unref(struct view *view, struct node *node, uint64_t count); /* NULL is allowed */
/* Frees all nodes, whatever their counts. */
void nodes_free(struct view *view);

uint64_t node_child_inode(uint64_t parent, const char *name, size_t length);

#endif
