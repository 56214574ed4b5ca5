/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the calls of a test double and injects failures. Guarded by the double's lock. */
#ifndef FSTFS_TESTS_GPU_CALLS_H
#define FSTFS_TESTS_GPU_CALLS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FUNCTIONS 64

struct call_count {
    const char *function;
    unsigned calls;
    unsigned fail_at; /* number of the call that fails; 0: none */
    int every; /* every call fails */
    int error;
};

static struct call_count call_counts[MOST_FUNCTIONS];

static struct call_count *
calls_of(const char *function)
{
    struct call_count *count = call_counts;

    while (count->function && strcmp(count->function, function) != 0)
        count++;
    if (!count->function)
        count->function = function;
    return count;
}

/* Counts a call; returns the error that it must return, or 0. */
static int
count_call(const char *function)
{
    struct call_count *count = calls_of(function);

    return ++count->calls == count->fail_at || count->every ? count->error : 0;
}

static void
fail_call(const char *function, unsigned call, int error)
{
    struct call_count *count = calls_of(function);

    count->fail_at = call ? count->calls + call : 0;
    count->every = call == 0;
    count->error = error;
}

static void __attribute__((noreturn)) misuse(const char *what)
{
    fprintf(stderr, "double: %s\n", what);
    abort();
}

#endif
