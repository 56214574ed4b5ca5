/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optional mechanisms of the engine, and the state of each.
 */
#ifndef FSTFS_IO_FALLBACKS_H
#define FSTFS_IO_FALLBACKS_H

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
    IO_FALLBACK_REFUSED /* by the kernel, a sandbox, or a file system: then for some files */
};

#endif
