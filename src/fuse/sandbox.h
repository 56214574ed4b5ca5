/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drops the rights that the daemon does not need once it has mounted, so that code injected by a
 * crafted file can do little:
 *
 * - new privileges: set-user-ID programs have no effect any more;
 * - capabilities, except those for reading other users' files and for passthrough;
 * - files: Landlock allows reading the source only, and no writing, creating or executing. A helper
 *   process (opener.h) opens files outside of the source that links in it lead to;
 * - system calls, except those that serving needs (system_calls.h). src/io/ring.c restricts
 *   io_uring to reading.
 *
 * Each part is optional: if the kernel or an outer sandbox refuses it, .fstfs/status gives the
 * reason.
 */
#ifndef FSTFS_FUSE_SANDBOX_H
#define FSTFS_FUSE_SANDBOX_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct sandbox_part {
    char why[120]; /* why it is off; "": it is on */
};

struct sandbox {
    bool wanted;
    bool passthrough; /* keep what passthrough needs */
    bool credentials; /* keep what credentials.h needs */
    bool no_files; /* keep neither access to files nor capabilities, which only readers need */
    int tasks; /* a directory with files that it can read: see run_delay.h. -1: none */
    struct sandbox_part no_new_privileges, capabilities, landlock, system_calls;
    bool confined; /* Landlock allows reading the source only */
};

void sandbox_init(struct sandbox *sandbox, bool wanted, bool passthrough);

/* Disables all parts, and records the reason. */
void sandbox_refuse(struct sandbox *sandbox, const char *why, errint_t error);

/* Whether Landlock will confine the daemon to the source. */
bool sandbox_confines_files(const struct sandbox *sandbox);

/* Call it on the only thread: threads created later inherit it. `directory`: an open directory;
 * only files below it, sandbox->tasks and /sys/devices/system/cpu can then be read. -1: any file
 * can, or none if sandbox->no_files. */
void sandbox_enter(struct sandbox *sandbox, int directory);

/* Restricts the system calls of all threads. Call it when all rings and sockets have been made. */
void sandbox_seal(struct sandbox *sandbox);

/* Appends one JSON object. `opened_outside`: files that the opener has opened for the daemon. */
void sandbox_status(const struct sandbox *sandbox, uint64_t opened_outside, struct buffer *out);

#endif
