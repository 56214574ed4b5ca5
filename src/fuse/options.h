/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of fstfs. */
#ifndef FSTFS_FUSE_OPTIONS_H
#define FSTFS_FUSE_OPTIONS_H

#include "io/options.h"

#include <stdbool.h>
#include <stdint.h>

#define READAHEAD_BY_FILE UINT64_MAX

struct options {
    char *source;
    char *mountpoint;
    char *mount_options; /* for libfuse and the kernel, joined by commas; or NULL */
    bool foreground; /* -f, -d */
    bool debug; /* -d */
    bool shared; /* allow_other or allow_root */
    int view; /* an enum view_kind; -1: all */
    uint32_t shards; /* 0: as in the source */
    uint64_t shard_size; /* bytes; 0: as in the source */
    struct io_options io; /* --io, --direct, --prefetch, --queue-depth, --threads, --memory */
    bool passthrough; /* --passthrough=on */
    bool no_sandbox; /* --sandbox=off */
    uint32_t pid; /* the process whose end unmounts; 0: none */
    /* The kernel's readahead, in bytes; 0: the kernel's default; or READAHEAD_BY_FILE. */
    uint64_t readahead;
};

enum options_result { OPTIONS_RUN, OPTIONS_DONE, OPTIONS_WRONG };

/*
 * Parses the command line. OPTIONS_DONE: help or version was printed. OPTIONS_WRONG: the error was
 * printed to standard error. Free the options with options_free() in any case.
 */
enum options_result options_parse(int argc, char **argv, struct options *options);
void options_free(struct options *options);

#endif
