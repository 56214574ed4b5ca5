/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions of a pickle, and access to its values. See pickle.h. */
#include "format/pickle.h"

#include "base/text.h"
#include "format/pickle_machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers and strings ---- */

static errint_t
push_pickle_number(struct pickle_machine *m, int64_t number)
{
    if (number >= 0 && number <= INT32_MAX)
        return pickle_push(m, PICKLE_NUMBER_BIT | (uint32_t)number);
    return pickle_push_node(m, (struct pickle_node){.kind = PICKLE_NUMBER,
                                                    .a = (uint32_t)(uint64_t)number,
                                                    .b = (uint32_t)((uint64_t)number >> 32)});
}

/* Takes `count` bytes of the text. */
static errint_t
take_pickle_bytes(struct pickle_machine *m, uint64_t count, const unsigned char **bytes)
{
    if (count > m->length - m->at)
        return pickle_refuse_cut_off(m);
    *bytes = m->text + m->at;
    m->at += count;
    return 0;
}

/* Takes a little-endian number of 1, 2, 4 or 8 bytes. */
static errint_t
take_pickle_width(struct pickle_machine *m, unsigned width, uint64_t *number)
{
    const unsigned char *bytes;
    errint_t error = take_pickle_bytes(m, width, &bytes);

    *number = 0;
    for (unsigned i = 0; !error && i < width; i++)
        *number |= (uint64_t)bytes[i] << 8 * i;
    return error;
}

/* Takes a line; *length does not include the newline. */
static errint_t
take_pickle_line(struct pickle_machine *m, const unsigned char **line, size_t *length)
{
    const unsigned char *start = m->text + m->at;
    const unsigned char *end = memchr(start, '\n', m->length - m->at);

    if (!end)
        return pickle_refuse_cut_off(m);
    *line = start;
    *length = (size_t)(end - start);
    m->at += *length + 1;
    return 0;
}

/* LONG1 and LONG4: `count` bytes, little-endian, two's complement. */
static errint_t
push_pickle_long(struct pickle_machine *m, uint64_t count)
{
    const unsigned char *bytes;
    uint64_t number;
    errint_t error = take_pickle_bytes(m, count, &bytes);

    if (error)
        return error;
    while (count > 8 && bytes[count - 1] == (bytes[count - 2] & 0x80 ? 0xff : 0))
        count--; /* repeats the sign */
    if (count > 8)
        return pickle_push_node(m, (struct pickle_node){.kind = PICKLE_LONG,
                                                        .a = (uint32_t)(bytes - m->text),
                                                        .b = (uint32_t)count});
    number = count && bytes[count - 1] & 0x80 ? UINT64_MAX : 0;
    for (uint64_t i = count; i-- > 0;)
        number = number << 8 | bytes[i];
    return push_pickle_number(m, (int64_t)number);
}

/* BINFLOAT: big-endian. */
static errint_t
push_pickle_float(struct pickle_machine *m)
{
    const unsigned char *bytes;
    uint64_t bits = 0;
    errint_t error = take_pickle_bytes(m, sizeof(bits), &bytes);

    if (error)
        return error;
    for (unsigned i = 0; i < sizeof(bits); i++)
        bits = bits << 8 | bytes[i];
    return pickle_push_node(m, (struct pickle_node){.kind = PICKLE_FLOAT,
                                                    .a = (uint32_t)bits,
                                                    .b = (uint32_t)(bits >> 32)});
}

/* INT and LONG of protocol 0: decimal, a long ends with "L"; 00 and 01 are booleans. */
static errint_t
push_decimal_number(struct pickle_machine *m)
{
    const unsigned char *line;
    size_t length, i = 0;
    uint64_t number = 0;
    bool negative;
    errint_t error = take_pickle_line(m, &line, &length);

    if (error)
        return error;
    if (length == 2 && line[0] == '0' && (line[1] == '0' || line[1] == '1'))
        return pickle_push(m, line[1] == '1' ? PICKLE_VALUE_TRUE : PICKLE_VALUE_FALSE);
    if (length && line[length - 1] == 'L')
        length--;
    negative = length && line[0] == '-';
    i = negative;
    if (i == length)
        return pickle_refuse(m, "a number has no digits");
    if (line[i] == '0' && length - i > 1) /* Python reads some of these as octal */
        return pickle_refuse(m, "a number begins with 0");
    for (; i < length; i++) {
        if (line[i] < '0' || line[i] > '9')
            return pickle_refuse(m, "a number has characters other than digits");
        if (number > (INT64_MAX - 9) / 10)
            return pickle_push(m, PICKLE_VALUE_OPAQUE);
        number = number * 10 + (line[i] - '0');
    }
    return push_pickle_number(m, negative ? -(int64_t)number : (int64_t)number);
}

static errint_t
push_pickle_string(struct pickle_machine *m, uint64_t length)
{
    const unsigned char *bytes;
    errint_t error = take_pickle_bytes(m, length, &bytes);

    return error ? error
                 : pickle_push_node(m, (struct pickle_node){.kind = PICKLE_STRING,
                                                            .a = (uint32_t)(bytes - m->text),
                                                            .b = (uint32_t)length});
}

/* STRING (quoted) and UNICODE of protocol 0. A string with escapes, or with bytes that are not
 * ASCII (their encoding is not UTF-8), is opaque. */
static errint_t
push_line_string(struct pickle_machine *m, bool is_quoted)
{
    const unsigned char *line;
    size_t length;
    errint_t error = take_pickle_line(m, &line, &length);

    if (error)
        return error;
    if (is_quoted) {
        if (length < 2 || line[0] != line[length - 1] || (line[0] != '\'' && line[0] != '"'))
            return pickle_refuse(m, "a string has no quotes");
        line++;
        length -= 2;
    }
    for (size_t i = 0; i < length; i++)
        if (line[i] == '\\' || line[i] >= 0x80)
            return pickle_push(m, PICKLE_VALUE_OPAQUE);
    return pickle_push_node(m, (struct pickle_node){.kind = PICKLE_STRING,
                                                    .a = (uint32_t)(line - m->text),
                                                    .b = (uint32_t)length});
}

/* Skips bytes and pushes an opaque value for them. */
static errint_t
push_opaque_bytes(struct pickle_machine *m, uint64_t length)
{
    const unsigned char *bytes;
    errint_t error = take_pickle_bytes(m, length, &bytes);

    return error ? error : pickle_push(m, PICKLE_VALUE_OPAQUE);
}

/* ---- globals and calls ---- */

/* Pops the top value into *second and the one below it into *first. */
static errint_t
pop_two(struct pickle_machine *m, pickle_value *first, pickle_value *second)
{
    errint_t error = pickle_pop(m, second);

    return error ? error : pickle_pop(m, first);
}

static errint_t
take_pickle_global(struct pickle_machine *m, pickle_value *global)
{
    const unsigned char *line;
    size_t length;
    pickle_value names[2];
    errint_t error = 0;

    for (unsigned i = 0; !error && i < 2; i++) {
        error = take_pickle_line(m, &line, &length);
        if (!error)
            error = pickle_new_node(m,
                                    (struct pickle_node){.kind = PICKLE_STRING,
                                                         .a = (uint32_t)(line - m->text),
                                                         .b = (uint32_t)length},
                                    &names[i]);
    }
    return error ? error
                 : pickle_new_node(
                       m, (struct pickle_node){.kind = PICKLE_GLOBAL, .a = names[0], .b = names[1]},
                       global);
}

static errint_t
push_stack_global(struct pickle_machine *m)
{
    pickle_value module, name;
    errint_t error = pop_two(m, &module, &name);

    if (error)
        return error;
    if (pickle_kind_of(m->pickle, module) != PICKLE_STRING ||
        pickle_kind_of(m->pickle, name) != PICKLE_STRING)
        return pickle_refuse(m, "the name of a global is not a string");
    return pickle_push_node(m, (struct pickle_node){.kind = PICKLE_GLOBAL, .a = module, .b = name});
}

static errint_t
push_call_node(struct pickle_machine *m, pickle_value callee, pickle_value arguments)
{
    return pickle_push_node(m,
                            (struct pickle_node){.kind = PICKLE_CALL, .a = callee, .b = arguments});
}

/* Pushes a PICKLE_CALL in place of the result of the call. */
static errint_t
push_call(struct pickle_machine *m, pickle_value callee, pickle_value arguments)
{
    if (pickle_is_global(m->pickle, callee, "collections", "OrderedDict")) {
        uint32_t count = pickle_tuple_length(m->pickle, arguments);
        pickle_value pairs = pickle_tuple_item(m->pickle, arguments, 0);
        pickle_value dict = PICKLE_VALUE_OPAQUE;
        errint_t error = 0;

        if (count == 0 && pickle_kind_of(m->pickle, arguments) == PICKLE_TUPLE)
            return pickle_push_node(m, (struct pickle_node){.kind = PICKLE_DICT});
        if (count == 1 && pickle_kind_of(m->pickle, pairs) == PICKLE_LIST)
            error = pickle_make_dict_of_pairs(m, pairs, &dict);
        if (error || dict != PICKLE_VALUE_OPAQUE)
            return error ? error : pickle_push(m, dict);
    }
    return push_call_node(m, callee, arguments);
}

/* REDUCE: the arguments are on top of the stack, the callee is below them. */
static errint_t
run_reduce(struct pickle_machine *m)
{
    pickle_value callee, arguments;
    errint_t error = pop_two(m, &callee, &arguments);

    return error ? error : push_call(m, callee, arguments);
}

/* NEWOBJ: the same for CLASS.__new__(). OrderedDict.__new__() ignores its arguments, so a call with
 * arguments is not made a dictionary of them. */
static errint_t
run_new_object(struct pickle_machine *m)
{
    pickle_value callee, arguments;
    errint_t error = pop_two(m, &callee, &arguments);

    if (error)
        return error;
    return pickle_tuple_length(m->pickle, arguments) ? push_call_node(m, callee, arguments)
                                                     : push_call(m, callee, arguments);
}

/* NEWOBJ_EX: the keyword arguments are on top of the stack, above what NEWOBJ takes. The call holds
 * them; its callee is not kept. */
static errint_t
run_reduce_with_keywords(struct pickle_machine *m)
{
    pickle_value keywords, arguments, callee;
    errint_t error = pop_two(m, &arguments, &keywords);

    if (!error)
        error = pickle_pop(m, &callee);
    if (!error)
        error = push_call_node(m, PICKLE_VALUE_OPAQUE, arguments);
    return error ? error : pickle_hold(m, m->stack[m->depth - 1], keywords);
}

/* INST and OBJ of protocols 0 and 1, FROZENSET. Above the topmost mark are the class and its
 * arguments (OBJ), the arguments (INST, which names the class itself), or the elements. */
static errint_t
push_instance(struct pickle_machine *m, bool is_named)
{
    pickle_value values;
    errint_t error = is_named ? take_pickle_global(m, &values) : 0;

    if (!error)
        error = pickle_make_marked_tuple(m, &values);
    return error ? error : push_call_node(m, PICKLE_VALUE_OPAQUE, values);
}

/* BINPERSID: torch.load() accepts only tuples. */
static errint_t
push_persistent(struct pickle_machine *m)
{
    pickle_value id;
    errint_t error = pickle_pop(m, &id);

    if (error)
        return error;
    if (pickle_kind_of(m->pickle, id) != PICKLE_TUPLE)
        return pickle_refuse(m, "a persistent ID is not a tuple");
    return pickle_push_node(m, (struct pickle_node){.kind = PICKLE_PERSISTENT, .a = id});
}

static errint_t
run_pop(struct pickle_machine *m)
{
    if (m->depth == 0)
        return pickle_refuse(m, "the stack is empty");
    m->depth--;
    return 0;
}

static errint_t
run_dup(struct pickle_machine *m)
{
    if (m->depth == 0 || m->stack[m->depth - 1] == PICKLE_VALUE_MARK)
        return pickle_refuse(m, "the stack is empty");
    return pickle_push(m, m->stack[m->depth - 1]);
}

static errint_t
run_build(struct pickle_machine *m)
{
    pickle_value state, object;
    errint_t error = pop_two(m, &object, &state);

    if (error)
        return error;
    if (pickle_kind_of(m->pickle, object) == PICKLE_CALL)
        m->pickle->nodes[object].flags |= PICKLE_CALL_BUILT;
    if (pickle_kind_of(m->pickle, object) == PICKLE_CALL ||
        pickle_kind_of(m->pickle, object) == PICKLE_DICT)
        error = pickle_hold(m, object, state);
    return error ? error : pickle_push(m, object);
}

/* PUT and GET of protocol 0: the memo index is decimal. */
static errint_t
decimal_memo(struct pickle_machine *m, errint_t (*use)(struct pickle_machine *m, uint64_t index))
{
    const unsigned char *line;
    size_t length;
    uint64_t index = 0;
    errint_t error = take_pickle_line(m, &line, &length);

    if (error)
        return error;
    if (length == 0 || length > 9)
        return pickle_refuse(m, "an index of the memo is no number");
    for (size_t i = 0; i < length; i++) {
        if (line[i] < '0' || line[i] > '9')
            return pickle_refuse(m, "an index of the memo is no number");
        index = index * 10 + (line[i] - '0');
    }
    return use(m, index);
}

/* ---- instructions ---- */

static errint_t
push_unsigned_number(struct pickle_machine *m, uint64_t number)
{
    return push_pickle_number(m, (int64_t)number);
}

static errint_t
push_signed_number(struct pickle_machine *m, uint64_t number)
{
    return push_pickle_number(m, (int32_t)number);
}

static errint_t
ignore_number(struct pickle_machine *m, uint64_t number)
{
    (void)m;
    (void)number;
    return 0;
}

/* Instructions whose argument is, or begins with, a number; by opcode. */
static const struct {
    unsigned char width; /* bytes of the number */
    errint_t (*run)(struct pickle_machine *m, uint64_t number);
} numbered[256] = {
    [0x80] = {1, ignore_number}, /* PROTO */
    [0x95] = {8, ignore_number}, /* FRAME */
    ['J'] = {4, push_signed_number}, /* BININT */
    ['K'] = {1, push_unsigned_number}, /* BININT1 */
    ['M'] = {2, push_unsigned_number}, /* BININT2 */
    ['h'] = {1, pickle_get_memo}, /* BINGET */
    ['j'] = {4, pickle_get_memo}, /* LONG_BINGET */
    ['q'] = {1, pickle_put_memo}, /* BINPUT */
    ['r'] = {4, pickle_put_memo}, /* LONG_BINPUT */
    ['X'] = {4, push_pickle_string}, /* BINUNICODE */
    [0x8c] = {1, push_pickle_string}, /* SHORT_BINUNICODE */
    [0x8d] = {8, push_pickle_string}, /* BINUNICODE8 */
    ['T'] = {4, push_pickle_string}, /* BINSTRING: Python 2's str */
    ['U'] = {1, push_pickle_string}, /* SHORT_BINSTRING */
    ['B'] = {4, push_opaque_bytes}, /* BINBYTES */
    ['C'] = {1, push_opaque_bytes}, /* SHORT_BINBYTES */
    [0x8e] = {8, push_opaque_bytes}, /* BINBYTES8 */
    [0x96] = {8, push_opaque_bytes}, /* BYTEARRAY8 */
    [0x8a] = {1, push_pickle_long}, /* LONG1 */
    [0x8b] = {4, push_pickle_long}, /* LONG4 */
};

static errint_t
run_marked_tuple(struct pickle_machine *m)
{
    pickle_value tuple;
    errint_t error = pickle_make_marked_tuple(m, &tuple);

    return error ? error : pickle_push(m, tuple);
}

static errint_t
run_global(struct pickle_machine *m)
{
    pickle_value global;
    errint_t error = take_pickle_global(m, &global);

    return error ? error : pickle_push(m, global);
}

/* FLOAT of protocol 0 */
static errint_t
push_opaque_line(struct pickle_machine *m)
{
    const unsigned char *line;
    size_t length;
    errint_t error = take_pickle_line(m, &line, &length);

    return error ? error : pickle_push(m, PICKLE_VALUE_OPAQUE);
}

static errint_t
run_instruction(struct pickle_machine *m, unsigned char opcode)
{
    uint64_t number;

    if (numbered[opcode].run) {
        errint_t error = take_pickle_width(m, numbered[opcode].width, &number);

        return error ? error : numbered[opcode].run(m, number);
    }
    switch (opcode) {
    case '(':
        return pickle_push(m, PICKLE_VALUE_MARK);
    case '0':
        return run_pop(m);
    case '1': /* POP_MARK */
        return pickle_drop_to_mark(m);
    case '2': /* DUP */
        return run_dup(m);
    case 'N':
        return pickle_push(m, PICKLE_VALUE_NONE);
    case 0x88: /* NEWTRUE */
        return pickle_push(m, PICKLE_VALUE_TRUE);
    case 0x89: /* NEWFALSE */
        return pickle_push(m, PICKLE_VALUE_FALSE);
    case 'I':
    case 'L':
        return push_decimal_number(m);
    case 'F':
        return push_opaque_line(m);
    case 'G':
        return push_pickle_float(m);
    case 'S':
        return push_line_string(m, true);
    case 'V':
        return push_line_string(m, false);
    case ')':
        return pickle_push_tuple(m, 0);
    case 0x85: /* TUPLE1 to TUPLE3 */
    case 0x86:
    case 0x87:
        return pickle_push_tuple(m, opcode - 0x84u);
    case 't':
        return run_marked_tuple(m);
    case ']':
        return pickle_push_node(m, (struct pickle_node){.kind = PICKLE_LIST});
    case 'l':
        return pickle_push_marked(m, PICKLE_LIST, 1);
    case '}':
        return pickle_push_node(m, (struct pickle_node){.kind = PICKLE_DICT});
    case 'd':
        return pickle_push_marked(m, PICKLE_DICT, 2);
    case 0x8f: /* EMPTY_SET */
        return push_call_node(m, PICKLE_VALUE_OPAQUE, PICKLE_VALUE_OPAQUE);
    case 0x91: /* FROZENSET */
        return push_instance(m, false);
    case 'a':
        return pickle_add_item(m, PICKLE_LIST, 1);
    case 'e':
        return pickle_add_marked_items(m, PICKLE_LIST, 1);
    case 's':
        return pickle_add_item(m, PICKLE_DICT, 2);
    case 'u':
        return pickle_add_marked_items(m, PICKLE_DICT, 2);
    case 0x90: /* ADDITEMS, to a set */
        return pickle_add_marked_items(m, PICKLE_CALL, 1);
    case 'g':
        return decimal_memo(m, pickle_get_memo);
    case 'p':
        return decimal_memo(m, pickle_put_memo);
    case 0x94: /* MEMOIZE */
        return pickle_put_memo(m, m->memo_set);
    case 'c':
        return run_global(m);
    case 0x93:
        return push_stack_global(m);
    case 'R':
        return run_reduce(m);
    case 0x81: /* NEWOBJ */
        return run_new_object(m);
    case 0x92:
        return run_reduce_with_keywords(m);
    case 'i':
        return push_instance(m, true);
    case 'o':
        return push_instance(m, false);
    case 'b':
        return run_build(m);
    case 'Q': /* BINPERSID */
        return push_persistent(m);
    default: /* EXT1, EXT2, EXT4, PERSID and NEXT_BUFFER, too: torch.load() fails at them */
        m->at--;
        return pickle_refuse(m, "there is no such instruction, or it needs data from elsewhere");
    }
}

static const enum pickle_kind fixed_kinds[PICKLE_FIXED_VALUES] = {
    [PICKLE_VALUE_NONE] = PICKLE_NONE,  [PICKLE_VALUE_OPAQUE] = PICKLE_OPAQUE,
    [PICKLE_VALUE_MARK] = PICKLE_MARK,  [PICKLE_VALUE_TRUE] = PICKLE_BOOL,
    [PICKLE_VALUE_FALSE] = PICKLE_BOOL,
};

static errint_t
run_pickle(struct pickle_machine *m)
{
    pickle_value fixed;
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < PICKLE_FIXED_VALUES; i++)
        error = pickle_new_node(m, (struct pickle_node){.kind = fixed_kinds[i]}, &fixed);
    while (!error && m->at < m->length) {
        unsigned char opcode = m->text[m->at++];

        if (opcode == '.')
            return pickle_pop(m, &m->pickle->root);
        error = run_instruction(m, opcode);
    }
    return error ? error : pickle_refuse_cut_off(m);
}

errint_t
pickle_read(const char *text, size_t length, size_t memory, struct pickle *pickle,
            struct reason *reason)
{
    struct pickle_machine machine = {
        .text = (const unsigned char *)text,
        .length = length,
        .memory_left = memory,
        .reason = reason,
        .pickle = pickle,
    };
    errint_t error;

    *pickle = (struct pickle){.text = text, .root = PICKLE_VALUE_MARK};
    if (length > INT32_MAX)
        return reason_set(reason, -EBADMSG, "PickleMemory",
                          "the pickle has %zu bytes, at most %d are read", length, INT32_MAX);
    error = run_pickle(&machine);
    free(machine.stack);
    free(machine.memo);
    machine.memory_left +=
        (machine.stack_capacity + (size_t)machine.memo_capacity) * sizeof(pickle_value);
    if (!error)
        error = pickle_check_keys(&machine);
    pickle->length = machine.at;
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

bool
pickle_get_integer(const struct pickle *pickle, pickle_value value, int64_t *number)
{
    if (pickle_kind_of(pickle, value) != PICKLE_NUMBER)
        return false;
    if (value & PICKLE_NUMBER_BIT)
        *number = value & ~PICKLE_NUMBER_BIT;
    else
        *number = (int64_t)(pickle->nodes[value].a | (uint64_t)pickle->nodes[value].b << 32);
    return true;
}

bool
pickle_get_number(const struct pickle *pickle, pickle_value value, uint64_t *number)
{
    int64_t integer;

    if (!pickle_get_integer(pickle, value, &integer))
        return false;
    *number = (uint64_t)integer;
    return integer >= 0;
}

bool
pickle_get_string(const struct pickle *pickle, pickle_value value, const char **text,
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

bool
pickle_string_is(const struct pickle *pickle, pickle_value value, const char *string)
{
    const char *text;
    size_t length;

    return pickle_get_string(pickle, value, &text, &length) && text_is(text, length, string);
}

bool
pickle_is_global(const struct pickle *pickle, pickle_value value, const char *module,
                 const char *name)
{
    return pickle_kind_of(pickle, value) == PICKLE_GLOBAL &&
           pickle_string_is(pickle, pickle->nodes[value].a, module) &&
           pickle_string_is(pickle, pickle->nodes[value].b, name);
}

uint32_t
pickle_find_key(const struct pickle *pickle, pickle_value dict, const char *key)
{
    uint32_t i = pickle_kind_of(pickle, dict) == PICKLE_DICT ? pickle->nodes[dict].a : 0;

    while (i && !pickle_string_is(pickle, pickle->entries[i].key, key))
        i = pickle->entries[i].next;
    return i;
}
