/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of the machine and of this process's cgroup. */
#ifndef FSTFS_COMMON_MACHINE_MEMORY_H
#define FSTFS_COMMON_MACHINE_MEMORY_H

#include <stdint.h>

/* Returns the number after `key` in a file of values in KiB, such as those of /proc, converted to
 * bytes; 0: not found. */
uint64_t machine_memory_read_kib(const char *path, const char *key);

/* Bytes of memory that can be allocated without swapping: MemAvailable, or less if a cgroup or
 * RLIMIT_AS allows this process less. The page cache counts as available. */
uint64_t machine_memory_available(void);

#endif
