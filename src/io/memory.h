/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page-aligned buffers for reads, within one budget. Spare buffers are reused last in, first out,
 * so that they stay in the processor's cache.
 *
 * The owner's lock guards struct memory. memory_map() and memory_unmap() are called without it.
 */
#ifndef FSTFS_IO_MEMORY_H
#define FSTFS_IO_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#define MEMORY_LARGEST (1024 * 1024 + 64 * 1024) /* bytes of one buffer */
#define MEMORY_CLASSES 4

struct memory {
    uint64_t budget;
    uint64_t used; /* bytes of charged buffers */
    uint64_t most_used; /* peak of `used` since the owner last reset it */
    uint64_t spare; /* bytes of buffers kept for reuse */
    void *spares[MEMORY_CLASSES]; /* each starts with a pointer to the next */
    void *unneeded; /* buffers to be unmapped */
};

void memory_init(struct memory *memory, uint64_t budget);

/* The size of a buffer for `size` bytes (at most MEMORY_LARGEST), which is charged to the budget.
 */
size_t memory_cost(size_t size);

/* Charges a buffer for `size` bytes, and returns a spare one; NULL: the caller maps it. Frees spare
 * buffers so that used and spare ones stay within the budget. The caller must have checked that the
 * used ones do. */
void *memory_get(struct memory *memory, size_t size);
/* Returns a buffer. NULL: it was charged and not mapped. */
void memory_put(struct memory *memory, void *buffer, size_t size);

/* Frees spare buffers until at most `most` bytes of them are left. */
void memory_trim(struct memory *memory, uint64_t most);

/* How many of the largest buffers to map at once, if `wanted` are charged and not mapped. The
 * caller passes the others to memory_add_spare(). */
unsigned memory_at_once(const struct memory *memory, unsigned wanted);
void memory_add_spare(struct memory *memory, void *buffer, size_t size);

/* The list of buffers to pass to memory_unmap() after the lock is released; NULL: none. */
void *memory_take_unneeded(struct memory *memory);
void memory_unmap(void *unneeded);

/* Maps `count` buffers for `size` bytes each, memory_cost() apart; more than one only of the
 * largest. NULL: out of memory. */
char *memory_map(size_t size, unsigned count);

#endif
