/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of fstfs-top.
 */
#ifndef FSTFS_TOP_OPTIONS_H
#define FSTFS_TOP_OPTIONS_H

#include "common/options.h"

struct options {
    const char *path; /* on the mount */
    double interval; /* seconds from one look to the next */
    bool once; /* one answer, and no more */
    bool json;
};

enum options_result options_parse(int argc, char **argv, struct options *options);

#endif
