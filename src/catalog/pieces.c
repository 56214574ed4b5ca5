/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/pieces.h"

#include "base/text.h"

#include <stdlib.h>

struct named {
    const char *name;
    uint32_t length;
    uint32_t piece;
};

static int
compare_names(const void *left, const void *right)
{
    const struct named *a = left, *b = right;

    return text_compare(a->name, a->length, b->name, b->length);
}

struct layout *
pieces_of_table(const struct st_table *table)
{
    struct named *order = malloc((table->count + 1) * sizeof(*order));
    struct layout *layout =
        malloc(sizeof(*layout) + (table->count + 1) * sizeof(layout->pieces[0]));
    uint32_t count = 0;

    for (uint32_t i = 0; order && layout && i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        if (tensor->begin == tensor->end)
            continue;
        layout->pieces[count].start = table->data_start + tensor->begin;
        layout->pieces[count].end = table->data_start + tensor->end;
        order[count] = (struct named){table->text + tensor->name, tensor->name_length, count};
        count++;
    }
    if (count == 0) {
        free(layout);
        layout = NULL;
    } else {
        layout->count = count;
        qsort(order, count, sizeof(*order), compare_names);
        for (uint32_t i = 0; i < count; i++)
            layout->pieces[order[i].piece].next = i + 1 < count ? order[i + 1].piece : count;
    }
    free(order);
    return layout;
}
