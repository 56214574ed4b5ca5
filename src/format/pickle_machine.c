/* SPDX-License-Identifier: Apache-2.0 */
/* See pickle_machine.h. */
#include "format/pickle_machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

/* Makes room for `needed` elements of the array that the pointer at `array` points to. */
static errint_t
grow_machine_array(struct pickle_machine *m, void *array, uint32_t *capacity, size_t element,
                   uint64_t needed)
{
    uint64_t room = *capacity ? *capacity : 64;
    void *old, *bigger;

    if (needed <= *capacity)
        return 0;
    while (room < needed)
        room += room / 2;
    if (room > INT32_MAX || (room - *capacity) * element > m->memory_left)
        return reason_set(
            m->reason, -EBADMSG, "PickleMemory",
            "byte %zu of the pickle: reading it takes more memory than the limit for a "
            "pickle of %zu bytes",
            m->at, m->length);
    memcpy(&old, array, sizeof(old));
    bigger = realloc(old, room * element);
    if (!bigger)
        return reason_no_memory(m->reason);
    m->memory_left -= (room - *capacity) * element;
    memcpy(array, &bigger, sizeof(bigger));
    *capacity = (uint32_t)room;
    return 0;
}

errint_t
pickle_push(struct pickle_machine *m, pickle_value value)
{
    errint_t error = grow_machine_array(m, &m->stack, &m->stack_capacity, sizeof(*m->stack),
                                        (uint64_t)m->depth + 1);

    if (!error)
        m->stack[m->depth++] = value;
    return error;
}

errint_t
pickle_new_node(struct pickle_machine *m, struct pickle_node node, pickle_value *value)
{
    struct pickle *p = m->pickle;
    errint_t error = grow_machine_array(m, &p->nodes, &m->node_capacity, sizeof(*p->nodes),
                                        (uint64_t)p->node_count + 1);

    if (error)
        return error;
    *value = p->node_count;
    p->nodes[p->node_count++] = node;
    return 0;
}

errint_t
pickle_push_node(struct pickle_machine *m, struct pickle_node node)
{
    pickle_value value;
    errint_t error = pickle_new_node(m, node, &value);

    return error ? error : pickle_push(m, value);
}

/* ---- the stack ---- */

errint_t
pickle_pop(struct pickle_machine *m, pickle_value *value)
{
    if (m->depth == 0 || m->stack[m->depth - 1] == PICKLE_VALUE_MARK)
        return pickle_refuse(m, "the stack is empty");
    *value = m->stack[--m->depth];
    return 0;
}

/* Sets the stack index of the first value above the topmost mark. */
static errint_t
find_pickle_mark(const struct pickle_machine *m, uint32_t *first)
{
    uint32_t i = m->depth;

    while (i > 0 && m->stack[i - 1] != PICKLE_VALUE_MARK)
        i--;
    *first = i;
    return i > 0 ? 0 : pickle_refuse(m, "there is no mark on the stack");
}

errint_t
pickle_drop_to_mark(struct pickle_machine *m)
{
    uint32_t first;
    errint_t error = find_pickle_mark(m, &first);

    if (!error)
        m->depth = first - 1;
    return error;
}

/* ---- tuples, lists, dictionaries ---- */

/* Pops the top `count` values and makes a tuple of them. */
static errint_t
make_pickle_tuple(struct pickle_machine *m, uint32_t count, pickle_value *tuple)
{
    struct pickle *p = m->pickle;
    struct pickle_node node = {.kind = PICKLE_TUPLE, .a = p->item_count, .b = count};
    errint_t error;

    if (count > m->depth)
        return pickle_refuse(m, "the stack is empty");
    for (uint32_t i = m->depth - count; i < m->depth; i++)
        if (m->stack[i] == PICKLE_VALUE_MARK)
            return pickle_refuse(m, "the stack is empty");
    error = grow_machine_array(m, &p->items, &m->item_capacity, sizeof(*p->items),
                               (uint64_t)p->item_count + count);
    if (!error)
        error = pickle_new_node(m, node, tuple);
    if (error)
        return error;
    m->depth -= count;
    if (count)
        memcpy(p->items + p->item_count, m->stack + m->depth, count * sizeof(*p->items));
    p->item_count += count;
    return 0;
}

errint_t
pickle_push_tuple(struct pickle_machine *m, uint32_t count)
{
    pickle_value tuple;
    errint_t error = make_pickle_tuple(m, count, &tuple);

    return error ? error : pickle_push(m, tuple);
}

errint_t
pickle_make_marked_tuple(struct pickle_machine *m, pickle_value *tuple)
{
    uint32_t first;
    errint_t error = find_pickle_mark(m, &first);

    if (!error)
        error = make_pickle_tuple(m, m->depth - first, tuple);
    if (!error)
        m->depth--;
    return error;
}

static errint_t
append_pickle_entry(struct pickle_machine *m, pickle_value container, pickle_value key,
                    pickle_value value)
{
    struct pickle *p = m->pickle;
    errint_t error = grow_machine_array(m, &p->entries, &m->entry_capacity, sizeof(*p->entries),
                                        (uint64_t)p->entry_count + 2);
    struct pickle_node *node;
    uint32_t entry;

    if (error)
        return error;
    entry = ++p->entry_count; /* from 1 */
    p->entries[entry] = (struct pickle_entry){key, value, 0};
    node = &p->nodes[container];
    if (node->a)
        p->entries[node->b].next = entry;
    else
        node->a = entry;
    node->b = entry;
    return 0;
}

/* Scalars in lists are never read, so they are not stored. */
static bool
is_list_scalar(const struct pickle *pickle, pickle_value value)
{
    switch (pickle_kind_of(pickle, value)) {
    case PICKLE_NONE:
    case PICKLE_OPAQUE:
    case PICKLE_BOOL:
    case PICKLE_NUMBER:
    case PICKLE_LONG:
    case PICKLE_FLOAT:
        return true;
    default:
        return false;
    }
}

static errint_t
append_list_element(struct pickle_machine *m, pickle_value list, pickle_value value)
{
    uint32_t position = m->pickle->nodes[list].c++; /* less than the bytes of the pickle */

    if (is_list_scalar(m->pickle, value))
        return 0;
    return append_pickle_entry(m, list, PICKLE_NUMBER_BIT | position, value);
}

errint_t
pickle_hold(struct pickle_machine *m, pickle_value object, pickle_value value)
{
    struct pickle *p = m->pickle;
    errint_t error;

    if (is_list_scalar(p, value) || pickle_kind_of(p, value) == PICKLE_STRING ||
        pickle_kind_of(p, value) == PICKLE_GLOBAL)
        return 0;
    error = grow_machine_array(m, &p->entries, &m->entry_capacity, sizeof(*p->entries),
                               (uint64_t)p->entry_count + 2);
    if (error)
        return error;
    p->entries[++p->entry_count] =
        (struct pickle_entry){PICKLE_VALUE_OPAQUE, value, p->nodes[object].c};
    p->nodes[object].c = p->entry_count;
    return 0;
}

/*
 * Pops the values from stack index `first` on and adds them to the list (step 1) or dictionary
 * (step 2) at index `below` - 1, which becomes the top of the stack. If that is an object or a set,
 * it holds them.
 */
static errint_t
add_pickle_items(struct pickle_machine *m, uint32_t first, uint32_t below, enum pickle_kind kind,
                 uint32_t step)
{
    pickle_value container;
    enum pickle_kind found;
    errint_t error = 0;

    if (below == 0 || m->stack[below - 1] == PICKLE_VALUE_MARK)
        return pickle_refuse(m, "there is no list, dictionary or set to add to");
    container = m->stack[below - 1];
    found = pickle_kind_of(m->pickle, container);
    if (found != kind && found != PICKLE_OPAQUE && found != PICKLE_CALL)
        return pickle_refuse(m, kind == PICKLE_LIST
                                    ? "elements are added to a value that is not a list"
                                    : "items are added to a value that is not a dictionary");
    if ((m->depth - first) % step)
        return pickle_refuse(m, "a key has no value");
    for (uint32_t i = first; i < m->depth; i++)
        if (m->stack[i] == PICKLE_VALUE_MARK)
            return pickle_refuse(m, "a mark is on the stack, expected a value");
    if (found == PICKLE_CALL)
        for (uint32_t i = first; !error && i < m->depth; i++)
            error = pickle_hold(m, container, m->stack[i]);
    else if (found == kind)
        for (uint32_t i = first; !error && i < m->depth; i += step)
            error = step == 2 ? append_pickle_entry(m, container, m->stack[i], m->stack[i + 1])
                              : append_list_element(m, container, m->stack[i]);
    m->depth = below;
    return error;
}

/* APPENDS, SETITEMS, ADDITEMS */
errint_t
pickle_add_marked_items(struct pickle_machine *m, enum pickle_kind kind, uint32_t step)
{
    uint32_t first;
    errint_t error = find_pickle_mark(m, &first);

    return error ? error : add_pickle_items(m, first, first - 1, kind, step);
}

/* APPEND, SETITEM */
errint_t
pickle_add_item(struct pickle_machine *m, enum pickle_kind kind, uint32_t step)
{
    if (m->depth < step)
        return pickle_refuse(m, "the stack is empty");
    return add_pickle_items(m, m->depth - step, m->depth - step, kind, step);
}

/* LIST and DICT of protocol 0 */
errint_t
pickle_push_marked(struct pickle_machine *m, enum pickle_kind kind, uint32_t step)
{
    pickle_value container;
    uint32_t first;
    errint_t error = find_pickle_mark(m, &first);

    if (!error)
        error = pickle_new_node(m, (struct pickle_node){.kind = kind}, &container);
    if (error)
        return error;
    m->stack[first - 1] = container;
    return add_pickle_items(m, first, first, kind, step);
}

/* ---- OrderedDict(PAIRS) ---- */

/* Sets the elements of a list or tuple of two. Those that lists do not keep are opaque. */
static bool
take_pickle_pair(const struct pickle *p, pickle_value pair, pickle_value items[2])
{
    enum pickle_kind kind = pickle_kind_of(p, pair);

    if (kind == PICKLE_TUPLE && p->nodes[pair].b == 2) {
        memcpy(items, p->items + p->nodes[pair].a, 2 * sizeof(*items));
        return true;
    }
    if (kind != PICKLE_LIST || p->nodes[pair].c != 2)
        return false;
    items[0] = items[1] = PICKLE_VALUE_OPAQUE;
    for (uint32_t i = p->nodes[pair].a; i; i = p->entries[i].next)
        items[p->entries[i].key & 1] = p->entries[i].value;
    return true;
}

errint_t
pickle_make_dict_of_pairs(struct pickle_machine *m, pickle_value pairs, pickle_value *dict)
{
    const struct pickle *p = m->pickle;
    pickle_value items[2];
    errint_t error = pickle_new_node(m, (struct pickle_node){.kind = PICKLE_DICT}, dict);

    /* Each step takes memory, which bounds the time of many calls with one list. */
    for (uint32_t i = p->nodes[pairs].a; !error && i; i = p->entries[i].next) {
        if (!take_pickle_pair(p, p->entries[i].value, items)) {
            *dict = PICKLE_VALUE_OPAQUE;
            return 0;
        }
        error = append_pickle_entry(m, *dict, items[0], items[1]);
    }
    return error;
}

/* ---- memo ---- */

errint_t
pickle_put_memo(struct pickle_machine *m, uint64_t index)
{
    errint_t error;

    /* Python numbers PUT instructions consecutively, from 0 (Python 3) or 1 (Python 2). */
    if (index > ++m->puts)
        return pickle_refuse(m, "the memo has gaps");
    if (m->depth == 0 || m->stack[m->depth - 1] == PICKLE_VALUE_MARK)
        return pickle_refuse(m, "the stack is empty");
    error = grow_machine_array(m, &m->memo, &m->memo_capacity, sizeof(*m->memo), index + 1);
    if (error)
        return error;
    while (m->memo_count <= index)
        m->memo[m->memo_count++] = PICKLE_VALUE_MARK;
    m->memo_set += m->memo[index] == PICKLE_VALUE_MARK;
    m->memo[index] = m->stack[m->depth - 1];
    return 0;
}

errint_t
pickle_get_memo(struct pickle_machine *m, uint64_t index)
{
    if (index >= m->memo_count || m->memo[index] == PICKLE_VALUE_MARK)
        return pickle_refuse(m, "the memo has no such entry");
    return pickle_push(m, m->memo[index]);
}
