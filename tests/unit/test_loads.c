/* SPDX-License-Identifier: Apache-2.0 */
/* The loads of .fstfs/loads. The linker replaces the clock, the counters of the engine, the time
 * that a thread waited for a processor, and process groups by those of the test: a thread's group
 * has the thread's number. */
#include "fuse/loads.h"
#include "fuse/run_delay.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 1000, READER = 7, OTHER_READER = 8 };

#define MS UINT64_C(1000000)
#define PAUSE (LOAD_PAUSE_SECONDS * 1000 * MS)

static struct loads *loads;
static struct extent_list *list;
static uint64_t fake_ns; /* nanoseconds that the monotonic clock shows */
static struct io_family_counters counters;
static uint64_t thread_delay; /* nanoseconds that the thread has waited for a processor */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
void __wrap_io_family_counters(struct io *io, struct family *family,
                               struct io_family_counters *found);
pid_t __wrap_getpgid(pid_t pid);
int __real_openat(int directory, const char *path, int flags, ...);
int __wrap_openat(int directory, const char *path, int flags, ...);
int __wrap_openat64(int directory, const char *path, int flags, ...);

int
__wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, time);
    *time = (struct timespec){(time_t)(fake_ns / 1000000000), (long)(fake_ns % 1000000000)};
    return 0;
}

void
__wrap_io_family_counters(struct io *io, struct family *family, struct io_family_counters *found)
{
    *found = counters;
}

pid_t
__wrap_getpgid(pid_t pid)
{
    return pid;
}

/* Opens a file with the delay, in place of /proc/self/task/TID/schedstat. */
int
__wrap_openat(int directory, const char *path, int flags, ...)
{
    int fd;

    if (!strstr(path, "/schedstat"))
        return __real_openat(directory, path, flags);
    fd = memfd_create("schedstat", MFD_CLOEXEC);
    dprintf(fd, "1 %llu 1\n", (unsigned long long)thread_delay);
    lseek(fd, 0, SEEK_SET);
    return fd;
}

/* glibc redirects openat() to it where offsets have 64 bits. */
int
__wrap_openat64(int directory, const char *path, int flags, ...)
{
    return __wrap_openat(directory, path, flags);
}

static void
name_command(pid_t thread, char name[COMMAND_SIZE])
{
    strcpy(name, "reader");
}

static void
setup(void)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct file_identity identity = {.size = SIZE};
    struct backing *backing = backing_new(AT_FDCWD, "none", &identity);

    ck_assert_ptr_nonnull(backing);
    backing->family = family_new("llama", "model");
    extent_builder_add_backing(&builder, backing, 0, SIZE);
    backing_unref(backing);
    list = extent_builder_finish(&builder);
    ck_assert_ptr_nonnull(list);
    memset(&counters, 0, sizeof(counters));
    fake_ns = 1000000 * MS;
    loads = loads_new(NULL, true, name_command);
    ck_assert_ptr_nonnull(loads);
}

static void
teardown(void)
{
    loads_free(loads);
    extent_list_unref(list);
}

static struct load *
open_file(pid_t thread)
{
    return loads_open(loads, list, VIEW_TENSORS, thread);
}

static struct load_read
begin_read(struct load **load)
{
    return loads_begin_read(loads, load, READER);
}

/* Ends a read that has waited for storage for so many nanoseconds. */
static void
end_read(const struct load_read *read, errint_t result, uint64_t waited)
{
    struct io_answer answer = {.result = result, .waited = waited};

    loads_end_read(loads, read, &answer, SIZE);
}

/* A read that takes `duration` nanoseconds, all of which it waits for storage. */
static void
read_file(struct load **load, uint64_t duration)
{
    struct load_read read = begin_read(load);

    fake_ns += duration;
    end_read(&read, 0, duration);
}

/* Returns line `index` of the page; NULL: there are fewer. */
static cJSON *
page_line(unsigned index)
{
    struct buffer page = BUFFER_INIT;
    const char *line;
    cJSON *object;

    loads_write(loads, &page);
    buffer_add_char(&page, '\0');
    ck_assert(!buffer_failed(&page));
    for (line = page.data; index > 0 && line; index--) {
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    object = line ? cJSON_Parse(line) : NULL;
    buffer_free(&page);
    return object;
}

static double
line_number(unsigned index, const char *name)
{
    cJSON *line = page_line(index);
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(line, name);
    double value = cJSON_GetNumberValue(number);

    ck_assert_msg(cJSON_IsNumber(number), "line %u has no number %s", index, name);
    cJSON_Delete(line);
    return value;
}

/* The share of a slice of the first load with a read in flight. */
static double
slice_busy(int slice)
{
    cJSON *line = page_line(0);
    const cJSON *shares = cJSON_GetObjectItemCaseSensitive(line, "slices_busy");
    const cJSON *share = cJSON_GetArrayItem(shares, slice);
    double value = cJSON_GetNumberValue(share);

    ck_assert_msg(cJSON_IsNumber(share), "there is no slice %d", slice);
    cJSON_Delete(line);
    return value;
}

/* Files are opened before the first read, during the load, and before another load. */
START_TEST(opens)
{
    struct load *files[4];

    for (int i = 0; i < 3; i++)
        files[i] = open_file(READER);
    for (int i = 0; i < 2; i++)
        read_file(&files[i], MS);
    ck_assert_double_eq(line_number(0, "opens"), 2);
    files[3] = open_file(READER);
    ck_assert_double_eq(line_number(0, "opens"), 3);
    for (int i = 0; i < 4; i++)
        read_file(&files[i], MS);
    ck_assert_double_eq(line_number(0, "opens"), 4);
    fake_ns += 2 * PAUSE;
    read_file(&files[0], MS);
    read_file(&files[3], MS);
    read_file(&files[0], MS);
    ck_assert_double_eq(line_number(0, "opens"), 4);
    ck_assert_double_eq(line_number(1, "opens"), 2);
    for (int i = 0; i < 4; i++)
        loads_close(loads, files[i]);
}
END_TEST

static bool
verdict_begins_with(const char *start)
{
    cJSON *line = page_line(0);
    const char *verdict = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(line, "verdict"));
    bool begins = verdict && strncmp(verdict, start, strlen(start)) == 0;

    cJSON_Delete(line);
    return begins;
}

/* Reads hang, among them the first. A read of the kernel's readahead is answered from memory. */
START_TEST(reads_hang)
{
    struct load *load = open_file(READER);
    struct load_read first = begin_read(&load), second, cached;

    fake_ns += 5000 * MS;
    ck_assert_double_eq(line_number(0, "seconds"), 5);
    ck_assert_double_eq(line_number(0, "storage_seconds"), 5);
    ck_assert(verdict_begins_with("storage: 100 %"));
    ck_assert_double_eq(slice_busy(0), 1);
    second = begin_read(&load);
    cached = begin_read(&load);
    fake_ns += MS;
    end_read(&cached, 0, 0);
    fake_ns += 4999 * MS;
    ck_assert_double_eq(line_number(0, "seconds"), 10);
    ck_assert_double_ge(line_number(0, "storage_seconds"), 9.9);
    end_read(&first, 0, 10000 * MS);
    end_read(&second, 0, 5000 * MS);
    fake_ns += 1000 * MS;
    ck_assert_double_eq(line_number(0, "seconds"), 10);
    ck_assert_double_ge(line_number(0, "storage_seconds"), 9.9);
    loads_close(loads, load);
}
END_TEST

/* The read fails after it has waited for storage. */
START_TEST(read_fails)
{
    struct load *load = open_file(READER);
    struct load_read read = begin_read(&load);

    fake_ns += 100 * MS;
    end_read(&read, -EIO, 100 * MS);
    ck_assert_double_eq(line_number(0, "errors"), 1);
    ck_assert_double_eq(line_number(0, "stalls"), 1);
    ck_assert_double_eq(line_number(0, "storage_seconds"), 0.1);
    ck_assert_double_eq(line_number(0, "bytes"), 0);
    ck_assert(verdict_begins_with("storage: 100 %"));
    loads_close(loads, load);
}
END_TEST

/* The thread waits for a processor while a read is in flight, and before the next one, which the
 * reader sends after a pause. The first wait is not part of the pause. */
START_TEST(run_delay)
{
    struct load *load = open_file(READER);
    struct load_read read;

    ck_assert_int_ge(run_delay_open(), 0);
    read_file(&load, 100 * MS);
    read = begin_read(&load);
    fake_ns += 60 * MS;
    thread_delay += 50 * MS;
    run_delay_restart();
    end_read(&read, 0, 0);
    fake_ns += 1000 * MS;
    thread_delay += 10 * MS;
    read_file(&load, 100 * MS);
    ck_assert_double_eq(line_number(0, "seconds"), 1.26);
    ck_assert_double_eq(line_number(0, "reader_seconds"), 0.99);
    loads_close(loads, load);
}
END_TEST

/* A brief load in a longer one, whose bytes are not counted for the brief one after its end. */
START_TEST(load_in_another)
{
    struct load *load = open_file(READER), *brief = open_file(OTHER_READER);

    read_file(&load, MS);
    counters.bytes[FAMILY_STORAGE] += 1000;
    read_file(&brief, MS);
    for (int i = 0; i < 10; i++) {
        counters.bytes[FAMILY_STORAGE] += 1000;
        read_file(&load, PAUSE / 2);
    }
    ck_assert_double_eq(line_number(0, "storage_bytes"), 11000);
    ck_assert_double_eq(line_number(1, "storage_bytes"), 0);
    loads_close(loads, load);
    loads_close(loads, brief);
}
END_TEST

/* The load uses all that it prefetches, and what an earlier one has prefetched. */
START_TEST(prefetched_in_an_earlier_load)
{
    struct load *load = open_file(READER);
    struct load_read read;

    counters.bytes[FAMILY_PREFETCHED] = 1000;
    read = begin_read(&load);
    counters.bytes[FAMILY_PREFETCHED] += 100;
    counters.bytes[FAMILY_PREFETCHED_USED] += 1100;
    end_read(&read, 0, 0);
    ck_assert_double_eq(line_number(0, "prefetched_used_bytes"), 1100);
    ck_assert_double_eq(line_number(0, "prefetch_hit_ratio"), 1);
    loads_close(loads, load);
}
END_TEST

/* The last slice, of 1 ms, has lasted 0.25 ms. */
START_TEST(last_slice_is_shorter)
{
    struct load *load = open_file(READER);

    read_file(&load, MS + MS / 4);
    ck_assert_double_eq_tol(line_number(0, "seconds"), 0.00125, 1e-6);
    ck_assert_double_eq(slice_busy(0), 1);
    ck_assert_double_eq(slice_busy(1), 1);
    loads_close(loads, load);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("loads");
    TCase *all = tcase_create("all");

    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, opens);
    tcase_add_test(all, reads_hang);
    tcase_add_test(all, read_fails);
    tcase_add_test(all, run_delay);
    tcase_add_test(all, load_in_another);
    tcase_add_test(all, prefetched_in_an_earlier_load);
    tcase_add_test(all, last_slice_is_shorter);
    suite_add_tcase(made, all);
    return made;
}

#include "check_main.h"
