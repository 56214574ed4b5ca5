/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command lines of the programs beside fstfs have in common.
 */
#ifndef FSTFS_COMMON_OPTIONS_H
#define FSTFS_COMMON_OPTIONS_H

#include <getopt.h>
#include <stdbool.h>

/* OPTIONS_DONE: help or version was asked for and printed. OPTIONS_WRONG: what is
 * wrong was printed to standard error. */
enum options_result { OPTIONS_RUN, OPTIONS_DONE, OPTIONS_WRONG };

struct command {
    const char *name, *usage;
    /* The program's own options, each `val` over 255; --help and --version are added here. */
    const struct option *options;
    unsigned option_count;
    /* One of them, with its argument in `optarg`. False: it is wrong, and was complained of. */
    bool (*take)(int option, void *arg);
};

enum { COMMAND_OPTIONS_MOST = 16 };

/* Reads all options; `optind` is then the first argument that is none. */
enum options_result command_options(const struct command *command, int argc, char **argv,
                                    void *arg);

#endif
