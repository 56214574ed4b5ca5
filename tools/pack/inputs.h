/* SPDX-License-Identifier: Apache-2.0 */
/* Combines all inputs into one checkpoint, from which src/view generates files as it does for a
 * mount. */
#ifndef FSTFS_PACK_INPUTS_H
#define FSTFS_PACK_INPUTS_H

#include "catalog/catalog.h"
#include "common/find.h"
#include "options.h"
#include "side.h"
#include "sources.h"

struct inputs {
    struct checkpoint checkpoint; /* not in a catalog: no references and no private part */
    char stem[256];
    struct found *found; /* at most one for each input */
    size_t found_count;
    struct shard **own; /* the shards of `checkpoint` created here, with their tables */
    size_t own_count;
    struct problems *problems;
    uint64_t excluded; /* tensors excluded by --pick and --drop */
    struct sources sources; /* all input files */
    struct side_files side; /* to be copied */
};

/* Reads headers only. On an error `reason` begins with the input's path. Call inputs_free() in any
 * case. */
errint_t inputs_read(const struct pack_options *options, struct inputs *inputs,
                     struct reason *reason);
void inputs_free(struct inputs *inputs);

#endif
