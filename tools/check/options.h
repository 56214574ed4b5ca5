/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of fstfs-check. */
#ifndef FSTFS_CHECK_OPTIONS_H
#define FSTFS_CHECK_OPTIONS_H

#include "common/command.h"

#include <stdbool.h>

struct check_options {
    char **paths;
    int path_count; /* at least 1 */
    bool deep; /* read every byte; set by `nan` and `hashes` too */
    bool nan; /* find NaN and infinity */
    const char *hashes; /* file of the tensors' hashes, or NULL */
    bool all; /* name every tensor and shard with the same fault, not only three */
    bool json;
};

void options_parse(int argc, char **argv, struct check_options *options);

#endif
