/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon gives up once it has mounted, so that whoever should get to run
 * code in it, by a file made for that, gets little:
 *
 * - new privileges: programs with the set-user-ID bit have no effect any more;
 * - capabilities, but for the one that reads other users' files, and the one that
 *   passthrough needs where that was asked for;
 * - files: Landlock leaves the source to be read, and nothing to be written, made or
 *   executed. What links in the source lead to, another process opens (opener.h);
 * - system calls but for those that serving takes (system_calls.h); and with io_uring
 *   everything but reading (src/io/ring.c).
 *
 * Each is tried, and done without where the kernel, or a sandbox around this one, will
 * not have it; status says why.
 */
#ifndef FSTFS_FUSE_SANDBOX_H
#define FSTFS_FUSE_SANDBOX_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>

/* A sanitizer works inside the process: it looks into /proc, writes its report, stops
 * the other threads to look for leaks. It gets what it needs. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

struct sandbox_part {
    bool on;
    char why[120]; /* not, where it is not */
};

struct sandbox {
    bool wanted;
    bool passthrough; /* is to go on working */
    bool credentials; /* those of other users are to be taken on (credentials.h) */
    struct sandbox_part no_new_privileges, capabilities, landlock, system_calls;
    bool shut_in; /* Landlock leaves the source alone to be read */
};

void sandbox_init(struct sandbox *sandbox, bool wanted, bool passthrough);

/* Does without it all. */
void sandbox_refuse(struct sandbox *sandbox, const char *why, errint_t error);

/* Whether this kernel has Landlock, so that files outside of `directory` need an opener. */
bool sandbox_shuts_files(const struct sandbox *sandbox);

/* For the one thread there is: those it makes are as it is. `directory` is an open
 * directory to which files are shut in, or -1: any file may be read. */
void sandbox_enter(struct sandbox *sandbox, int directory);

/* For all threads, when all that serving needs has been set up. */
void sandbox_seal(struct sandbox *sandbox);

/* One JSON object. */
void sandbox_status(const struct sandbox *sandbox, struct buffer *out);

#endif
