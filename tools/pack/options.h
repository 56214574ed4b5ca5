/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of fstfs-pack.
 */
#ifndef FSTFS_PACK_OPTIONS_H
#define FSTFS_PACK_OPTIONS_H

#include "common/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One --pick or --drop. */
struct pattern {
    const char *glob;
    bool drop;
};

struct options {
    char **inputs;
    int input_count; /* at least 1 */
    const char *output; /* a file; or, where it is cut, a directory */
    uint32_t shards; /* or 0 */
    uint64_t shard_size; /* bytes, or 0; neither: one file */
    const char *stem; /* of the shards; NULL: the input's */
    struct pattern *patterns; /* in their order; malloc'ed */
    size_t pattern_count;
    bool force; /* replace what is there */
    bool verify; /* read back and compare */
    bool copies_files; /* of the input that are no tensors; only into a directory */
};

/* To be freed in any case. */
enum options_result options_parse(int argc, char **argv, struct options *options);
void options_free(struct options *options);

#endif
