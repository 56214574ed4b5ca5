/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of system calls that the C library's headers may lack; the same on all machines. */
#ifndef FSTFS_BASE_SYSTEM_CALL_H
#define FSTFS_BASE_SYSTEM_CALL_H

#include <sys/syscall.h>

#ifndef SYS_faccessat2
#define SYS_faccessat2 439 /* Linux 5.8 */
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5 */
#endif

#endif
