/* SPDX-License-Identifier: Apache-2.0 */
/* Starting threads, and condition variables with timeouts. */
#ifndef FSTFS_BASE_THREAD_H
#define FSTFS_BASE_THREAD_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts a thread with all signals blocked: signals are for the thread that waits for them, in
 * libfstfs for those of the program. The caller joins it. */
errint_t thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* Initializes a condition variable for condition_wait(). */
void condition_init(pthread_cond_t *condition);

/* Waits until the condition is signaled, or until monotonic_ns() reaches `deadline`: then it
 * returns false. Like pthread_cond_wait() it may return without a reason. */
bool condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline);

#endif
