/* SPDX-License-Identifier: Apache-2.0 */
/* Starting threads, condition variables with timeouts, and thread-local variables. */
#ifndef FSTFS_BASE_THREAD_H
#define FSTFS_BASE_THREAD_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The storage class of all thread-local variables of libfstfs. Their memory is a part of each
 * thread's stack. glibc allocates other variables of a library that was loaded with dlopen() on
 * first use, and frees them when pthread_create() reuses the stack, before it clears the pointers
 * to them: a child of a fork() in between frees them again. All libraries that are loaded later
 * share about 1.5 KiB, so use few and small variables. musl refuses to load a library with such
 * variables, and allocates others with the thread.
 */
#ifdef __GLIBC__
#define THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define THREAD_LOCAL _Thread_local
#endif

/* Starts a thread with all signals blocked: signals are handled by the thread that waits for them
 * or, in libfstfs, by the program's own threads. The caller must join the thread. */
errint_t thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* Initializes a condition variable for condition_wait(). */
void condition_init(pthread_cond_t *condition);

/* Waits until the condition is signaled. Returns false if monotonic_ns() reaches `deadline` first.
 * Like pthread_cond_wait(), it may wake up spuriously. */
bool condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline);

#endif
