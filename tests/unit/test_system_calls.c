/* SPDX-License-Identifier: Apache-2.0 */
/* The length of the seccomp filter. Built a second time with an array that is too short for it. */
#include "fuse/system_calls.h"

#include <check.h>
#include <errno.h>
#include <linux/filter.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>

#define KERNEL_LIMIT 4096 /* instructions; BPF_MAXINSNS unless the build defines it */

static struct sock_filter code[KERNEL_LIMIT];
static unsigned length; /* of the filter given to seccomp(2); 0: none */

long __wrap_syscall(long number, ...);

/* Called in place of syscall(2). */
long
__wrap_syscall(long number, ...)
{
    const struct sock_fprog *program;
    va_list arguments;

    ck_assert_int_eq(number, SYS_seccomp);
    va_start(arguments, number);
    va_arg(arguments, int); /* the operation */
    va_arg(arguments, unsigned long); /* flags */
    program = va_arg(arguments, const struct sock_fprog *);
    va_end(arguments);
    length = program->len;
    ck_assert_uint_le(length, BPF_MAXINSNS);
    for (unsigned i = 0; i < length; i++)
        code[i] = program->filter[i];
    return 0;
}

static errint_t
restrict_with_options(int options)
{
    length = 0;
    return system_calls_restrict(options & 1, options & 2);
}

START_TEST(filter_fits)
{
    errint_t error = restrict_with_options(_i);

    if (error == -ENOTSUP)
        return;
    ck_assert_int_eq(error, 0);
    ck_assert_uint_gt(length, 0);
    ck_assert_int_eq(BPF_CLASS(code[length - 1].code), BPF_RET);
    for (unsigned i = 0; i < length; i++)
        if (BPF_CLASS(code[i].code) == BPF_JMP)
            ck_assert(i + 1 + code[i].jt < length && i + 1 + code[i].jf < length);
}
END_TEST

START_TEST(filter_is_too_long)
{
    errint_t error = restrict_with_options(_i);

    if (error == -ENOTSUP)
        return;
    ck_assert_int_eq(error, -E2BIG);
    ck_assert_uint_eq(length, 0);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("system_calls");
    TCase *c = tcase_create("length");

    tcase_add_loop_test(c, BPF_MAXINSNS == KERNEL_LIMIT ? filter_fits : filter_is_too_long, 0, 4);
    suite_add_tcase(s, c);
    return s;
}

#include "check_main.h"
