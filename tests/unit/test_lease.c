/* SPDX-License-Identifier: Apache-2.0 */
/* Read leases. The linker replaces sigtimedwait() with a function that ignores the timeout: if a
 * signal is not sent, the test hangs until its own timeout, and fails. */
#include "base/extent.h"
#include "base/lease.h"
#include "expect.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64];
static int file; /* open for reading */
static struct backing *backing;

int __wrap_sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *timeout);

int
__wrap_sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *timeout)
{
    (void)timeout;
    return sigwaitinfo(set, info);
}

static void
/* cppcheck-suppress constParameter ; lease_start() gives the type */
lease_has_ended(struct backing *ended, int fd, enum lease_end how)
{
    expect(ended == backing);
    expect(fd >= 0);
    expect(how == LEASE_BROKEN);
}

/* A lease needs a file that nobody has open for writing. */
static void
setup(void)
{
    int writable = memfd_create("lease", MFD_CLOEXEC);

    ck_assert_int_ge(writable, 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", writable);
    file = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(file, 0);
    close(writable);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    backing = backing_new(AT_FDCWD, "file", &(struct file_identity){.size = 0});
    ck_assert_ptr_nonnull(backing);
    ck_assert_int_eq(lease_start(false, lease_has_ended), 0);
}

static void
teardown(void)
{
    backing_unref(backing);
    lease_stop();
    close(file);
    assert_expectations();
}

static void *
take_lease(void *arg)
{
    expect(lease_take(backing, file) == 0);
    lease_confirm(backing);
    return arg;
}

/* An open for writing waits until the lease is released. */
static void
open_for_writing(void)
{
    pid_t writer = fork();
    int status;

    ck_assert_int_ge(writer, 0);
    if (writer == 0)
        _exit(open(path, O_WRONLY | O_CLOEXEC) < 0);
    ck_assert_int_eq(waitpid(writer, &status, 0), writer);
    ck_assert_int_eq(status, 0);
}

START_TEST(writer_gets_the_file)
{
    take_lease(NULL);
    ck_assert(lease_holds(backing));
    open_for_writing();
    ck_assert(!lease_holds(backing));
}
END_TEST

START_TEST(thread_that_took_the_lease_has_ended)
{
    pthread_t taker;

    ck_assert_int_eq(pthread_create(&taker, NULL, take_lease, NULL), 0);
    ck_assert_int_eq(pthread_join(taker, NULL), 0);
    ck_assert(lease_holds(backing));
    open_for_writing();
    ck_assert(!lease_holds(backing));
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("lease");
    TCase *tc = tcase_create("lease");

    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, writer_gets_the_file);
    tcase_add_test(tc, thread_that_took_the_lease_has_ended);
    suite_add_tcase(s, tc);
    return s;
}

#include "check_main.h"
