/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stack machine that a pickle is written for: its stack, its memo and the values made so far.
 * pickle.c, its only user, runs the instructions. See pickle.h.
 */
#ifndef FSTFS_FORMAT_PICKLE_MACHINE_H
#define FSTFS_FORMAT_PICKLE_MACHINE_H

#include "base/error.h"
#include "format/pickle_value.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The machine: its text, its stack, its memo, and the values made so far. */
struct pickle_machine {
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

/* -EBADMSG with a reason that has the place in the text. */
#define pickle_refuse(m, what)                                                                     \
    reason_set((m)->reason, -EBADMSG, "Pickle", "byte %zu of the pickle: %s", (m)->at, what)
/* -ENODATA with a reason: the text ends before the pickle does. */
#define pickle_refuse_cut_off(m)                                                                   \
    reason_set((m)->reason, -ENODATA, "Pickle", "it ends within its %zu bytes, without STOP",      \
               (m)->length)

/*
 * All functions below fail with a reason: -EBADMSG if the stack is not as the instruction needs it
 * or memory is used up, and -ENOMEM.
 */

errint_t pickle_push(struct pickle_machine *m, pickle_value value);
errint_t pickle_new_node(struct pickle_machine *m, struct pickle_node node, pickle_value *value);
errint_t pickle_push_node(struct pickle_machine *m, struct pickle_node node);
/* Takes the value on top, which must not be a mark. */
errint_t pickle_pop(struct pickle_machine *m, pickle_value *value);
/* Takes all values above the last mark, and the mark. */
errint_t pickle_drop_to_mark(struct pickle_machine *m);

/* Makes a tuple of the `count` values on top, in their place. */
errint_t pickle_push_tuple(struct pickle_machine *m, uint32_t count);
/* Makes a tuple of all values above the last mark, and takes the mark. */
errint_t pickle_make_marked_tuple(struct pickle_machine *m, pickle_value *tuple);
/* Makes a list (step 1) or dictionary (step 2) of all values above the last mark, in its place. */
errint_t pickle_push_marked(struct pickle_machine *m, enum pickle_kind kind, uint32_t step);
/* Adds all values above the last mark to the list (step 1) or dictionary (step 2) below it. What is
 * added to an object is dropped. */
errint_t pickle_add_marked_items(struct pickle_machine *m, enum pickle_kind kind, uint32_t step);
/* Adds the `step` values on top to the container below them. */
errint_t pickle_add_item(struct pickle_machine *m, enum pickle_kind kind, uint32_t step);

/* Copies the value on top into the memo, or a value of the memo onto the stack. */
errint_t pickle_put_memo(struct pickle_machine *m, uint64_t index);
errint_t pickle_get_memo(struct pickle_machine *m, uint64_t index);

#endif
