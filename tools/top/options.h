/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of fstfs-top. */
#ifndef FSTFS_TOP_OPTIONS_H
#define FSTFS_TOP_OPTIONS_H

#include "common/command.h"

struct top_options {
    const char *path; /* in the mount */
    double interval; /* seconds between two samples */
    bool once; /* exit after one report */
    bool json;
    bool loads; /* print the last loads, and exit */
    bool svg; /* print the last load as an SVG image, and exit */
};

void options_parse(int argc, char **argv, struct top_options *options);

#endif
