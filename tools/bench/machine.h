/* SPDX-License-Identifier: Apache-2.0 */
/* The machine that the benchmark runs on. */
#ifndef FSTFS_BENCH_MACHINE_H
#define FSTFS_BENCH_MACHINE_H

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

void machine_describe(struct machine *machine);

/* Peak memory of a running process in bytes; 0: unknown. */
uint64_t machine_peak_memory(pid_t pid);

/* What a path is stored on: "ext4 on /dev/vda". */
void machine_storage_of(const char *path, char text[160]);

#endif
