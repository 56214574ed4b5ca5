/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a pickle (Python's serialization, protocols 0 to 5) as data. No threads, no state.
 *
 * A pickle is a program for a stack machine that imports and calls what it names. This reader runs
 * only the instructions that make data: strings, numbers, tuples, lists and dictionaries. A global
 * is a pair of strings; calling one (REDUCE, NEWOBJ, ...) gives a PICKLE_CALL, which is never
 * carried out, except that collections.OrderedDict() is an empty dictionary. State that is set on
 * an object (BUILD) is dropped. Instructions: CPython's Lib/pickletools.py.
 *
 * Nothing is allocated by what the text claims: strings stay in the text, and each instruction adds
 * a bounded number of nodes.
 */
#ifndef FSTFS_FORMAT_PICKLE_H
#define FSTFS_FORMAT_PICKLE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A value: an index into pickle->nodes, or, with the highest bit set, a number from 0 to 2^31 - 1.
 */
typedef uint32_t pickle_value;

#define PICKLE_NUMBER_BIT UINT32_C(0x80000000)

/* Values that every pickle has. */
enum {
    PICKLE_VALUE_NONE,
    PICKLE_VALUE_OPAQUE,
    PICKLE_VALUE_MARK,
    PICKLE_VALUE_TRUE,
    PICKLE_VALUE_FALSE,
    PICKLE_FIXED_VALUES,
};

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_OPAQUE, /* a value of no interest: a float, bytes, a set, an object */
    PICKLE_MARK, /* internal */
    PICKLE_BOOL,
    PICKLE_NUMBER, /* that does not fit in a pickle_value. a, b: low and high half, signed */
    PICKLE_LONG, /* that does not fit in 64 bits. a: offset, b: length of its bytes in the text */
    PICKLE_STRING, /* a: offset, b: length in the text; not checked to be UTF-8 */
    PICKLE_TUPLE, /* a: first, b: count, in pickle->items */
    PICKLE_LIST, /* a: first entry, b: last entry, c: count */
    PICKLE_DICT, /* the same; keys may occur twice, the last one counts */
    PICKLE_GLOBAL, /* a: module, b: name; both are strings */
    PICKLE_CALL, /* a: what is called, a PICKLE_GLOBAL; b: its arguments, a PICKLE_TUPLE */
    PICKLE_PERSISTENT, /* a: the persistent ID, any value */
};

struct pickle_node {
    uint32_t kind; /* enum pickle_kind */
    uint32_t a, b, c;
};

/* Of a list or dictionary. */
struct pickle_entry {
    pickle_value key; /* of a dictionary only */
    pickle_value value;
    uint32_t next; /* in pickle->entries; 0: it is the last one */
};

struct pickle {
    const char *text; /* borrowed: must live as long */
    size_t length; /* bytes of the text that the pickle takes, its STOP included */
    pickle_value root;
    uint32_t node_count, item_count, entry_count;
    struct pickle_node *nodes;
    pickle_value *items; /* of tuples */
    struct pickle_entry *entries; /* [0] is not used */
};

/*
 * Reads the first pickle of a text of `length` bytes, with at most `memory` bytes besides the text.
 * Without `keep_lists`, lists are opaque.
 * -ENODATA with a reason: the text ends before the pickle does. -EBADMSG with a reason: malformed
 * (rule "Pickle"), or it needs more memory ("PickleMemory"); -ENOMEM. Text of over 2^31 - 1 bytes
 * is refused.
 */
errint_t pickle_read(const char *text, size_t length, size_t memory, bool keep_lists,
                     struct pickle *pickle, struct reason *reason);
void pickle_free(struct pickle *pickle); /* all zero is allowed */

/* The kind of a value; PICKLE_NUMBER for one within the value itself. */
enum pickle_kind pickle_kind_of(const struct pickle *pickle, pickle_value value);

/* False: it is no whole number from 0 to 2^63 - 1. */
bool pickle_take_number(const struct pickle *pickle, pickle_value value, uint64_t *number);

/* False: it is no string. */
bool pickle_take_string(const struct pickle *pickle, pickle_value value, const char **text,
                        size_t *length);

/* Element `i` of a tuple; PICKLE_VALUE_OPAQUE: it is no tuple, or shorter. */
pickle_value pickle_tuple_item(const struct pickle *pickle, pickle_value tuple, uint32_t i);
/* Elements of a tuple; 0: it is none. */
uint32_t pickle_tuple_length(const struct pickle *pickle, pickle_value tuple);

/* Whether the value is the global MODULE.NAME. */
bool pickle_is_global(const struct pickle *pickle, pickle_value value, const char *module,
                      const char *name);

#endif
