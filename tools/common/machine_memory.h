/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of the machine and of this process's cgroup. */
#ifndef FSTFS_COMMON_MACHINE_MEMORY_H
#define FSTFS_COMMON_MACHINE_MEMORY_H

#include <stdint.h>

/* Bytes of memory that can be allocated without swapping: MemAvailable, or less if a cgroup or
 * RLIMIT_AS allows this process less. The page cache counts as available. */
uint64_t machine_memory_available(void);

#endif
