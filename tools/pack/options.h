/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of fstfs-pack. */
#ifndef FSTFS_PACK_OPTIONS_H
#define FSTFS_PACK_OPTIONS_H

#include "common/command.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One --pick or --drop. */
struct pattern {
    const char *glob;
    bool drop;
};

struct patterns {
    struct pattern *all; /* in the order of the command line; malloc'ed */
    size_t count;
};

struct pack_options {
    struct patterns patterns;
    char **inputs;
    int input_count; /* at least 1 */
    const char *output; /* a file or, for shards, a directory */
    uint32_t shards; /* 0: not given */
    uint64_t shard_size; /* bytes; 0: not given */
    const char *stem; /* of the shards; NULL: that of the input */
    bool force; /* replace existing files */
    bool verify; /* read the output back and compare */
    bool tensors_only; /* do not copy side files */
};

void options_parse(int argc, char **argv, struct pack_options *options);
void options_free(struct pack_options *options); /* in any case */

/* Returns whether the output is a directory of shards. */
static inline bool
options_make_shards(const struct pack_options *options)
{
    return options->shards || options->shard_size;
}

#endif
