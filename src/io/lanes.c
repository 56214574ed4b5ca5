/* SPDX-License-Identifier: Apache-2.0 */
#include "io/lanes.h"

#include <stdlib.h>

struct lane *
lanes_find(struct lane **last, uint64_t key, size_t size)
{
    struct lane *lane = *last, *unused = NULL;

    if (lane) {
        do {
            if (lane->key == key)
                return lane;
            if (atomic_load(&lane->users) == 0)
                unused = lane;
            lane = lane->next;
        } while (lane != *last);
    }
    if (!unused) {
        unused = calloc(1, size);
        if (!unused)
            return NULL;
        unused->next = unused;
        if (*last) {
            unused->next = (*last)->next;
            (*last)->next = unused;
        } else {
            *last = unused;
        }
    }
    unused->key = key;
    return unused;
}

void
lanes_free(struct lane **last)
{
    struct lane *lane = *last;

    if (!lane)
        return;
    do {
        struct lane *next = lane->next;

        free(lane);
        lane = next;
    } while (lane != *last);
    *last = NULL;
}
