/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of a mount: see mount.h.
 */
#ifndef FSTFS_BENCH_GUARD_H
#define FSTFS_BENCH_GUARD_H

/* What the guard tells when the mount is there, or cannot be. */
struct guard_report {
    int daemon; /* its process id; 0: it did not mount */
    char text[400]; /* then: what it said */
};

/*
 * Runs `program SOURCE POINT`, writes a report to `ready`, and waits until all
 * other ends of `hold` are closed; then unmounts, ends the daemon and removes
 * `point`, an empty directory. To be called in a process made for it, which it ends.
 */
void __attribute__((noreturn))
guard_run(const char *program, const char *source, const char *point, int hold, int ready);

#endif
