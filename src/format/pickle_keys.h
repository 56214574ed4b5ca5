/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Equal keys in the dictionaries of a pickle. Python keeps one entry of them: the first key with
 * the last value. No writer stores such entries, so pickle_read(), the only caller, refuses them.
 */
#ifndef FSTFS_FORMAT_PICKLE_KEYS_H
#define FSTFS_FORMAT_PICKLE_KEYS_H

#include "format/pickle_machine.h"

/*
 * Refuses a complete pickle if a dictionary has two keys that are strings or numbers and equal in
 * Python: 1, 1.0 and True are one key. Sets PICKLE_DICT_UNSURE. Takes time of O(n log n) for a
 * pickle of n bytes, and memory of m->memory_left. Errors as in pickle_machine.h.
 */
errint_t pickle_check_keys(struct pickle_machine *m);

#endif
