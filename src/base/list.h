/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A doubly linked list of structs that contain a `struct list`. It allocates nothing and owns
 * nothing. It is circular, and its head is part of the circle. The caller locks.
 */
#ifndef FSTFS_BASE_LIST_H
#define FSTFS_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* The head of a list, or a node. A node of zeros is in no list. */
struct list {
    struct list *previous, *next;
};

#define LIST_INIT(head)                                                                            \
    {                                                                                              \
        &(head), &(head)                                                                           \
    }

/* The struct that contains a member. */
#define container_of(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

/* NOLINTBEGIN(bugprone-macro-parentheses): `node` is declared */
/* Runs the body for each node, which it may remove; stops at a break. */
#define list_for_each(node, head)                                                                  \
    for (struct list *node = (head)->next, *node##_next;                                           \
         node != (head) && (node##_next = node->next, true); node = node##_next)
/* NOLINTEND(bugprone-macro-parentheses) */

static inline void
list_init(struct list *head)
{
    head->previous = head->next = head;
}

/* Adds a node at the end. */
static inline void
list_add(struct list *head, struct list *node)
{
    node->next = head;
    node->previous = head->previous;
    node->previous->next = node;
    head->previous = node;
}

/* Removes a node from its list. */
static inline void
list_remove(struct list *node)
{
    node->previous->next = node->next;
    node->next->previous = node->previous;
    node->previous = node->next = NULL;
}

/* Whether a node is in a list. */
static inline bool
list_is_linked(const struct list *node)
{
    return node->next != NULL;
}

/* NULL: the list is empty. */
static inline struct list *
list_first(const struct list *head)
{
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): freed nodes are in no list */
    return head->next == head ? NULL : head->next;
}

/* Makes `node` the last one, and the one after it the first. */
static inline void
list_rotate(struct list *head, struct list *node)
{
    list_remove(head);
    list_add(node->next, head);
}

#endif
