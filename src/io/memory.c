/* SPDX-License-Identifier: Apache-2.0 */
#include "io/memory.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

/* Large buffers are mapped several at a time, in huge pages if the system has them. The kernel
 * looks up each page that it copies from or reads into; with small pages that took a fifth of the
 * time of a read. */
#define HUGE_PAGE (2ul << 20)
#define BUFFERS_AT_ONCE 8

/* Buffer sizes. The largest holds a megabyte at any offset, with the blocks at its ends. */
static const size_t classes[MEMORY_CLASSES] = {16384, 65536, 262144, MEMORY_LARGEST};

void
memory_init(struct memory *memory, uint64_t budget)
{
    memset(memory, 0, sizeof(*memory));
    memory->budget = budget;
}

static unsigned
size_class_of(size_t size)
{
    unsigned class = 0;

    while (classes[class] < size)
        class ++;
    return class;
}

size_t
memory_cost(size_t size)
{
    return classes[size_class_of(size)];
}

static void *
take_spare_buffer(struct memory *memory, unsigned class)
{
    void *buffer = memory->spares[class];

    if (buffer) {
        memory->spares[class] = *(void **)buffer;
        memory->spare -= classes[class];
    }
    return buffer;
}

/* At the start of a buffer to be unmapped. */
struct unneeded {
    void *next;
    size_t size;
};

static void
discard_buffer(struct memory *memory, void *buffer, unsigned class)
{
    *(struct unneeded *)buffer = (struct unneeded){memory->unneeded, classes[class]};
    memory->unneeded = buffer;
}

void *
memory_take_unneeded(struct memory *memory)
{
    void *unneeded = memory->unneeded;

    memory->unneeded = NULL;
    return unneeded;
}

void
memory_unmap(void *unneeded)
{
    while (unneeded) {
        struct unneeded buffer = *(struct unneeded *)unneeded;

        munmap(unneeded, buffer.size);
        unneeded = buffer.next;
    }
}

void
memory_trim(struct memory *memory, uint64_t most)
{
    for (unsigned class = MEMORY_CLASSES; class -- > 0;)
        while (memory->spare > most && memory->spares[class])
            discard_buffer(memory, take_spare_buffer(memory, class), class);
}

static void
add_spare_buffer(struct memory *memory, unsigned class, void *buffer)
{
    *(void **)buffer = memory->spares[class];
    memory->spares[class] = buffer;
    memory->spare += classes[class];
}

/* Not malloc(), which would keep freed buffers or return each one to the system. */
static char *
map_pages(size_t size)
{
    char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (mapped == MAP_FAILED)
        return NULL;
    madvise(mapped, size, MADV_DONTDUMP); /* keeps models out of core dumps */
    return mapped;
}

/* As map_pages(), aligned to huge pages. */
static char *
map_huge_pages(size_t size)
{
    char *mapped = map_pages(size + HUGE_PAGE);
    size_t before;

    if (!mapped)
        return NULL;
    before = -(uintptr_t)mapped % HUGE_PAGE;
    if (before > 0)
        munmap(mapped, before);
    if (before < HUGE_PAGE)
        munmap(mapped + before + size, HUGE_PAGE - before);
    madvise(mapped + before, size, MADV_HUGEPAGE); /* optional */
    return mapped + before;
}

char *
memory_map(size_t size, unsigned count)
{
    size = memory_cost(size);
    return count > 1 ? map_huge_pages(size * count) : map_pages(size);
}

/* Bytes of the budget that are neither used nor spare. */
static uint64_t
unused_budget(const struct memory *memory)
{
    uint64_t taken = memory->used + memory->spare;

    return memory->budget > taken ? memory->budget - taken : 0;
}

unsigned
memory_at_once(const struct memory *memory, unsigned wanted)
{
    uint64_t count = wanted + unused_budget(memory) / MEMORY_LARGEST;

    return count > BUFFERS_AT_ONCE ? BUFFERS_AT_ONCE : (unsigned)count;
}

void *
memory_get(struct memory *memory, size_t size)
{
    unsigned class = size_class_of(size);
    uint64_t cost = classes[class];
    void *buffer = take_spare_buffer(memory, class);

    if (!buffer)
        memory_trim(memory, memory->budget > memory->used + cost
                                ? memory->budget - memory->used - cost
                                : 0);
    memory->used += cost;
    if (memory->used > memory->most_used)
        memory->most_used = memory->used;
    return buffer;
}

void
memory_add_spare(struct memory *memory, void *buffer, size_t size)
{
    unsigned class = size_class_of(size);

    if (unused_budget(memory) < classes[class])
        discard_buffer(memory, buffer, class);
    else
        add_spare_buffer(memory, class, buffer);
}

void
memory_put(struct memory *memory, void *buffer, size_t size)
{
    memory->used -= memory_cost(size);
    if (buffer)
        memory_add_spare(memory, buffer, size);
}
