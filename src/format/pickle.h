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
#include "format/pickle_value.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
