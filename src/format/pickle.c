/* SPDX-License-Identifier: Apache-2.0 */
/* See pickle.h. */
#include "format/pickle.h"

#include "format/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The machine: its text, its stack, its memo, and the values made so far. */
struct machine {
    const unsigned char *text;
    size_t length, at;
    size_t memory_left; /* bytes that its arrays may still grow by */
    struct reason *reason;
    struct pickle *pickle;
    bool keep_lists;
    uint32_t node_capacity, item_capacity, entry_capacity;
    pickle_value *stack;
    uint32_t depth, stack_capacity;
    pickle_value *memo; /* 0, which is None's, where nothing was put */
    uint32_t memo_count, memo_capacity;
    uint32_t puts; /* instructions that put into the memo: it need not be longer */
};

static errint_t
refuse_pickle(const struct machine *m, const char *what)
{
    return reason_set(m->reason, -EBADMSG, "Pickle", "byte %zu of the pickle: %s", m->at, what);
}

static errint_t
refuse_cut_off(const struct machine *m)
{
    return reason_set(m->reason, -ENODATA, "Pickle", "it ends within its %zu bytes, without STOP",
                      m->length);
}

/* ---- memory ---- */

/* Makes room for `needed` elements of the array that the pointer at `array` points to. */
static errint_t
machine_grow(struct machine *m, void *array, uint32_t *capacity, size_t element, uint64_t needed)
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
            "byte %zu of the pickle: reading it takes more memory than is allowed for "
            "%zu bytes of pickle",
            m->at, m->length);
    memcpy(&old, array, sizeof(old));
    bigger = realloc(old, room * element);
    if (!bigger)
        return reason_set(m->reason, -ENOMEM, "OutOfMemory", "no memory for the pickle");
    m->memory_left -= (room - *capacity) * element;
    memcpy(array, &bigger, sizeof(bigger));
    *capacity = (uint32_t)room;
    return 0;
}

static errint_t
push_value(struct machine *m, pickle_value value)
{
    errint_t error =
        machine_grow(m, &m->stack, &m->stack_capacity, sizeof(*m->stack), (uint64_t)m->depth + 1);

    if (!error)
        m->stack[m->depth++] = value;
    return error;
}

static errint_t
new_node(struct machine *m, struct pickle_node node, pickle_value *value)
{
    struct pickle *p = m->pickle;
    errint_t error = machine_grow(m, &p->nodes, &m->node_capacity, sizeof(*p->nodes),
                                  (uint64_t)p->node_count + 1);

    if (error)
        return error;
    *value = p->node_count;
    p->nodes[p->node_count++] = node;
    return 0;
}

static errint_t
push_node(struct machine *m, struct pickle_node node)
{
    pickle_value value;
    errint_t error = new_node(m, node, &value);

    return error ? error : push_value(m, value);
}

/* ---- the stack ---- */

/* Takes the value on top; a mark is none. */
static errint_t
pop_value(struct machine *m, pickle_value *value)
{
    if (m->depth == 0 || m->stack[m->depth - 1] == PICKLE_VALUE_MARK)
        return refuse_pickle(m, "the stack is empty");
    *value = m->stack[--m->depth];
    return 0;
}

/* Where the values above the last mark begin. */
static errint_t
find_mark(const struct machine *m, uint32_t *first)
{
    uint32_t i = m->depth;

    while (i > 0 && m->stack[i - 1] != PICKLE_VALUE_MARK)
        i--;
    *first = i;
    return i > 0 ? 0 : refuse_pickle(m, "there is no mark on the stack");
}

/* Takes all above the last mark, and the mark. */
static errint_t
drop_to_mark(struct machine *m)
{
    uint32_t first;
    errint_t error = find_mark(m, &first);

    if (!error)
        m->depth = first - 1;
    return error;
}

/* ---- tuples, lists, dictionaries ---- */

/* The last `count` values of the stack become a tuple. */
static errint_t
make_tuple(struct machine *m, uint32_t count, pickle_value *tuple)
{
    struct pickle *p = m->pickle;
    struct pickle_node node = {PICKLE_TUPLE, p->item_count, count, 0};
    errint_t error;

    if (count > m->depth)
        return refuse_pickle(m, "the stack is empty");
    for (uint32_t i = m->depth - count; i < m->depth; i++)
        if (m->stack[i] == PICKLE_VALUE_MARK)
            return refuse_pickle(m, "the stack is empty");
    error = machine_grow(m, &p->items, &m->item_capacity, sizeof(*p->items),
                         (uint64_t)p->item_count + count);
    if (!error)
        error = new_node(m, node, tuple);
    if (error)
        return error;
    m->depth -= count;
    if (count)
        memcpy(p->items + p->item_count, m->stack + m->depth, count * sizeof(*p->items));
    p->item_count += count;
    return 0;
}

static errint_t
push_tuple(struct machine *m, uint32_t count)
{
    pickle_value tuple;
    errint_t error = make_tuple(m, count, &tuple);

    return error ? error : push_value(m, tuple);
}

/* All above the last mark becomes a tuple, in the place of the mark. */
static errint_t
make_marked_tuple(struct machine *m, pickle_value *tuple)
{
    uint32_t first;
    errint_t error = find_mark(m, &first);

    if (!error)
        error = make_tuple(m, m->depth - first, tuple);
    if (!error)
        m->depth--;
    return error;
}

static errint_t
append_entry(struct machine *m, pickle_value container, pickle_value key, pickle_value value)
{
    struct pickle *p = m->pickle;
    errint_t error = machine_grow(m, &p->entries, &m->entry_capacity, sizeof(*p->entries),
                                  (uint64_t)p->entry_count + 2);
    struct pickle_node *node;
    uint32_t entry;

    if (error)
        return error;
    entry = ++p->entry_count; /* from 1 */
    p->entries[entry] = (struct pickle_entry){key, value, 0};
    node = &p->nodes[container];
    if (node->c++)
        p->entries[node->b].next = entry;
    else
        node->a = entry;
    node->b = entry;
    return 0;
}

/*
 * Adds what is on the stack from `first` on to the list (step 1) or dictionary (step 2) in front of
 * it, which stays on the stack. What is added to an object is dropped.
 */
static errint_t
add_items(struct machine *m, uint32_t first, uint32_t below, enum pickle_kind kind, uint32_t step)
{
    pickle_value container;
    enum pickle_kind found;
    errint_t error = 0;

    if (below == 0 || m->stack[below - 1] == PICKLE_VALUE_MARK)
        return refuse_pickle(m, "there is nothing to add to");
    container = m->stack[below - 1];
    found = pickle_kind_of(m->pickle, container);
    if (found != kind && found != PICKLE_OPAQUE && found != PICKLE_CALL)
        return refuse_pickle(m, kind == PICKLE_LIST ? "elements are added to what is no list"
                                                    : "items are added to what is no dictionary");
    if ((m->depth - first) % step)
        return refuse_pickle(m, "a key has no value");
    for (uint32_t i = first; i < m->depth; i++)
        if (m->stack[i] == PICKLE_VALUE_MARK)
            return refuse_pickle(m, "a mark is on the stack, expected a value");
    for (uint32_t i = first; !error && found == kind && i < m->depth; i += step)
        error = append_entry(m, container, step == 2 ? m->stack[i] : PICKLE_VALUE_NONE,
                             m->stack[i + step - 1]);
    m->depth = below;
    return error;
}

/* APPENDS, SETITEMS, ADDITEMS: all above the last mark. */
static errint_t
add_marked_items(struct machine *m, enum pickle_kind kind, uint32_t step)
{
    uint32_t first;
    errint_t error = find_mark(m, &first);

    return error ? error : add_items(m, first, first - 1, kind, step);
}

/* APPEND, SETITEM. */
static errint_t
add_one_item(struct machine *m, enum pickle_kind kind, uint32_t step)
{
    if (m->depth < step)
        return refuse_pickle(m, "the stack is empty");
    return add_items(m, m->depth - step, m->depth - step, kind, step);
}

/* LIST and DICT, of protocol 0: a container of all above the last mark, in the place of the mark.
 */
static errint_t
make_marked_container(struct machine *m, enum pickle_kind kind, uint32_t step)
{
    pickle_value container;
    uint32_t first;
    errint_t error = find_mark(m, &first);

    if (!error)
        error = new_node(m, (struct pickle_node){kind, 0, 0, 0}, &container);
    if (error)
        return error;
    m->stack[first - 1] = container;
    return add_items(m, first, first, kind, step);
}

/* ---- memo ---- */

static errint_t
put_memo(struct machine *m, uint64_t index)
{
    errint_t error;

    /* Python counts from 0 (3) or 1 (2), once for each instruction. */
    if (index > ++m->puts)
        return refuse_pickle(m, "the memo has gaps");
    if (m->depth == 0 || m->stack[m->depth - 1] == PICKLE_VALUE_MARK)
        return refuse_pickle(m, "the stack is empty");
    error = machine_grow(m, &m->memo, &m->memo_capacity, sizeof(*m->memo), index + 1);
    if (error)
        return error;
    while (m->memo_count <= index)
        m->memo[m->memo_count++] = PICKLE_VALUE_MARK;
    m->memo[index] = m->stack[m->depth - 1];
    return 0;
}

static errint_t
get_memo(struct machine *m, uint64_t index)
{
    if (index >= m->memo_count || m->memo[index] == PICKLE_VALUE_MARK)
        return refuse_pickle(m, "the memo has no such entry");
    return push_value(m, m->memo[index]);
}

/* ---- numbers and strings ---- */

static errint_t
push_number(struct machine *m, int64_t number)
{
    if (number >= 0 && number <= INT32_MAX)
        return push_value(m, PICKLE_NUMBER_BIT | (uint32_t)number);
    return push_node(m, (struct pickle_node){PICKLE_NUMBER, (uint32_t)(uint64_t)number,
                                             (uint32_t)((uint64_t)number >> 32), 0});
}

/* Takes `count` bytes of the text. */
static errint_t
take_bytes(struct machine *m, uint64_t count, const unsigned char **bytes)
{
    if (count > m->length - m->at)
        return refuse_cut_off(m);
    *bytes = m->text + m->at;
    m->at += count;
    return 0;
}

/* Takes a little-endian number of `width` bytes: 1, 2, 4 or 8. */
static errint_t
take_width(struct machine *m, unsigned width, uint64_t *number)
{
    const unsigned char *bytes;
    errint_t error = take_bytes(m, width, &bytes);

    *number = 0;
    for (unsigned i = 0; !error && i < width; i++)
        *number |= (uint64_t)bytes[i] << 8 * i;
    return error;
}

/* Takes a line without its end. */
static errint_t
take_line(struct machine *m, const unsigned char **line, size_t *length)
{
    const unsigned char *start = m->text + m->at;
    const unsigned char *end = memchr(start, '\n', m->length - m->at);

    if (!end)
        return refuse_cut_off(m);
    *line = start;
    *length = (size_t)(end - start);
    m->at += *length + 1;
    return 0;
}

/* A little-endian number in two's complement. */
static errint_t
push_long(struct machine *m, uint64_t count)
{
    const unsigned char *bytes;
    uint64_t number;
    errint_t error = take_bytes(m, count, &bytes);

    if (error)
        return error;
    if (count > 8)
        return push_node(
            m, (struct pickle_node){PICKLE_LONG, (uint32_t)(bytes - m->text), (uint32_t)count, 0});
    number = count && bytes[count - 1] & 0x80 ? UINT64_MAX : 0;
    for (uint64_t i = count; i-- > 0;)
        number = number << 8 | bytes[i];
    return push_number(m, (int64_t)number);
}

/* INT and LONG of protocol 0: decimal, with "L" behind a long; 00 and 01 are booleans. */
static errint_t
push_decimal(struct machine *m)
{
    const unsigned char *line;
    size_t length, i = 0;
    uint64_t number = 0;
    bool negative;
    errint_t error = take_line(m, &line, &length);

    if (error)
        return error;
    if (length == 2 && line[0] == '0' && (line[1] == '0' || line[1] == '1'))
        return push_value(m, line[1] == '1' ? PICKLE_VALUE_TRUE : PICKLE_VALUE_FALSE);
    if (length && line[length - 1] == 'L')
        length--;
    negative = length && line[0] == '-';
    i = negative;
    if (i == length)
        return refuse_pickle(m, "a number has no digits");
    for (; i < length; i++) {
        if (line[i] < '0' || line[i] > '9')
            return refuse_pickle(m, "a number has other characters than digits");
        if (number > (INT64_MAX - 9) / 10)
            return push_value(m, PICKLE_VALUE_OPAQUE);
        number = number * 10 + (line[i] - '0');
    }
    return push_number(m, negative ? -(int64_t)number : (int64_t)number);
}

static errint_t
push_string(struct machine *m, uint64_t length)
{
    const unsigned char *bytes;
    errint_t error = take_bytes(m, length, &bytes);

    return error ? error
                 : push_node(m, (struct pickle_node){PICKLE_STRING, (uint32_t)(bytes - m->text),
                                                     (uint32_t)length, 0});
}

/* STRING (quoted) and UNICODE of protocol 0. One with escapes is opaque. */
static errint_t
push_line_string(struct machine *m, bool is_quoted)
{
    const unsigned char *line;
    size_t length;
    errint_t error = take_line(m, &line, &length);

    if (error)
        return error;
    if (is_quoted) {
        if (length < 2 || line[0] != line[length - 1] || (line[0] != '\'' && line[0] != '"'))
            return refuse_pickle(m, "a string has no quotes");
        line++;
        length -= 2;
    }
    if (memchr(line, '\\', length))
        return push_value(m, PICKLE_VALUE_OPAQUE);
    return push_node(
        m, (struct pickle_node){PICKLE_STRING, (uint32_t)(line - m->text), (uint32_t)length, 0});
}

/* Takes bytes that are of no interest. */
static errint_t
push_opaque_bytes(struct machine *m, uint64_t length)
{
    const unsigned char *bytes;
    errint_t error = take_bytes(m, length, &bytes);

    return error ? error : push_value(m, PICKLE_VALUE_OPAQUE);
}

/* ---- globals and calls ---- */

static errint_t
take_global(struct machine *m, pickle_value *global)
{
    const unsigned char *line;
    size_t length;
    pickle_value names[2];
    errint_t error = 0;

    for (unsigned i = 0; !error && i < 2; i++) {
        error = take_line(m, &line, &length);
        if (!error)
            error = new_node(m,
                             (struct pickle_node){PICKLE_STRING, (uint32_t)(line - m->text),
                                                  (uint32_t)length, 0},
                             &names[i]);
    }
    return error ? error
                 : new_node(m, (struct pickle_node){PICKLE_GLOBAL, names[0], names[1], 0}, global);
}

static errint_t
push_stack_global(struct machine *m)
{
    pickle_value module, name;
    errint_t error = pop_value(m, &name);

    if (!error)
        error = pop_value(m, &module);
    if (error)
        return error;
    if (pickle_kind_of(m->pickle, module) != PICKLE_STRING ||
        pickle_kind_of(m->pickle, name) != PICKLE_STRING)
        return refuse_pickle(m, "the name of a global is no string");
    return push_node(m, (struct pickle_node){PICKLE_GLOBAL, module, name, 0});
}

/* The result of a call, which is not carried out. */
static errint_t
push_call(struct machine *m, pickle_value callee, pickle_value arguments)
{
    if (pickle_kind_of(m->pickle, callee) != PICKLE_GLOBAL ||
        pickle_kind_of(m->pickle, arguments) != PICKLE_TUPLE)
        return push_value(m, PICKLE_VALUE_OPAQUE);
    if (pickle_is_global(m->pickle, callee, "collections", "OrderedDict") &&
        pickle_tuple_length(m->pickle, arguments) == 0)
        return push_node(m, (struct pickle_node){PICKLE_DICT, 0, 0, 0});
    return push_node(m, (struct pickle_node){PICKLE_CALL, callee, arguments, 0});
}

/* REDUCE, NEWOBJ: the arguments are on top, what is called below them. */
static errint_t
reduce(struct machine *m)
{
    pickle_value callee, arguments;
    errint_t error = pop_value(m, &arguments);

    if (!error)
        error = pop_value(m, &callee);
    return error ? error : push_call(m, callee, arguments);
}

/* NEWOBJ_EX: keyword arguments on top of that. */
static errint_t
reduce_with_keywords(struct machine *m)
{
    pickle_value keywords;
    errint_t error = pop_value(m, &keywords);

    if (!error)
        error = reduce(m);
    if (!error)
        m->stack[m->depth - 1] = PICKLE_VALUE_OPAQUE;
    return error;
}

/* INST and OBJ of protocols 0 and 1: all above the last mark are a class and its arguments. */
static errint_t
push_instance(struct machine *m, bool is_named)
{
    pickle_value global;
    errint_t error = is_named ? take_global(m, &global) : 0;

    if (!error)
        error = drop_to_mark(m);
    return error ? error : push_value(m, PICKLE_VALUE_OPAQUE);
}

static errint_t
push_persistent(struct machine *m)
{
    pickle_value id;
    errint_t error = pop_value(m, &id);

    return error ? error : push_node(m, (struct pickle_node){PICKLE_PERSISTENT, id, 0, 0});
}

static errint_t
skip_line(struct machine *m)
{
    const unsigned char *line;
    size_t length;

    return take_line(m, &line, &length);
}

static errint_t
drop_top(struct machine *m)
{
    if (m->depth == 0)
        return refuse_pickle(m, "the stack is empty");
    m->depth--;
    return 0;
}

static errint_t
push_top_again(struct machine *m)
{
    if (m->depth == 0 || m->stack[m->depth - 1] == PICKLE_VALUE_MARK)
        return refuse_pickle(m, "the stack is empty");
    return push_value(m, m->stack[m->depth - 1]);
}

static errint_t
drop_state(struct machine *m)
{
    pickle_value state, object;
    errint_t error = pop_value(m, &state);

    if (!error)
        error = pop_value(m, &object);
    return error ? error : push_value(m, object);
}

/* PUT and GET of protocol 0: the index in decimal. */
static errint_t
decimal_memo(struct machine *m, errint_t (*use)(struct machine *m, uint64_t index))
{
    const unsigned char *line;
    size_t length;
    uint64_t index = 0;
    errint_t error = take_line(m, &line, &length);

    if (error)
        return error;
    if (length == 0 || length > 9)
        return refuse_pickle(m, "an index of the memo is no number");
    for (size_t i = 0; i < length; i++) {
        if (line[i] < '0' || line[i] > '9')
            return refuse_pickle(m, "an index of the memo is no number");
        index = index * 10 + (line[i] - '0');
    }
    return use(m, index);
}

/* ---- instructions ---- */

/* What the instructions that begin with a number do with it. */
static const struct {
    unsigned char opcode;
    unsigned char width; /* bytes of the number */
    errint_t (*run)(struct machine *m, uint64_t number);
} numbered[] = {
    {'h', 1, get_memo}, /* BINGET */
    {'j', 4, get_memo}, /* LONG_BINGET */
    {'q', 1, put_memo}, /* BINPUT */
    {'r', 4, put_memo}, /* LONG_BINPUT */
    {'X', 4, push_string}, /* BINUNICODE */
    {0x8c, 1, push_string}, /* SHORT_BINUNICODE */
    {0x8d, 8, push_string}, /* BINUNICODE8 */
    {'T', 4, push_string}, /* BINSTRING: Python 2's str */
    {'U', 1, push_string}, /* SHORT_BINSTRING */
    {'B', 4, push_opaque_bytes}, /* BINBYTES */
    {'C', 1, push_opaque_bytes}, /* SHORT_BINBYTES */
    {0x8e, 8, push_opaque_bytes}, /* BINBYTES8 */
    {0x96, 8, push_opaque_bytes}, /* BYTEARRAY8 */
    {0x8a, 1, push_long}, /* LONG1 */
    {0x8b, 4, push_long}, /* LONG4 */
};

static errint_t
run_number(struct machine *m, unsigned width, bool is_signed)
{
    uint64_t number;
    errint_t error = take_width(m, width, &number);

    return error ? error : push_number(m, is_signed ? (int32_t)number : (int64_t)number);
}

static errint_t
skip_width(struct machine *m, unsigned width)
{
    uint64_t number;

    return take_width(m, width, &number);
}

/* EXT1, EXT2, EXT4: a global by its number in a registry. */
static errint_t
push_extension(struct machine *m, unsigned width)
{
    errint_t error = skip_width(m, width);

    return error ? error : push_value(m, PICKLE_VALUE_OPAQUE);
}

static errint_t
run_marked_tuple(struct machine *m)
{
    pickle_value tuple;
    errint_t error = make_marked_tuple(m, &tuple);

    return error ? error : push_value(m, tuple);
}

static errint_t
run_global(struct machine *m)
{
    pickle_value global;
    errint_t error = take_global(m, &global);

    return error ? error : push_value(m, global);
}

/* FROZENSET, or a list of no interest: all above the last mark. */
static errint_t
push_frozen(struct machine *m)
{
    errint_t error = drop_to_mark(m);

    return error ? error : push_value(m, PICKLE_VALUE_OPAQUE);
}

static errint_t
push_opaque_line(struct machine *m)
{
    errint_t error = skip_line(m);

    return error ? error : push_value(m, PICKLE_VALUE_OPAQUE);
}

static errint_t
memoize(struct machine *m)
{
    return put_memo(m, m->memo_count);
}

static errint_t
run_instruction(struct machine *m, unsigned char opcode)
{
    for (size_t i = 0; i < sizeof(numbered) / sizeof(numbered[0]); i++) {
        uint64_t number;
        errint_t error;

        if (numbered[i].opcode != opcode)
            continue;
        error = take_width(m, numbered[i].width, &number);
        return error ? error : numbered[i].run(m, number);
    }
    switch (opcode) {
    case 0x80: /* PROTO */
        return skip_width(m, 1);
    case 0x95: /* FRAME */
        return skip_width(m, 8);
    case '(':
        return push_value(m, PICKLE_VALUE_MARK);
    case '0':
        return drop_top(m);
    case '1': /* POP_MARK */
        return drop_to_mark(m);
    case '2': /* DUP */
        return push_top_again(m);
    case 'N':
        return push_value(m, PICKLE_VALUE_NONE);
    case 0x88: /* NEWTRUE */
        return push_value(m, PICKLE_VALUE_TRUE);
    case 0x89: /* NEWFALSE */
        return push_value(m, PICKLE_VALUE_FALSE);
    case 'I':
    case 'L':
        return push_decimal(m);
    case 'J': /* BININT */
        return run_number(m, 4, true);
    case 'K': /* BININT1 */
        return run_number(m, 1, false);
    case 'M': /* BININT2 */
        return run_number(m, 2, false);
    case 'F':
        return push_opaque_line(m);
    case 'G': /* BINFLOAT */
        return push_opaque_bytes(m, 8);
    case 'S':
        return push_line_string(m, true);
    case 'V':
        return push_line_string(m, false);
    case ')':
        return push_tuple(m, 0);
    case 0x85: /* TUPLE1 to TUPLE3 */
    case 0x86:
    case 0x87:
        return push_tuple(m, opcode - 0x84u);
    case 't':
        return run_marked_tuple(m);
    case ']':
        return m->keep_lists ? push_node(m, (struct pickle_node){PICKLE_LIST, 0, 0, 0})
                             : push_value(m, PICKLE_VALUE_OPAQUE);
    case 'l':
        return m->keep_lists ? make_marked_container(m, PICKLE_LIST, 1) : push_frozen(m);
    case '}':
        return push_node(m, (struct pickle_node){PICKLE_DICT, 0, 0, 0});
    case 'd':
        return make_marked_container(m, PICKLE_DICT, 2);
    case 0x8f: /* EMPTY_SET */
        return push_value(m, PICKLE_VALUE_OPAQUE);
    case 0x91: /* FROZENSET */
        return push_frozen(m);
    case 'a':
        return add_one_item(m, PICKLE_LIST, 1);
    case 'e':
        return add_marked_items(m, PICKLE_LIST, 1);
    case 's':
        return add_one_item(m, PICKLE_DICT, 2);
    case 'u':
        return add_marked_items(m, PICKLE_DICT, 2);
    case 0x90: /* ADDITEMS, to a set */
        return add_marked_items(m, PICKLE_OPAQUE, 1);
    case 'g':
        return decimal_memo(m, get_memo);
    case 'p':
        return decimal_memo(m, put_memo);
    case 0x94:
        return memoize(m);
    case 'c':
        return run_global(m);
    case 0x93:
        return push_stack_global(m);
    case 0x82: /* EXT1, EXT2, EXT4 */
        return push_extension(m, 1);
    case 0x83:
        return push_extension(m, 2);
    case 0x84:
        return push_extension(m, 4);
    case 'R':
    case 0x81: /* NEWOBJ */
        return reduce(m);
    case 0x92:
        return reduce_with_keywords(m);
    case 'i':
        return push_instance(m, true);
    case 'o':
        return push_instance(m, false);
    case 'b':
        return drop_state(m);
    case 'Q': /* BINPERSID */
        return push_persistent(m);
    case 'P':
        return push_opaque_line(m);
    default:
        m->at--;
        return refuse_pickle(m, "there is no such instruction, or it needs data from elsewhere");
    }
}

static const enum pickle_kind fixed_kinds[PICKLE_FIXED_VALUES] = {
    [PICKLE_VALUE_NONE] = PICKLE_NONE,  [PICKLE_VALUE_OPAQUE] = PICKLE_OPAQUE,
    [PICKLE_VALUE_MARK] = PICKLE_MARK,  [PICKLE_VALUE_TRUE] = PICKLE_BOOL,
    [PICKLE_VALUE_FALSE] = PICKLE_BOOL,
};

static errint_t
run_pickle(struct machine *m)
{
    pickle_value fixed;
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < PICKLE_FIXED_VALUES; i++)
        error = new_node(m, (struct pickle_node){fixed_kinds[i], 0, 0, 0}, &fixed);
    while (!error && m->at < m->length) {
        unsigned char opcode = m->text[m->at++];

        if (opcode == '.')
            return pop_value(m, &m->pickle->root);
        error = run_instruction(m, opcode);
    }
    return error ? error : refuse_cut_off(m);
}

errint_t
pickle_read(const char *text, size_t length, size_t memory, bool keep_lists, struct pickle *pickle,
            struct reason *reason)
{
    struct machine machine = {
        .text = (const unsigned char *)text,
        .length = length,
        .memory_left = memory,
        .reason = reason,
        .pickle = pickle,
        .keep_lists = keep_lists,
    };
    errint_t error;

    *pickle = (struct pickle){.text = text};
    if (length > INT32_MAX)
        return reason_set(reason, -EBADMSG, "PickleMemory",
                          "the pickle has %zu bytes, at most %d are read", length, INT32_MAX);
    error = run_pickle(&machine);
    free(machine.stack);
    free(machine.memo);
    pickle->length = machine.at;
    if (error)
        pickle_free(pickle);
    return error;
}

void
pickle_free(struct pickle *pickle)
{
    free(pickle->nodes);
    free(pickle->items);
    free(pickle->entries);
    *pickle = (struct pickle){0};
}

/* ---- values ---- */

enum pickle_kind
pickle_kind_of(const struct pickle *pickle, pickle_value value)
{
    return (value & PICKLE_NUMBER_BIT) ? PICKLE_NUMBER
                                       : (enum pickle_kind)pickle->nodes[value].kind;
}

bool
pickle_take_number(const struct pickle *pickle, pickle_value value, uint64_t *number)
{
    if (pickle_kind_of(pickle, value) != PICKLE_NUMBER)
        return false;
    if (value & PICKLE_NUMBER_BIT)
        *number = value & ~PICKLE_NUMBER_BIT;
    else
        *number = pickle->nodes[value].a | (uint64_t)pickle->nodes[value].b << 32;
    return *number <= INT64_MAX;
}

bool
pickle_take_string(const struct pickle *pickle, pickle_value value, const char **text,
                   size_t *length)
{
    if (pickle_kind_of(pickle, value) != PICKLE_STRING)
        return false;
    *text = pickle->text + pickle->nodes[value].a;
    *length = pickle->nodes[value].b;
    return true;
}

uint32_t
pickle_tuple_length(const struct pickle *pickle, pickle_value tuple)
{
    return pickle_kind_of(pickle, tuple) == PICKLE_TUPLE ? pickle->nodes[tuple].b : 0;
}

pickle_value
pickle_tuple_item(const struct pickle *pickle, pickle_value tuple, uint32_t i)
{
    return i < pickle_tuple_length(pickle, tuple) ? pickle->items[pickle->nodes[tuple].a + i]
                                                  : PICKLE_VALUE_OPAQUE;
}

static bool
string_is(const struct pickle *pickle, pickle_value value, const char *expected)
{
    const char *text;
    size_t length;

    return pickle_take_string(pickle, value, &text, &length) && length == strlen(expected) &&
           memcmp(text, expected, length) == 0;
}

bool
pickle_is_global(const struct pickle *pickle, pickle_value value, const char *module,
                 const char *name)
{
    return pickle_kind_of(pickle, value) == PICKLE_GLOBAL &&
           string_is(pickle, pickle->nodes[value].a, module) &&
           string_is(pickle, pickle->nodes[value].b, name);
}
