/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers for what is read, aligned for direct reads, within one budget.
 *
 * Not for several threads: guarded by its owner's lock. Buffers are mapped and unmapped without
 * it, by the functions that do not take a struct memory.
 */
#ifndef FSTFS_IO_MEMORY_H
#define FSTFS_IO_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEMORY_LARGEST (1024 * 1024 + 64 * 1024) /* bytes of one buffer */
#define MEMORY_CLASSES 4

struct memory {
    uint64_t budget;
    uint64_t used; /* bytes of buffers handed out */
    uint64_t most_used; /* since its owner last set it */
    uint64_t spare; /* bytes of buffers kept for the next */
    void *spares[MEMORY_CLASSES]; /* each starts with a pointer to the next */
    void *unneeded; /* buffers that are to be unmapped */
};

void memory_init(struct memory *memory, uint64_t budget);

/* What a buffer for `size` bytes (at most MEMORY_LARGEST) costs of the budget. */
size_t memory_cost(size_t size);

/* A spare buffer for `size` bytes, or NULL: the caller is to map one. It is charged in either
 * case. The budget is the caller's to mind; only spares are given up for it. */
void *memory_get(struct memory *memory, size_t size);
/* `buffer` may be NULL: it was charged and not mapped. */
void memory_put(struct memory *memory, void *buffer, size_t size);

/* Gives spares up until `most` bytes of them are left. */
void memory_trim(struct memory *memory, uint64_t most);

/* How many buffers to map at once, of the largest, where `wanted` are charged; the rest are
 * spares, for memory_add_spare(). */
unsigned memory_at_once(const struct memory *memory, unsigned wanted);
void memory_add_spare(struct memory *memory, void *buffer, size_t size);

/* What memory_unmap() is to be given when the lock is free again; or NULL. */
void *memory_take_unneeded(struct memory *memory);
void memory_unmap(void *unneeded);

/* `count` buffers for `size` bytes each, memory_cost() apart; more than one only of the largest.
 * NULL: the system has none left. */
char *memory_map(size_t size, unsigned count);

#endif
