/* SPDX-License-Identifier: Apache-2.0 */
/* Counting a double's calls, and having them fail when a test asks for it. Guarded by
 * the double's lock. */
#ifndef FSTFS_TESTS_GPU_CALLS_H
#define FSTFS_TESTS_GPU_CALLS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FUNCTIONS 64

struct call_count {
    const char *function;
    unsigned calls;
    unsigned fail_at; /* call number; 0: none */
    int every; /* all of them fail */
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

/* The error that this call is to give, or 0. */
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
