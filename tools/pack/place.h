/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the output goes: a file, or a directory of files that gets its name when
 * all of them are there.
 */
#ifndef FSTFS_PACK_PLACE_H
#define FSTFS_PACK_PLACE_H

#include "base/error.h"

#include <limits.h>
#include <stdbool.h>

struct place {
    int parent; /* the directory it is in */
    char name[NAME_MAX + 1];
    int directory; /* where files are written: the parent, or the temporary one */
    bool is_directory;
    char temporary[NAME_MAX + 1]; /* of the directory, until it has its name; "" */
    bool force;
    int old; /* a directory of that name that has files in it, or -1 */
};

/* Looks whether the output may be, and begins it. `stem` is NULL for a file. To be
 * ended with place_end() in any case. */
errint_t place_begin(const char *path, const char *stem, bool force, struct place *place,
                     struct reason *reason);

/* Gives a directory its name; of a file, nothing. Then waits until the name is on
 * storage. */
errint_t place_finish(struct place *place, const char *stem, struct reason *reason);

/* Removes what has no name yet. */
void place_end(struct place *place);

#endif
