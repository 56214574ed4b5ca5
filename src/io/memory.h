/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers for what is read, aligned for direct reads, within one budget.
 *
 * Not for several threads: guarded by its owner's lock.
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
};

void memory_init(struct memory *memory, uint64_t budget);

/* What a buffer for `size` bytes (at most MEMORY_LARGEST) costs of the budget. */
size_t memory_cost(size_t size);

/* A buffer for `size` bytes, or NULL: the system has none left. The budget is
 * the caller's to mind; only spares are given up for it. */
void *memory_get(struct memory *memory, size_t size);
void memory_put(struct memory *memory, void *buffer, size_t size);

/* Gives spares back to the system until `most` bytes of them are left. */
void memory_trim(struct memory *memory, uint64_t most);

#endif
