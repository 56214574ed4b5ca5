/* SPDX-License-Identifier: Apache-2.0 */
#include "io/lanes.h"

#include <stdlib.h>

struct lane *
lanes_find(struct list *lanes, uint64_t key, size_t size)
{
    struct lane *unused = NULL;

    list_for_each(node, lanes)
    {
        struct lane *lane = container_of(node, struct lane, node);

        if (lane->key == key)
            return lane;
        if (atomic_load(&lane->users) == 0)
            unused = lane;
    }
    if (!unused) {
        unused = calloc(1, size);
        if (!unused)
            return NULL;
        list_add(lanes->next, &unused->node);
    }
    unused->key = key;
    return unused;
}

void
lanes_free(struct list *lanes)
{
    list_for_each(node, lanes) free(container_of(node, struct lane, node));
}
