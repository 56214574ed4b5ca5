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

void
memory_trim(struct memory *memory, uint64_t most)
{
    for (unsigned class = MEMORY_CLASSES; class -- > 0;)
        while (memory->spare > most && memory->spares[class])
            munmap(take_spare(memory, class), classes[class]);
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

/* A new buffer, and spares if `room` bytes besides it leave some. */
static void *
make(struct memory *memory, unsigned class, uint64_t room)
{
    size_t size = classes[class];
    uint64_t count = room / size + 1;
    char *buffers;

    if (count > BUFFERS_AT_ONCE)
        count = BUFFERS_AT_ONCE;
    if (class < MEMORY_CLASSES - 1 || count == 1)
        return map(size);
    buffers = map_huge(size * count);
    if (!buffers)
        return NULL;
    for (uint64_t i = count - 1; i > 0; i--)
        add_spare(memory, class, buffers + i * size);
    return buffers;
}

void *
memory_get(struct memory *memory, size_t size)
{
    unsigned class = class_of(size);
    void *buffer = take_spare(memory, class);
    uint64_t room;

    if (!buffer) {
        room = memory->budget > memory->used + classes[class]
                   ? memory->budget - memory->used - classes[class]
                   : 0;
        memory_trim(memory, room);
        buffer = make(memory, class, room - memory->spare);
        if (!buffer)
            return NULL;
    }
    memory->used += classes[class];
    if (memory->used > memory->most_used)
        memory->most_used = memory->used;
    return buffer;
}

void
memory_put(struct memory *memory, void *buffer, size_t size)
{
    unsigned class = class_of(size);

    memory->used -= classes[class];
    if (memory->used + memory->spare + classes[class] > memory->budget) {
        munmap(buffer, classes[class]);
        return;
    }
    add_spare(memory, class, buffer);
}
