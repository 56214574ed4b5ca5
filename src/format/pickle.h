/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a pickle (Python's serialization, protocols 0 to 5) as data. No threads, no state.
 *
 * A pickle is a program for a stack machine, which can import and call any Python function. This
 * reader executes only the instructions that create data: strings, numbers, tuples, lists and
 * dictionaries. A global is a pair of strings. A call (REDUCE, NEWOBJ, ...) is recorded as a
 * PICKLE_CALL and never made, except that collections.OrderedDict() is a dictionary: empty, or, as
 * Python 2 writes it, of a list of pairs. State that is set on an object (BUILD) is held by the
 * call that created it, which is flagged. Sets are calls, too, without a callee.
 * Instructions: CPython's Lib/pickletools.py. Those that need data from elsewhere are refused: the
 * extension registry (EXT1), text persistent IDs (PERSID), and buffers (NEXT_BUFFER).
 *
 * Lengths in the text never determine an allocation: strings stay in the text, and each instruction
 * adds a bounded number of nodes.
 */
#ifndef FSTFS_FORMAT_PICKLE_H
#define FSTFS_FORMAT_PICKLE_H

#include "base/error.h"
#include "format/pickle_value.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Reads the first pickle of a text of `length` bytes, and allocates at most `memory` bytes. The
 * text must outlive *pickle.
 *
 * On errors too, *pickle has the values that were read until then, and must be freed; its root is
 * PICKLE_VALUE_MARK if the pickle was not read to its end.
 * With a reason: -ENODATA, the text ends before the pickle does; -EBADMSG, it is malformed or a
 * dictionary has a key twice (rule "Pickle", see pickle_keys.c), or it needs more memory or has
 * more than 2^31 - 1 bytes ("PickleMemory"); -ENOMEM.
 */
errint_t pickle_read(const char *text, size_t length, size_t memory, struct pickle *pickle,
                     struct reason *reason);
void pickle_free(struct pickle *pickle); /* all zero is allowed */

/* False: the value is not an integer of 64 bits. */
bool pickle_get_integer(const struct pickle *pickle, pickle_value value, int64_t *number);
/* False: the value is not an integer from 0 to 2^63 - 1. */
bool pickle_get_number(const struct pickle *pickle, pickle_value value, uint64_t *number);

/* False: the value is not a string. The text is borrowed and not NUL-terminated. */
bool pickle_get_string(const struct pickle *pickle, pickle_value value, const char **text,
                       size_t *length);
/* Whether the value is this string. */
bool pickle_string_is(const struct pickle *pickle, pickle_value value, const char *string);

/* Element `i` of a tuple; PICKLE_VALUE_OPAQUE if it is not a tuple or has fewer elements. */
pickle_value pickle_tuple_item(const struct pickle *pickle, pickle_value tuple, uint32_t i);
/* The number of elements of a tuple; 0 if the value is not a tuple. */
uint32_t pickle_tuple_length(const struct pickle *pickle, pickle_value tuple);

/* Whether the value is the global MODULE.NAME. */
bool pickle_is_global(const struct pickle *pickle, pickle_value value, const char *module,
                      const char *name);

/* The entry of a dictionary whose key is this string: an index in pickle->entries. 0: there is
 * none, or the value is not a dictionary. */
uint32_t pickle_find_key(const struct pickle *pickle, pickle_value dict, const char *key);

#endif
