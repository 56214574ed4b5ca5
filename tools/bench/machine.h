/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the bench says of the machine it ran on.
 */
#ifndef FSTFS_BENCH_MACHINE_H
#define FSTFS_BENCH_MACHINE_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct machine {
    char kernel[160];
    char processor[80];
    unsigned processors;
    uint64_t memory; /* bytes */
    bool root;
};

void machine_look(struct machine *machine);

/* Bytes of memory that can be had now without pushing anybody out: what the kernel
 * says, less where a cgroup or RLIMIT_AS allows this process less. */
uint64_t machine_memory_available(void);

/* The most memory a living process has had, in bytes; 0: not known. */
uint64_t machine_peak(pid_t pid);

/* "ext4 on /dev/vda": what a path lies on. */
void machine_storage_of(const char *path, char text[160]);

/* A whole small file as text; what cannot be read is empty. */
void machine_read(const char *path, struct buffer *text);

#endif
