/* SPDX-License-Identifier: Apache-2.0 */
/* Starting threads, and condition variables with timeouts. */
#ifndef FSTFS_BASE_THREAD_H
#define FSTFS_BASE_THREAD_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts a thread with all signals blocked: signals are handled by the thread that waits for them
 * or, in libfstfs, by the program's own threads. The caller must join the thread. */
errint_t thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* Initializes a condition variable for condition_wait(). */
void condition_init(pthread_cond_t *condition);

/* Waits until the condition is signaled. Returns false if monotonic_ns() reaches `deadline` first.
 * Like pthread_cond_wait(), it may wake up spuriously. */
bool condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline);

#endif
