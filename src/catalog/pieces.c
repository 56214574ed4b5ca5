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

static uint32_t
count_pieces(const struct st_table *table)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < table->count; i++)
        count += table->tensors[i].begin != table->tensors[i].end;
    return count;
}

static void
give_layout(void *budget, uint64_t bytes)
{
    header_budget_give(budget, bytes);
}

struct layout *
pieces_of_table(const struct st_table *table, struct header_budget *budget)
{
    uint32_t count = count_pieces(table), at = 0;
    uint64_t bytes = sizeof(struct layout) + count * sizeof(struct piece);
    struct named *order = malloc((count + 1) * sizeof(*order));
    struct layout *layout = count ? layout_new(count) : NULL;

    if (!layout || !order) {
        layout_unref(layout);
        free(order);
        return NULL;
    }
    layout->charge = (struct charge){give_layout, budget, bytes};
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        if (tensor->begin == tensor->end)
            continue;
        layout->pieces[at].start = table->data_start + tensor->begin;
        layout->pieces[at].end = table->data_start + tensor->end;
        order[at] = (struct named){table->text + tensor->name, tensor->name_length, at};
        at++;
    }
    qsort(order, count, sizeof(*order), compare_names);
    for (uint32_t i = 0; i < count; i++)
        layout->pieces[order[i].piece].next = i + 1 < count ? order[i + 1].piece : count;
    free(order);
    return layout;
}
