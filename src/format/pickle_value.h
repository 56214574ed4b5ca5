/* SPDX-License-Identifier: Apache-2.0 */
/* The values that pickle_read() (pickle.h) returns. */
#ifndef FSTFS_FORMAT_PICKLE_VALUE_H
#define FSTFS_FORMAT_PICKLE_VALUE_H

#include <stddef.h>
#include <stdint.h>

/* A value: an index into pickle->nodes, or, with the highest bit set, a number from 0 to 2^31 - 1.
 */
typedef uint32_t pickle_value;

#define PICKLE_NUMBER_BIT UINT32_C(0x80000000)

/* Values that are the same in every pickle. */
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
    PICKLE_OPAQUE, /* a value that is not kept, and holds no others: bytes; in protocol 0 also a
                    * float, a string with escapes, or a long decimal number */
    PICKLE_MARK, /* internal */
    PICKLE_BOOL,
    PICKLE_NUMBER, /* does not fit in a pickle_value. a, b: low and high half, signed */
    PICKLE_LONG, /* does not fit in 64 bits. a: offset, b: length of its bytes in the text */
    PICKLE_FLOAT, /* a, b: low and high half of a double */
    PICKLE_STRING, /* a: offset, b: length in the text; not checked to be UTF-8. c: internal */
    PICKLE_TUPLE, /* a: first, b: count, in pickle->items */
    PICKLE_LIST, /* a: first entry, b: last entry, c: count. Numbers, booleans, None and opaque
                  * values are counted, but have no entry */
    PICKLE_DICT, /* a, b: as PICKLE_LIST. c: first held entry. Keys that are strings or whole
                  * numbers of 64 bits are different in Python; see PICKLE_DICT_UNSURE */
    PICKLE_GLOBAL, /* a: module, b: name; both are strings */
    PICKLE_CALL, /* the result of a call, or a set, or an object. a: the callee, usually a
                  * PICKLE_GLOBAL; b: its arguments, usually a PICKLE_TUPLE; OPAQUE if there are
                  * none, or they are not kept as such. c: first held entry */
    PICKLE_PERSISTENT, /* a: the persistent ID, a tuple */
};

/*
 * Held entries are values that a call or a dictionary contains besides its arguments or items: the
 * state that is set on it (BUILD), and items that are added to an object. They have no order.
 * Values that contain no others, such as numbers and strings, have no entry.
 */

/* Flags of nodes. Those from PICKLE_FLAG_FREE on are for the caller of pickle_read(). */
enum {
    /* Of a dictionary: a key is opaque, a call, a global or a persistent ID. Its value may equal
     * any other key, whose entry it then replaces: complex(1, 0), os.name. */
    PICKLE_DICT_UNSURE = 1,
    PICKLE_CALL_BUILT = 2, /* state was set on the result of the call (BUILD) */
    PICKLE_FLAG_FREE = 4,
};

struct pickle_node {
    uint16_t kind; /* enum pickle_kind */
    uint16_t flags;
    uint32_t a, b, c;
};

/* An entry of a list or dictionary, or a held one. */
struct pickle_entry {
    pickle_value key; /* of a list: the position, a number; of a held one: OPAQUE */
    pickle_value value;
    uint32_t next; /* index in pickle->entries; 0: the last entry */
};

struct pickle {
    const char *text; /* borrowed; must outlive the pickle */
    size_t length; /* bytes of the pickle, including its STOP */
    pickle_value root;
    uint32_t node_count, item_count, entry_count;
    struct pickle_node *nodes;
    pickle_value *items; /* of tuples */
    struct pickle_entry *entries; /* [0] is unused */
};

/* The kind of a value; PICKLE_NUMBER if PICKLE_NUMBER_BIT is set. */
static inline enum pickle_kind
pickle_kind_of(const struct pickle *pickle, pickle_value value)
{
    return (value & PICKLE_NUMBER_BIT) ? PICKLE_NUMBER
                                       : (enum pickle_kind)pickle->nodes[value].kind;
}

#endif
