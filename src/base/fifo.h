/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A first-in, first-out queue of structs that begin with a `struct fifo_node`. It allocates nothing
 * and owns nothing. The caller locks.
 */
#ifndef FSTFS_BASE_FIFO_H
#define FSTFS_BASE_FIFO_H

#include <stddef.h>

struct fifo_node {
    struct fifo_node *next;
};

struct fifo {
    struct fifo_node *first;
    struct fifo_node *last; /* undefined if `first` is NULL */
};

/* All bytes zero is an empty queue. */

static inline void
fifo_add(struct fifo *fifo, struct fifo_node *node)
{
    node->next = NULL;
    if (fifo->first)
        fifo->last->next = node;
    else
        fifo->first = node;
    fifo->last = node;
}

/* The first node, removed, which the caller casts to the struct that begins with it. NULL: the
 * queue is empty. */
static inline void *
fifo_take(struct fifo *fifo)
{
    struct fifo_node *node = fifo->first;

    if (node)
        fifo->first = node->next;
    return node;
}

/* All nodes, removed. */
static inline struct fifo
fifo_take_all(struct fifo *fifo)
{
    struct fifo all = *fifo;

    fifo->first = NULL;
    return all;
}

#endif
