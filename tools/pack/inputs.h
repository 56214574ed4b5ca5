/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All inputs put together as one checkpoint, which the view's functions then lay
 * out as they do one of a mount.
 */
#ifndef FSTFS_PACK_INPUTS_H
#define FSTFS_PACK_INPUTS_H

#include "catalog/catalog.h"
#include "common/find.h"
#include "options.h"
#include "side.h"
#include "sources.h"

struct inputs {
    struct checkpoint checkpoint; /* not of a catalog: no references, nothing private */
    char stem[256];
    struct found *found; /* one for each input at most */
    size_t found_count;
    struct shard **own; /* shards that were made here, as are their tables */
    size_t own_count;
    struct problems *problems;
    uint64_t left_out; /* tensors, by --pick and --drop */
    struct sources sources; /* all files of tensors */
    struct side_files side; /* to be copied */
};

/* Reads headers only. On an error the reason says of which input and why. To be let
 * go with inputs_free() in any case. */
errint_t inputs_read(const struct options *options, struct inputs *inputs, struct reason *reason);
void inputs_free(struct inputs *inputs);

#endif
