/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes: what the kernel holds ids of.
 *
 * A node is counted: one for each time the kernel was told its id, one for each
 * child node. The kernel forgets an id only when no request names it, so a call
 * needs no count of its own. Tables and counts are guarded by view->lock, which
 * is never held while storage is waited for.
 */
#ifndef FSTFS_VIEW_NODE_H
#define FSTFS_VIEW_NODE_H

#include "view/derived.h"
#include "view/listing.h"
#include "view/view.h"

#include <pthread.h>

enum node_kind {
    NODE_TOP, /* the root, where it holds the views */
    NODE_PAGES, /* .fstfs */
    NODE_PAGE,
    NODE_DIRECTORY, /* a directory of the source, in one view */
    NODE_TENSORS, /* a checkpoint's directory in tensors/ or npy/ */
    NODE_WHOLE, /* a file of the source, unchanged */
    NODE_MADE, /* a file made of a checkpoint: see enum made_kind */
};

struct shown_names;
struct tensor_set;

struct node {
    struct node *next; /* in its bucket; guarded by view->lock */
    uint64_t references; /* guarded by view->lock */
    struct node *parent; /* counted; NULL: the root */
    enum node_kind kind;
    enum view_kind view;
    uint64_t inode; /* as stat shows it */
    uint32_t number; /* its ID: of a slot of view->slots */

    /* NODE_DIRECTORY, and NODE_TENSORS: the directory its checkpoint is in */
    struct source_dir *dir;
    struct dir_listing *listing; /* last made; guarded by view->lock */
    struct tensor_set *set; /* last made; guarded by view->lock */

    struct shown_names *shown; /* of open directories; not counted; guarded by view->lock */

    /* NODE_WHOLE */
    struct backing *backing;
    struct ownership ownership; /* guarded by view->lock: chmod keeps the node */
    struct backing *served; /* is_shard: the version that is read, since it was first opened;
                             * guarded by view->lock */
    bool is_shard; /* its header must be sound before it is opened, and what is read is
                    * the backing of its checkpoint */

    /* NODE_MADE */
    struct checkpoint *checkpoint;
    enum made_kind made;
    uint32_t part;
    uint64_t size;

    const struct view_page *page;
    char name[];
};

/*
 * The tensors of one version of a checkpoint as files of one directory. Ids of
 * tensor files are made of its slot in view->sets.
 */
struct tensor_set {
    uint64_t references; /* guarded by view->lock */
    struct checkpoint *checkpoint;
    enum view_kind view; /* VIEW_TENSORS or VIEW_NPY */
    uint64_t inode; /* of the directory */
    uint32_t slot;
    uint32_t count;
    uint32_t *order; /* places in checkpoint->tensors by file name; NULL: the same order */
};

extern const char view_pages_name[]; /* ".fstfs" */

enum { NODE_BUCKETS = 65536 };

/*
 * Nodes by ID, so that no ID is an address of the daemon: name_to_handle_at() gives IDs to every
 * caller. Chunks never move, so that an ID the kernel has a count of is resolved without the lock;
 * each chunk has twice the slots of the one before it. ID 0 is no node's.
 */
union node_slot {
    struct node *node;
    uint32_t next; /* of a free slot: the next free one; 0: none */
};

enum { FIRST_SLOTS_LOG2 = 6, SLOT_CHUNKS = 32 - FIRST_SLOTS_LOG2 };

struct node_slots {
    union node_slot *_Atomic chunks[SLOT_CHUNKS]; /* the rest is guarded by view->lock */
    uint32_t used; /* slots that were in use at the same time */
    uint32_t free; /* the free one that was used last; 0: none */
};

struct view {
    struct catalog *catalog;
    struct view_options options;
    pthread_mutex_t lock; /* guards nodes, their counts, sets */
    struct node *buckets[NODE_BUCKETS];
    struct node_slots slots;
    struct node *root;
    struct tensor_set **sets; /* by slot; NULL: free */
    uint32_t set_capacity, set_next;
    uint64_t node_count, set_count;
    struct opened *opened; /* lists made of late, see derived.h */
    struct timespec started; /* the time of what is not in the source */
};

/* ids */
bool node_is_tensor(node_id id);
node_id node_id_of(const struct node *node);
node_id node_tensor_id(const struct tensor_set *set, uint32_t position);
/* The node of an id that is not a tensor's. */
struct node *node_of(struct view *view, node_id id);
/* The set and the place of a tensor's id. The kernel's count keeps the set. */
struct tensor_set *node_set_of(struct view *view, node_id id, uint32_t *position);

/*
 * Finds the node that `wanted` describes (same parent, name, kind and version)
 * or makes it; the result is counted once more. What `wanted` holds references
 * to (dir, backing, checkpoint) is taken over by a new node and let go otherwise.
 * NULL: out of memory (let go too).
 */
struct node *node_find_or_add(struct view *view, struct node *parent, const char *name,
                              struct node *wanted);
void node_unref(struct view *view, struct node *node, uint64_t count);
/* Frees the slots of all nodes. */
void node_slots_free(struct node_slots *slots);

uint64_t node_child_inode(uint64_t parent, const char *name, size_t length);

/* The set of a directory of tensors as it is now; counted. */
errint_t node_tensor_set(struct view *view, struct node *node, struct checkpoint *checkpoint,
                         struct tensor_set **set);
void node_set_ref(struct view *view, struct tensor_set *set, uint64_t count);
void node_set_unref(struct view *view, struct tensor_set *set, uint64_t count);

errint_t npy_text(const struct st_table *table, const struct st_tensor *tensor,
                  struct buffer *header);

/* Frees a set whatever its count is. */
void set_free(struct tensor_set *set);

/* A tensor of the set by its place in the order of file names. */
struct tensor_ref set_tensor(const struct tensor_set *set, uint32_t position);
/* Its file name; gives the length. */
size_t set_file_name(const struct tensor_set *set, uint32_t position, char out[256]);
/* Finds a file name; -ENOENT. */
errint_t set_find(const struct tensor_set *set, const char *name, uint32_t *position);

#endif
