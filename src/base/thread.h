/* SPDX-License-Identifier: Apache-2.0 */
/* Starting threads, condition variables with timeouts, and thread-local variables. */
#ifndef FSTFS_BASE_THREAD_H
#define FSTFS_BASE_THREAD_H

#include "base/error.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The storage class of all thread-local variables of libfstfs. On glibc it is initial-exec: the
 * variables are part of each thread's stack. With the default model, glibc allocates the variables
 * of a library that was loaded with dlopen() on first use. When pthread_create() reuses a stack, it
 * frees them before it clears the pointers to them, so the child of a fork() in between frees them
 * again. All libraries that are loaded with dlopen() share about 1.5 KiB for initial-exec
 * variables, so use few and small ones. musl refuses to load a library with such variables, and
 * allocates those of the default model together with the thread.
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
