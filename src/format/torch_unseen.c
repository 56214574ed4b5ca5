/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_unseen.h. */
#include "format/torch_unseen.h"

#include "format/torch_globals.h"
#include "format/torch_source.h"

#include <errno.h>
#include <stdio.h>

enum {
    PARTS_DEPTH_MAX = 8, /* of tuples and calls in the arguments of a tensor */
    REACH_DEPTH_MAX = 256, /* of containers and objects in the weights of PyTorch Lightning */
};

static void
mark_parts_below(struct pickle *pickle, pickle_value value, unsigned depth, size_t *visits_left)
{
    enum pickle_kind kind = pickle_kind_of(pickle, value);

    if (depth > PARTS_DEPTH_MAX || *visits_left == 0)
        return;
    --*visits_left;
    if (kind == PICKLE_PERSISTENT) {
        pickle->nodes[value].flags |= TORCH_SEEN;
    } else if (kind == PICKLE_CALL && !(pickle->nodes[value].flags & TORCH_SEEN)) {
        pickle->nodes[value].flags |= TORCH_SEEN;
        mark_parts_below(pickle, pickle->nodes[value].b, depth + 1, visits_left);
        for (uint32_t i = pickle->nodes[value].c; i; i = pickle->entries[i].next)
            mark_parts_below(pickle, pickle->entries[i].value, depth + 1, visits_left);
    } else if (kind == PICKLE_TUPLE) {
        for (uint32_t i = 0; i < pickle_tuple_length(pickle, value); i++)
            mark_parts_below(pickle, pickle_tuple_item(pickle, value, i), depth + 1, visits_left);
    }
}

void
torch_mark_parts(struct pickle *pickle, pickle_value value, size_t *visits_left)
{
    mark_parts_below(pickle, value, 0, visits_left);
}

static bool mark_reached(struct pickle *pickle, pickle_value value, unsigned depth);

/* Marks what the entries of a list or dictionary, or held entries, contain. */
static bool
mark_entries_reached(struct pickle *pickle, uint32_t first, unsigned depth)
{
    for (uint32_t i = first; i; i = pickle->entries[i].next)
        if (!mark_reached(pickle, pickle->entries[i].key, depth) ||
            !mark_reached(pickle, pickle->entries[i].value, depth))
            return false;
    return true;
}

/* Marks the value and all that it contains. Each node is visited once. False: it is nested too
 * deeply. */
static bool
mark_reached(struct pickle *pickle, pickle_value value, unsigned depth)
{
    struct pickle_node *node;

    if (value & PICKLE_NUMBER_BIT)
        return true;
    node = &pickle->nodes[value];
    if (node->flags & TORCH_REACHED)
        return true;
    if (depth > REACH_DEPTH_MAX)
        return false;
    node->flags |= TORCH_REACHED;
    switch ((enum pickle_kind)node->kind) {
    case PICKLE_TUPLE:
        for (uint32_t i = 0; i < node->b; i++)
            if (!mark_reached(pickle, pickle->items[node->a + i], depth + 1))
                return false;
        return true;
    case PICKLE_LIST:
        return mark_entries_reached(pickle, node->a, depth + 1);
    case PICKLE_DICT:
        return mark_entries_reached(pickle, node->a, depth + 1) &&
               mark_entries_reached(pickle, node->c, depth + 1);
    case PICKLE_CALL:
        return mark_reached(pickle, node->a, depth + 1) &&
               mark_reached(pickle, node->b, depth + 1) &&
               mark_entries_reached(pickle, node->c, depth + 1);
    default:
        return true;
    }
}

static bool
is_unseen(const struct pickle *pickle, pickle_value value, enum pickle_kind kind,
          bool is_everything)
{
    const unsigned flags = pickle->nodes[value].flags;

    return pickle->nodes[value].kind == kind && !(flags & TORCH_SEEN) &&
           (is_everything || flags & TORCH_REACHED);
}

static bool
is_any_tensor_call(const struct pickle *pickle, pickle_value value)
{
    const struct pickle_node *call = &pickle->nodes[value];
    bool has_dtype;

    return torch_refusal_of(pickle, call) || torch_is_call_from_type(pickle, call) ||
           torch_makes_tensor(pickle, call->a, &has_dtype);
}

/* Writes the line for a storage. */
static void
describe_unseen_storage(const struct pickle *pickle, pickle_value value, char *line, size_t size)
{
    char shown[QUOTED_SIZE];
    const char *key = "";
    size_t length = 0;

    pickle_get_string(pickle, pickle_tuple_item(pickle, pickle->nodes[value].a, 2), &key, &length);
    snprintf(line, size,
             "storage \"%s\" is in an object, a call or a container, expected in a tensor",
             quoted(shown, key, length));
}

errint_t
torch_refuse_unseen(struct pickle *pickle, pickle_value all, size_t *visits_left,
                    void (*refuse)(void *arg, const char *line), void *arg, struct reason *reason)
{
    const bool is_everything = all == pickle->root;
    char line[512];

    if (!is_everything && !mark_reached(pickle, all, 0))
        return reason_set(reason, -EBADMSG, "TorchNesting",
                          "objects and containers are nested more than %d deep", REACH_DEPTH_MAX);
    /* A call is a later node than its arguments, which are marked as its parts. */
    for (uint32_t i = pickle->node_count; i-- > 0;) {
        if (!is_unseen(pickle, i, PICKLE_CALL, is_everything) || !is_any_tensor_call(pickle, i))
            continue;
        torch_mark_parts(pickle, i, visits_left);
        refuse(arg, "a tensor is in an object or a set, expected a dictionary, list or tuple");
    }
    for (uint32_t i = 0; i < pickle->node_count; i++) {
        if (!is_unseen(pickle, i, PICKLE_PERSISTENT, is_everything) ||
            !torch_is_storage_id(pickle, pickle->nodes[i].a))
            continue;
        describe_unseen_storage(pickle, i, line, sizeof(line));
        refuse(arg, line);
    }
    return 0;
}
