/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of fstfs.
 */
#ifndef FSTFS_FUSE_OPTIONS_H
#define FSTFS_FUSE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct options {
    char *source;
    char *mountpoint;
    char *mount_options; /* for libfuse and the kernel, joined by commas; or NULL */
    bool foreground; /* -f, and -d */
    bool debug; /* -d */
    bool shared; /* allow_other or allow_root */
    int view; /* an enum view_kind, or -1: all */
    uint32_t shards; /* or 0 */
    uint64_t shard_size; /* bytes, or 0 */
    bool no_ring; /* --io=threads */
    bool no_direct; /* --direct=off */
    bool no_prefetch; /* --prefetch=off */
    uint32_t queue_depth; /* or 0: a right number */
    uint32_t threads; /* likewise */
    uint64_t memory; /* bytes; likewise */
    bool passthrough; /* --passthrough=on */
    bool no_sandbox; /* --sandbox=off */
    uint64_t readahead; /* of the kernel on this mount, in bytes; 0: as it comes */
};

enum options_result { OPTIONS_RUN, OPTIONS_DONE, OPTIONS_WRONG };

/*
 * Reads the command line. OPTIONS_DONE: help or version was asked for and
 * printed. OPTIONS_WRONG: what is wrong was printed to standard error. To be
 * freed with options_free() in any case.
 */
enum options_result options_parse(int argc, char **argv, struct options *options);
void options_free(struct options *options);

#endif
