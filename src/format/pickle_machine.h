/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stack machine that executes pickles: its stack, its memo and the values made so far.
 * pickle.c, its only user, decodes the instructions. See pickle.h.
 */
#ifndef FSTFS_FORMAT_PICKLE_MACHINE_H
#define FSTFS_FORMAT_PICKLE_MACHINE_H

#include "base/error.h"
#include "format/pickle_value.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pickle_machine {
    const unsigned char *text;
    size_t length, at; /* bytes of text; offset of the next instruction */
    size_t memory_left; /* bytes that its arrays may still allocate */
    struct reason *reason;
    struct pickle *pickle;
    uint32_t node_capacity, item_capacity, entry_capacity;
    pickle_value *stack;
    uint32_t depth, stack_capacity;
    pickle_value *memo; /* PICKLE_VALUE_MARK: not set */
    uint32_t memo_count, memo_capacity;
    uint32_t memo_set; /* entries of the memo that are set, which MEMOIZE uses as its index */
    uint32_t puts; /* number of PUT instructions so far, which limits the length of the memo */
};

/* -EBADMSG with a reason that contains the offset in the text. */
#define pickle_refuse(m, what)                                                                     \
    reason_set((m)->reason, -EBADMSG, "Pickle", "byte %zu of the pickle: %s", (m)->at, what)
/* -ENODATA with a reason: the text ends before the pickle does. */
#define pickle_refuse_cut_off(m)                                                                   \
    reason_set((m)->reason, -ENODATA, "Pickle", "no STOP instruction in its %zu bytes", (m)->length)

/*
 * Errors of the functions below, with a reason: -EBADMSG, the stack does not have the values that
 * the instruction needs, or memory_left is exceeded; -ENOMEM.
 */

errint_t pickle_push(struct pickle_machine *m, pickle_value value);
errint_t pickle_new_node(struct pickle_machine *m, struct pickle_node node, pickle_value *value);
errint_t pickle_push_node(struct pickle_machine *m, struct pickle_node node);
/* Pops the top value, which must not be a mark. */
errint_t pickle_pop(struct pickle_machine *m, pickle_value *value);
/* Pops all values above the topmost mark, and the mark. */
errint_t pickle_drop_to_mark(struct pickle_machine *m);

/* Replaces the top `count` values by a tuple of them. */
errint_t pickle_push_tuple(struct pickle_machine *m, uint32_t count);
/* Pops all values above the topmost mark, and the mark; makes a tuple of the values. */
errint_t pickle_make_marked_tuple(struct pickle_machine *m, pickle_value *tuple);
/* Replaces the topmost mark and all values above it by a list (step 1) or dictionary (step 2) of
 * them. */
errint_t pickle_push_marked(struct pickle_machine *m, enum pickle_kind kind, uint32_t step);
/* Pops all values above the topmost mark, and the mark, and adds the values to the list (step 1) or
 * dictionary (step 2) below it. Values that are added to an object or set are held by it. */
errint_t pickle_add_marked_items(struct pickle_machine *m, enum pickle_kind kind, uint32_t step);
/* Pops the top `step` values and adds them to the list or dictionary below them. */
errint_t pickle_add_item(struct pickle_machine *m, enum pickle_kind kind, uint32_t step);

/* Adds a held entry to a call or a dictionary. Does nothing if the value contains no others. */
errint_t pickle_hold(struct pickle_machine *m, pickle_value object, pickle_value value);

/* Makes the dictionary that OrderedDict(PAIRS) returns; PAIRS is a list. Sets *dict to OPAQUE if an
 * element of the list is neither a list nor a tuple of two values. */
errint_t pickle_make_dict_of_pairs(struct pickle_machine *m, pickle_value pairs,
                                   pickle_value *dict);

/* Copies the top value into the memo; pushes a value of the memo. */
errint_t pickle_put_memo(struct pickle_machine *m, uint64_t index);
errint_t pickle_get_memo(struct pickle_machine *m, uint64_t index);

/* ---- pickle_keys.c ---- */

/*
 * Refuses a complete pickle if a dictionary has two keys that are equal in Python, and strings or
 * whole numbers of 64 bits: 1, 1.0 and True are one key. Sets PICKLE_DICT_UNSURE. Takes O(n log n)
 * time for a pickle of n bytes, and memory of m->memory_left. Errors as above.
 */
errint_t pickle_check_keys(struct pickle_machine *m);

#endif
