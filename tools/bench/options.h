/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of fstfs-bench. */
#ifndef FSTFS_BENCH_OPTIONS_H
#define FSTFS_BENCH_OPTIONS_H

#include "common/command.h"

#include <stdbool.h>

struct bench_options {
    char **paths; /* of models */
    int path_count; /* at least 1 */
    unsigned rounds; /* 1 to ROUNDS_MOST */
    const char *methods; /* names separated by commas; NULL: all */
    const char *device; /* or NULL */
    const char *svg; /* file to write; or NULL */
    bool loaders;
    bool json;
};

void options_parse(int argc, char **argv, struct bench_options *options);

#endif
