/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of the engine, and the states of its optional mechanisms.
 */
#ifndef FSTFS_IO_OPTIONS_H
#define FSTFS_IO_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* All zero selects the defaults. */
struct io_options {
    unsigned threads; /* limit of worker threads per file system; 0: 8, or 16 without io_uring */
    unsigned descriptors; /* limit of open backing files; 0: from RLIMIT_NOFILE */
    bool no_ring; /* no io_uring: workers only */
    bool no_direct; /* no O_DIRECT: buffered reads only */
    bool no_prefetch; /* foreground reads only */
    bool keeps_pages; /* use buffered reads, and keep the bytes in the page cache for others */
    unsigned rings; /* io_uring instances, each with a thread; 0: by the number of processors */
    unsigned queue_depth; /* limit of reads in flight per ring and file system; 0: 64 */
    /* Budget of all buffers in bytes; 0: 256 MiB, or an eighth of the memory if that is less. */
    uint64_t memory;
};

enum io_mechanism {
    IO_MECHANISM_URING,
    IO_MECHANISM_DIRECT,
    IO_MECHANISM_DONTCACHE,
    IO_MECHANISM_CACHESTAT,
    IO_MECHANISMS
};

enum io_fallback {
    IO_FALLBACK_NONE,
    IO_FALLBACK_NOT_WANTED, /* by an option */
    IO_FALLBACK_REFUSED /* by the kernel or a sandbox; or, for some files, by a file system */
};

#endif
