/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: limits of descriptors and memory, and io_free(). */
#include "base/clock.h"
#include "base/open.h"
#include "io/descriptors.h"
#include "io_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <sys/resource.h>
#include <time.h>

/* The results of many reads. */
struct answers {
    atomic_uint count, errors;
};

static void
count_answer(void *arg, const struct io_answer *answer)
{
    struct answers *answers = arg;

    if (answer->result != 0)
        atomic_fetch_add(&answers->errors, 1);
    atomic_fetch_add(&answers->count, 1);
}

static unsigned
count_open_files(void)
{
    DIR *list = opendir("/proc/self/fd");
    unsigned count = 0;
    struct dirent *entry;
    char target[256];

    while ((entry = readdir(list))) {
        ssize_t length = readlinkat(dirfd(list), entry->d_name, target, sizeof(target) - 1);

        target[length > 0 ? length : 0] = '\0';
        count += strncmp(target, directory_path, strlen(directory_path)) == 0 &&
                 target[strlen(directory_path)] == '/';
    }
    closedir(list);
    return count;
}

START_TEST(descriptor_limit)
{
    struct extent_list *lists[FILES];
    struct answers answers = {0};
    struct io_counters counters;
    unsigned most_open = 0;

    io_free(io);
    start_engine(8, 2);
    for (int i = 0; i < FILES; i++)
        lists[i] = whole_file(backings[i]);
    for (unsigned i = 0; i < 500; i++) {
        unsigned now;

        io_read(io, lists[i % FILES], i * 100, 5000, count_answer, &answers);
        now = count_open_files();
        if (now > most_open)
            most_open = now;
    }
    while (atomic_load(&answers.count) < 500)
        usleep(1000);
    /* Files may have been opened only after the last io_read(). */
    if (count_open_files() > most_open)
        most_open = count_open_files();
    io_counters(io, &counters);
    ck_assert_uint_eq(atomic_load(&answers.errors), 0);
    ck_assert_uint_le(most_open, 2);
    ck_assert_uint_ge(most_open, 1);
    ck_assert_uint_le(counters.descriptors, 2);
    for (int i = 0; i < FILES; i++) {
        ck_assert_int_eq(read_list(lists[i], 0, FILE_SIZE, contents[i]), 0);
        extent_list_unref(lists[i]);
    }
}
END_TEST

/* The engine drops its references after the callback, and after background reads have completed. */
static void
wait_for_last_reference(struct backing *backing)
{
    while (atomic_load(&backing->references) > 1)
        usleep(100);
}

START_TEST(last_unref_closes)
{
    struct io_counters counters;

    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
    ck_assert_uint_ge(count_open_files(), 1);
    wait_for_last_reference(backings[0]);
    backing_unref(backings[0]);
    backings[0] = NULL;
    while (count_open_files() > 0) /* a worker may close it */
        usleep(1000);
    io_counters(io, &counters);
    ck_assert_uint_eq(counters.descriptors, 0);
    backings[0] = new_backing("a");
    /* The engine is freed before the backing. */
    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
    io_free(io);
    ck_assert_uint_eq(count_open_files(), 0);
    start_engine(0, 0);
    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
}
END_TEST

static void *
read_new_backings(void *arg)
{
    for (int i = 0; i < 300; i++) {
        struct backing *backing = new_backing("a");
        struct extent_list *list = whole_file(backing);
        struct request request;

        backing_unref(backing);
        request_init(&request, 1000);
        io_read(io, list, 17, 1000, keep_answer, &request);
        extent_list_unref(list); /* the engine may hold the last reference now */
        expect(request_wait(&request) == 0);
        request_free(&request);
    }
    return NULL;
}

START_TEST(unneeded_descriptors_are_closed)
{
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(read_backing(backings[i], 0, 100, contents[i]), 0);
    /* No reader has it open. */
    atomic_store(&backings[0]->readers, 0);
    /* It is open, but reads fail. */
    atomic_store(&backings[1]->stale, true);
    /* It is open but has no name any more: only the descriptor refers to it. */
    ck_assert_int_eq(unlinkat(directory, "c", 0), 0);
    while (count_open_files() != 1)
        usleep(10000);
    ck_assert_int_eq(read_backing(backings[2], FAR, 5000, contents[2] + FAR), 0);
    ck_assert_int_eq(read_backing(backings[0], FAR, 5000, contents[0] + FAR), 0);
}
END_TEST

/* While the process is out of descriptors, the engine reuses its own. Afterwards it opens as many
 * as before. */
START_TEST(process_is_out_of_descriptors)
{
    struct rlimit before, none;
    int lowest;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
    wait_for_last_reference(backings[0]); /* no background read holds its descriptors */
    lowest = dup(directory);
    ck_assert_int_ge(lowest, 0);
    close(lowest);
    none = (struct rlimit){.rlim_cur = (rlim_t)lowest, .rlim_max = before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 1; i < FILES; i++)
        expect(read_backing(backings[i], FAR, 5000, contents[i] + FAR) == 0);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (int i = 0; i < FILES; i++)
        ck_assert_int_eq(read_backing(backings[i], 0, FILE_SIZE, contents[i]), 0);
    ck_assert_uint_ge(count_open_files(), FILES);
}
END_TEST

/* If no descriptor is available, a read fails; the next one succeeds. */
START_TEST(no_descriptor)
{
    struct rlimit before, none = {0};

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none.rlim_max = before.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    expect(read_backing(backings[0], 0, 100, NULL) == -EMFILE);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
}
END_TEST

static struct rlimit raised_limit; /* set by the next nanosleep() of open_at(); 0: none is */

int __real_nanosleep(const struct timespec *duration, struct timespec *left);
int __wrap_nanosleep(const struct timespec *duration, struct timespec *left);

int
__wrap_nanosleep(const struct timespec *duration, struct timespec *left)
{
    if (raised_limit.rlim_cur) {
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &raised_limit), 0);
        raised_limit.rlim_cur = 0;
    }
    return __real_nanosleep(duration, left);
}

/* Opens wait for a descriptor, and hold none meanwhile. */
START_TEST(descriptor_becomes_free)
{
    struct rlimit before, none = {0};
    struct stat st;
    int fd;

    wait_for_last_reference(backings[0]); /* no other thread pauses */
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none.rlim_max = before.rlim_max;
    for (int i = 0; i < 2; i++) {
        raised_limit = before;
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
        if (i == 0) {
            fd = open_at(directory, "a", O_RDONLY | O_CLOEXEC);
            ck_assert_int_ge(fd, 0);
            close(fd);
        } else {
            ck_assert_int_eq(open_stat(directory, "a", &st), 0);
        }
        ck_assert_uint_eq(raised_limit.rlim_cur, 0);
    }
}
END_TEST

static atomic_bool holds_open; /* the next open_at_mount() waits, and fails */
static atomic_bool is_opening, open_may_fail;
static atomic_uint waiting_for_open;

int __real_open_at_mount(int at, const char *path, int flags, uint64_t mount, uint64_t *refused);
int __wrap_open_at_mount(int at, const char *path, int flags, uint64_t mount, uint64_t *refused);
bool __real_descriptors_may_acquire(struct descriptors *descriptors, struct backing *backing,
                                    enum access access, struct job *job);
bool __wrap_descriptors_may_acquire(struct descriptors *descriptors, struct backing *backing,
                                    enum access access, struct job *job);

int
__wrap_open_at_mount(int at, const char *path, int flags, uint64_t mount, uint64_t *refused)
{
    if (!atomic_exchange(&holds_open, false))
        return __real_open_at_mount(at, path, flags, mount, refused);
    atomic_store(&is_opening, true);
    while (!atomic_load(&open_may_fail))
        usleep(1000);
    return -EMFILE;
}

bool
__wrap_descriptors_may_acquire(struct descriptors *descriptors, struct backing *backing,
                               enum access access, struct job *job)
{
    bool may = __real_descriptors_may_acquire(descriptors, backing, access, job);

    if (!may)
        atomic_fetch_add(&waiting_for_open, 1);
    return may;
}

/* A read waits for an open that began before it, and that fails: the read opens the file again. */
START_TEST(earlier_open_fails)
{
    struct io_options options = {.no_prefetch = true};
    struct extent_list *list = whole_file(backings[0]);
    struct request first, second;

    request_init(&first, 100);
    request_init(&second, 100);
    io_free(io);
    ck_assert_int_eq(io_new(&options, &io), 0);
    atomic_store(&holds_open, true);
    io_read(io, list, 0, 100, keep_answer, &first);
    while (!atomic_load(&is_opening))
        usleep(1000);
    io_read(io, list, FAR, 100, keep_answer, &second);
    while (atomic_load(&waiting_for_open) == 0)
        usleep(1000);
    atomic_store(&open_may_fail, true);
    expect(request_wait(&first) == -EMFILE);
    expect(request_wait(&second) == 0);
    expect(memcmp(second.bytes, contents[0] + FAR, 100) == 0);
    request_free(&first);
    request_free(&second);
    extent_list_unref(list);
}
END_TEST

START_TEST(last_unref_races_with_eviction)
{
    pthread_t threads[4];

    io_free(io);
    start_engine(4, 2);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, read_new_backings, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    io_free(io);
    io = NULL;
    ck_assert_uint_eq(count_open_files(), 0);
}
END_TEST

/* Requests for more memory than the budget: all complete, and the budget is not exceeded. */
START_TEST(memory_limit)
{
    struct extent_list *lists[FILES];
    struct answers answers = {0};
    struct io_counters counters;
    uint64_t state = 5;

    io_free(io);
    ck_assert_int_eq(io_new(&modes[LITTLE_MEMORY], &io), 0);
    for (int i = 0; i < FILES; i++)
        lists[i] = whole_file(backings[i]);
    for (unsigned i = 0; i < 400; i++) {
        size_t length = 1 + random_next(&state, MIB);

        io_read(io, lists[i % FILES], random_next(&state, FILE_SIZE - MIB), length, count_answer,
                &answers);
        io_counters(io, &counters);
        ck_assert_uint_le(counters.memory, counters.memory_budget);
    }
    while (atomic_load(&answers.count) < 400)
        usleep(1000);
    ck_assert_uint_eq(atomic_load(&answers.errors), 0);
    for (int i = 0; i < FILES; i++)
        extent_list_unref(lists[i]);
}
END_TEST

START_TEST(free_waits_for_answers)
{
    struct extent_list *list = whole_file(backings[0]);
    struct answers answers = {0};

    for (int i = 0; i < 100; i++)
        io_read(io, list, (uint64_t)i * 19000, MIB, count_answer, &answers);
    extent_list_unref(list);
    io_free(io);
    ck_assert_uint_eq(atomic_load(&answers.count), 100);
    ck_assert_uint_eq(atomic_load(&answers.errors), 0);
    ck_assert_uint_eq(atomic_load(&backings[0]->references), 1);
    io = NULL;
}
END_TEST

static atomic_bool first_may_return, is_answering, is_freed;

static void
answer_first(void *arg, const struct io_answer *answer)
{
    expect(answer->result == 0);
    atomic_store(&is_answering, true);
    while (!atomic_load(&first_may_return))
        usleep(1000);
}

static void
answer_last(void *arg, const struct io_answer *answer)
{
    expect(answer->result == -ESTALE);
    usleep(50000);
    expect(!atomic_load(&is_freed));
}

static void *
read_first(void *arg)
{
    io_read(io, arg, 0, 100, answer_first, NULL);
    return NULL;
}

static void *
read_all(void *arg)
{
    io_read(io, arg, 0, FILE_SIZE, answer_first, NULL);
    return NULL;
}

static void *
free_engine(void *arg)
{
    io_free(io);
    atomic_store(&is_freed, true);
    return NULL;
}

/* The last request is queued for memory, and fails when it is started. */
START_TEST(free_waits_for_a_queued_failure)
{
    struct io_options options = {.memory = 4 * MIB, .no_prefetch = true};
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct extent_list *first = whole_file(backings[0]), *last;
    struct timespec until;
    pthread_t reader, closer;

    atomic_store(&first_may_return, false);
    atomic_store(&is_answering, false);
    atomic_store(&is_freed, false);
    extent_builder_add_backing(&builder, backings[1], 0, FILE_SIZE);
    extent_builder_add_backing(&builder, backings[2], 0, FILE_SIZE);
    last = extent_builder_finish(&builder);
    io_free(io);
    ck_assert_int_eq(io_new(&options, &io), 0);
    ck_assert_int_eq(read_list(first, 0, 100, contents[0]), 0);
    pthread_create(&reader, NULL, read_first, first);
    while (!atomic_load(&is_answering))
        usleep(1000);
    io_read(io, last, 0, last->size, answer_last, NULL); /* more than the budget */
    atomic_store(&backings[1]->stale, true);
    pthread_create(&closer, NULL, free_engine, NULL);
    usleep(100000);
    atomic_store(&first_may_return, true);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    ck_assert_int_eq(pthread_timedjoin_np(closer, NULL, &until), 0);
    pthread_join(reader, NULL);
    io = NULL;
    extent_list_unref(first);
    extent_list_unref(last);
}
END_TEST

static _Atomic(uint64_t) wait_began; /* monotonic_ns(); 0: there is no answer yet */

static void
note_wait(void *arg, const struct io_answer *answer)
{
    expect(answer->result == 0);
    /* If the file system keeps its files in the page cache, the read has not waited. */
    atomic_store(&wait_began, monotonic_ns() - answer->waited);
}

/* A request does not wait for storage while it is queued for memory. */
START_TEST(wait_for_memory)
{
    struct io_options options = {.memory = 4 * MIB, .no_prefetch = true};
    struct extent_list *first = whole_file(backings[0]), *second = whole_file(backings[1]);
    uint64_t memory_freed;
    pthread_t reader;

    atomic_store(&first_may_return, false);
    atomic_store(&is_answering, false);
    atomic_store(&wait_began, 0);
    io_free(io);
    ck_assert_int_eq(io_new(&options, &io), 0);
    pthread_create(&reader, NULL, read_all, first);
    while (!atomic_load(&is_answering))
        usleep(1000);
    io_read(io, second, 0, FILE_SIZE, note_wait, NULL);
    memory_freed = monotonic_ns();
    ck_assert_uint_eq(atomic_load(&wait_began), 0);
    atomic_store(&first_may_return, true);
    while (atomic_load(&wait_began) == 0)
        usleep(1000);
    pthread_join(reader, NULL);
    expect(atomic_load(&wait_began) >= memory_freed);
    extent_list_unref(first);
    extent_list_unref(second);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("io_limits");
    TCase *limits = tcase_create("limits");

    tcase_add_checked_fixture(limits, setup, teardown);
    tcase_set_timeout(limits, 100);
    tcase_add_test(limits, descriptor_limit);
    tcase_add_test(limits, memory_limit);
    tcase_add_test(limits, last_unref_closes);
    tcase_add_test(limits, unneeded_descriptors_are_closed);
    tcase_add_test(limits, process_is_out_of_descriptors);
    tcase_add_test(limits, no_descriptor);
    tcase_add_test(limits, descriptor_becomes_free);
    tcase_add_test(limits, earlier_open_fails);
    tcase_add_test(limits, last_unref_races_with_eviction);
    tcase_add_test(limits, free_waits_for_answers);
    tcase_add_test(limits, free_waits_for_a_queued_failure);
    tcase_add_test(limits, wait_for_memory);
    suite_add_tcase(made, limits);
    return made;
}

#include "check_main.h"
