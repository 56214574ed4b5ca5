/* SPDX-License-Identifier: Apache-2.0 */
#include "io/memory.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

/* Large buffers are made several at a time, in huge pages where the system has
 * them: the kernel looks up a page for each that it copies from or reads into,
 * and that was a fifth of the time that reading took. */
#define HUGE_PAGE (2ul << 20)
#define BUFFERS_AT_ONCE 8

/* From the smallest read worth a buffer to the largest: a megabyte that starts
 * anywhere, with the blocks at its ends. */
static const size_t classes[MEMORY_CLASSES] = {16384, 65536, 262144, MEMORY_LARGEST};

void
memory_init(struct memory *memory, uint64_t budget)
{
    memset(memory, 0, sizeof(*memory));
    memory->budget = budget;
}

static unsigned
class_of(size_t size)
{
    unsigned class = 0;

    while (classes[class] < size)
        class ++;
    return class;
}

size_t
memory_cost(size_t size)
{
    return classes[class_of(size)];
}

static void *
take_spare(struct memory *memory, unsigned class)
{
    void *buffer = memory->spares[class];

    if (buffer) {
        memory->spares[class] = *(void **)buffer;
        memory->spare -= classes[class];
    }
    return buffer;
}

/* At the start of a buffer that is to be unmapped. */
struct unneeded {
    void *next;
    size_t size;
};

static void
give_up(struct memory *memory, void *buffer, unsigned class)
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
            give_up(memory, take_spare(memory, class), class);
}

static void
add_spare(struct memory *memory, unsigned class, void *buffer)
{
    *(void **)buffer = memory->spares[class];
    memory->spares[class] = buffer;
    memory->spare += classes[class];
}

/* Not from malloc: it would keep what is given back, or ask the system for each
 * one anew. */
static char *
map(size_t size)
{
    char *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (mapped == MAP_FAILED)
        return NULL;
    madvise(mapped, size, MADV_DONTDUMP); /* a core shall have no model in it */
    return mapped;
}

/* As map(), for so much that huge pages pay. */
static char *
map_huge(size_t size)
{
    char *mapped = map(size + HUGE_PAGE);
    size_t before;

    if (!mapped)
        return NULL;
    before = -(uintptr_t)mapped % HUGE_PAGE;
    if (before > 0)
        munmap(mapped, before);
    if (before < HUGE_PAGE)
        munmap(mapped + before + size, HUGE_PAGE - before);
    madvise(mapped + before, size, MADV_HUGEPAGE); /* an offer: works without */
    return mapped + before;
}

char *
memory_map(size_t size, unsigned count)
{
    size = memory_cost(size);
    return count > 1 ? map_huge(size * count) : map(size);
}

/* Bytes that are neither used nor kept. */
static uint64_t
room_beside(const struct memory *memory)
{
    uint64_t taken = memory->used + memory->spare;

    return memory->budget > taken ? memory->budget - taken : 0;
}

unsigned
memory_at_once(const struct memory *memory, unsigned wanted)
{
    uint64_t count = wanted + room_beside(memory) / MEMORY_LARGEST;

    return count > BUFFERS_AT_ONCE ? BUFFERS_AT_ONCE : (unsigned)count;
}

void *
memory_get(struct memory *memory, size_t size)
{
    unsigned class = class_of(size);
    uint64_t cost = classes[class];
    void *buffer = take_spare(memory, class);

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
    unsigned class = class_of(size);

    if (room_beside(memory) < classes[class])
        give_up(memory, buffer, class);
    else
        add_spare(memory, class, buffer);
}

void
memory_put(struct memory *memory, void *buffer, size_t size)
{
    memory->used -= memory_cost(size);
    if (buffer)
        memory_add_spare(memory, buffer, size);
}
