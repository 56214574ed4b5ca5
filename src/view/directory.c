/* SPDX-License-Identifier: Apache-2.0 */
#include "view/directory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void
shown_names_add(struct names_writer *writer, const char *name, mode_t type)
{
    struct shown_names *to = writer->to;
    size_t size = strlen(name) + 1;

    if (to) {
        to->entries[writer->count] = (struct shown_name){writer->length, type};
        memcpy(to->text + writer->length, name, size);
    }
    writer->count++;
    writer->length += size;
}

static int
compare_shown(const void *a, const void *b, void *text)
{
    const struct shown_name *x = a, *y = b;

    return strcmp((char *)text + x->name, (char *)text + y->name);
}

static uint64_t
bytes_of(size_t count, size_t length)
{
    return sizeof(struct shown_names) + (uint64_t)count * sizeof(struct shown_name) + length;
}

/* As measured, without a reference. NULL: out of memory. */
static struct shown_names *
make_names(const struct names_writer *measured, list_names *list, void *arg, bool sort)
{
    struct shown_names *names = malloc(bytes_of(measured->count, measured->length));
    struct names_writer writer = {names, 0, 0};

    if (!names)
        return NULL;
    *names = (struct shown_names){.count = measured->count, .length = measured->length};
    names->text = (char *)&names->entries[names->count];
    list(arg, &writer);
    if (sort && names->count)
        qsort_r(names->entries, names->count, sizeof(*names->entries), compare_shown, names->text);
    return names;
}

static bool
same_names(const struct shown_names *a, const struct shown_names *b)
{
    if (a->count != b->count || a->length != b->length)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (a->entries[i].name != b->entries[i].name || a->entries[i].type != b->entries[i].type)
            return false;
    return memcmp(a->text, b->text, a->length) == 0;
}

/*
 * Makes `fresh` the node's names and gives it a reference; where the node has the same ones
 * already, returns those instead, with a reference. They are compared without the lock, so again
 * if others have taken their place meanwhile.
 */
static struct shown_names *
share_names(struct view *view, struct node *node, struct shown_names *fresh)
{
    struct shown_names *before = NULL, *now;

    for (;;) {
        pthread_mutex_lock(&view->lock);
        now = node->shown;
        if (now == before) {
            node->shown = fresh;
            fresh->node = node;
            fresh->references = 1;
            node->references++;
            now = fresh;
        } else if (now) {
            now->references++;
        }
        pthread_mutex_unlock(&view->lock);
        shown_names_unref(view, before); /* kept until here: its address was not used anew */
        if (now == fresh || (now && same_names(now, fresh)))
            return now;
        before = now;
    }
}

errint_t
shown_names_get(struct view *view, struct node *node, struct header_budget *budget,
                list_names *list, void *arg, bool sort, struct shown_names **out, uint64_t *bytes)
{
    struct names_writer measured = {NULL, 0, 0};
    struct shown_names *fresh;
    errint_t error;

    list(arg, &measured);
    *bytes = bytes_of(measured.count, measured.length);
    error = header_budget_take(budget, *bytes);
    if (error)
        return error;
    fresh = make_names(&measured, list, arg, sort);
    if (!fresh) {
        header_budget_settle(budget, *bytes, 0);
        return -ENOMEM;
    }
    fresh->budget = budget;
    *out = share_names(view, node, fresh);
    if (*out != fresh)
        free(fresh);
    header_budget_settle(budget, *bytes, *out == fresh ? *bytes : 0);
    return 0;
}

void
shown_names_unref(struct view *view, struct shown_names *names)
{
    struct node *node;

    if (!names)
        return;
    node = names->node;
    pthread_mutex_lock(&view->lock);
    if (--names->references > 0) {
        pthread_mutex_unlock(&view->lock);
        return;
    }
    if (node->shown == names)
        node->shown = NULL;
    pthread_mutex_unlock(&view->lock);
    header_budget_give(names->budget, bytes_of(names->count, names->length));
    free(names);
    node_unref(view, node, 1);
}
