/* SPDX-License-Identifier: Apache-2.0 */
#include "io/memory.h"

#include <string.h>
#include <sys/mman.h>

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

void *
memory_get(struct memory *memory, size_t size)
{
    unsigned class = class_of(size);
    void *buffer = take_spare(memory, class);
    uint64_t rest;

    if (!buffer) {
        rest = memory->budget > memory->used + classes[class]
                   ? memory->budget - memory->used - classes[class]
                   : 0;
        memory_trim(memory, rest);
        /* Not from malloc: it would keep what is given back, or ask the system
         * for each one anew. */
        buffer =
            mmap(NULL, classes[class], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (buffer == MAP_FAILED)
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
    *(void **)buffer = memory->spares[class];
    memory->spares[class] = buffer;
    memory->spare += classes[class];
}
