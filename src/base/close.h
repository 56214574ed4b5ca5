/* SPDX-License-Identifier: Apache-2.0 */
/* Inherited descriptors, and the limit of descriptors. For processes with one thread. */
#ifndef FSTFS_BASE_CLOSE_H
#define FSTFS_BASE_CLOSE_H

#include "base/error.h"

/* Closes the open descriptors from `first` to `last`, inclusive; none if first > last. Without
 * close_range(2) this needs /proc. */
void close_between(int first, int last);

/* Closes everything but standard error. Standard input and output, and standard error if it is
 * closed, become /dev/null, so that no later descriptor gets their numbers. If there is no
 * /dev/null, those that are open are kept. */
errint_t close_inherited(void);

/* Raises the soft limit of descriptors to the hard limit. The soft one is often 1024, for programs
 * that use select(2). */
void descriptor_limit_raise(void);

#endif
