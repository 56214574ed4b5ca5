/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of fstfs-cache. */
#ifndef FSTFS_CACHE_OPTIONS_H
#define FSTFS_CACHE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Patterns of tensor names, for glob_match(). */
struct globs {
    const char **all;
    size_t count; /* 0: all files are selected as a whole */
};

struct cache_options {
    bool warm, keep, evict; /* at most one; none: only print the report */
    bool json;
    struct globs globs;
    uint64_t memory; /* limit of bytes to warm or keep; 0: the available memory */
    char **paths;
    int path_count;
};

/* Ends the program if the command line is invalid. */
void options_parse(int argc, char **argv, struct cache_options *options);

void options_free(struct cache_options *options);

#endif
