/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: reads of a file system that hangs leave some of each resource to other file systems. The
 * linker replaces system calls with the functions here (--wrap), so that all files appear to be on
 * a network file system, which can hang.
 */
#include "expect.h"
#include "io/chunk_cache.h"
#include "io/engine.h"
#include "io/io.h"
#include "io/lanes.h"
#include "io/ring.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define MIB (1024 * 1024)
#define FILES 6 /* of each file system; the last one for queued reads */
#define SYSTEMS 2
#define TIMEOUT_MS 10000

/* ---- a file system that does not answer ---- */

static char directory_paths[SYSTEMS][sizeof("/dev/shm/fstfs-test-lanes-XXXXXX")];
static atomic_bool hangs; /* close() of files of the first file system */
static atomic_uint hung; /* calls of close() that have hung */
static atomic_uint stats_on_ring; /* calls of statx() by the thread of a ring */
static atomic_bool stat_waits; /* calls of statx() by other threads wait */
static atomic_uint stats; /* these calls */

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_fstatfs(int fd, struct statfs *fs);
int __wrap_fstatfs64(int fd, struct statfs *fs);
int __real_statx(int directory, const char *path, int flags, unsigned mask, struct statx *stx);
int __wrap_statx(int directory, const char *path, int flags, unsigned mask, struct statx *stx);

static bool
fd_is_in(int fd, const char *path_prefix)
{
    char path[40], target[100];
    ssize_t length;

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    length = readlink(path, target, sizeof(target));
    return length > (ssize_t)strlen(path_prefix) &&
           strncmp(target, path_prefix, strlen(path_prefix)) == 0;
}

int
__wrap_close(int fd)
{
    if (atomic_load(&hangs) && fd_is_in(fd, directory_paths[0])) {
        atomic_fetch_add(&hung, 1);
        while (atomic_load(&hangs))
            usleep(1000);
    }
    return __real_close(fd);
}

int
__wrap_fstatfs(int fd, struct statfs *fs)
{
    (void)fd;
    *fs = (struct statfs){.f_type = 0x65735546}; /* FUSE */
    return 0;
}

/* glibc redirects fstatfs() to it where offsets have 64 bits. */
int
__wrap_fstatfs64(int fd, struct statfs *fs)
{
    return __wrap_fstatfs(fd, fs);
}

int
__wrap_statx(int directory, const char *path, int flags, unsigned mask, struct statx *stx)
{
    char name[16] = "";

    pthread_getname_np(pthread_self(), name, sizeof(name));
    if (strcmp(name, "fstfs-ring") == 0)
        atomic_fetch_add(&stats_on_ring, 1);
    else
        atomic_fetch_add(&stats, 1);
    while (atomic_load(&stat_waits))
        usleep(1000);
    return __real_statx(directory, path, flags, mask, stx);
}

/* ---- files on two file systems ---- */

static int directories[SYSTEMS];
static struct backing *files[SYSTEMS][FILES];
static struct io *io;

static struct backing *
make_file(int directory, int number)
{
    struct file_identity identity;
    struct backing *backing;
    char name[2] = {(char)('a' + number), '\0'};
    int fd = openat(directory, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, MIB), 0);
    ck_assert_int_eq(fdatasync(fd), 0);
    ck_assert_int_eq(file_identity_from_fd(&identity, fd), 0);
    __real_close(fd);
    backing = backing_new(directory, name, &identity);
    atomic_store(&backing->readers, 1);
    return backing;
}

static void
setup(void)
{
    strcpy(directory_paths[0], "/tmp/fstfs-test-lanes-XXXXXX");
    strcpy(directory_paths[1], "/dev/shm/fstfs-test-lanes-XXXXXX");
    for (int i = 0; i < SYSTEMS; i++) {
        ck_assert_ptr_nonnull(mkdtemp(directory_paths[i]));
        directories[i] = open(directory_paths[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        ck_assert_int_ge(directories[i], 0);
        for (int k = 0; k < FILES; k++)
            files[i][k] = make_file(directories[i], k);
    }
}

static void
teardown(void)
{
    atomic_store(&hangs, false);
    atomic_store(&stat_waits, false);
    io_free(io);
    io = NULL;
    for (int i = 0; i < SYSTEMS; i++) {
        for (int k = 0; k < FILES; k++) {
            backing_unref(files[i][k]);
            unlinkat(directories[i], (char[]){(char)('a' + k), '\0'}, 0);
        }
        close(directories[i]);
        ck_assert_int_eq(rmdir(directory_paths[i]), 0);
    }
    assert_expectations();
}

static bool
reaches(atomic_uint *value, unsigned wanted)
{
    for (int ms = 0; ms < TIMEOUT_MS && atomic_load(value) != wanted; ms++)
        usleep(1000);
    return atomic_load(value) == wanted;
}

static void
count_answer(void *arg, const struct io_answer *answer)
{
    expect(answer->result == 0);
    atomic_fetch_add((atomic_uint *)arg, 1);
}

static void
begin_read(struct backing *file, uint64_t offset, atomic_uint *answers)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct extent_list *list;

    extent_builder_add_backing(&builder, file, 0, MIB);
    list = extent_builder_finish(&builder);
    io_read(io, list, offset, 100, count_answer, answers);
    extent_list_unref(list);
}

/* Reads, and returns whether the read is answered within the timeout. */
static bool
read_is_answered(struct backing *file, uint64_t offset)
{
    static atomic_uint answers;

    atomic_store(&answers, 0);
    begin_read(file, offset, &answers);
    return reaches(&answers, 1);
}

static void
wait_for_last_reference(struct backing *backing)
{
    while (atomic_load(&backing->references) > 1)
        usleep(100);
}

static unsigned
count_open_files(const char *path_prefix)
{
    DIR *list = opendir("/proc/self/fd");
    unsigned count = 0;
    struct dirent *entry;

    while ((entry = readdir(list)))
        count += fd_is_in((int)strtol(entry->d_name, NULL, 10), path_prefix);
    closedir(list);
    return count;
}

/* With one ring, on any number of processors: reads that it has counted end one after another. */
static void
start_engine(unsigned descriptors)
{
    struct io_options options = {.threads = 2,
                                 .rings = 1,
                                 .descriptors = descriptors,
                                 .no_direct = true,
                                 .no_prefetch = true};

    ck_assert_int_eq(io_new(&options, &io), 0);
}

/* ---- close() that hangs ---- */

/* A worker that opens a file evicts descriptors of another file system. */
START_TEST(eviction_does_not_wait_for_close)
{
    start_engine(4);
    for (int i = 0; i < 4; i++)
        ck_assert(read_is_answered(files[0][i], 0));
    atomic_store(&hangs, true);
    for (int i = 0; i < FILES; i++)
        ck_assert(read_is_answered(files[1][i], 0));
    /* Workers close the descriptors, maybe after the reads were answered. */
    for (int ms = 0; ms < TIMEOUT_MS && atomic_load(&hung) == 0; ms++)
        usleep(1000);
    ck_assert_uint_gt(atomic_load(&hung), 0);
    atomic_store(&hangs, false);
    for (int i = 0; i < FILES; i++)
        ck_assert(read_is_answered(files[0][i], MIB / 2));
}
END_TEST

/* There are more descriptors to close than workers. */
START_TEST(last_unref_does_not_wait_for_close)
{
    start_engine(0);
    for (int i = 0; i < FILES; i++) {
        ck_assert(read_is_answered(files[0][i], 0));
        wait_for_last_reference(files[0][i]);
    }
    atomic_store(&hangs, true);
    for (int i = 0; i < FILES; i++) {
        backing_unref(files[0][i]); /* must return */
        files[0][i] = make_file(directories[0], i);
    }
    ck_assert(read_is_answered(files[1][0], 0));
    ck_assert(read_is_answered(files[0][0], 0));
    atomic_store(&hangs, false);
    while (count_open_files(directory_paths[0]) != 1)
        usleep(1000);
}
END_TEST

START_TEST(reclaim_does_not_wait_for_close)
{
    struct io_counters counters;

    start_engine(0);
    ck_assert(read_is_answered(files[0][0], 0));
    ck_assert(read_is_answered(files[1][0], 0));
    atomic_store(&hangs, true);
    atomic_store(&hung, 0);
    atomic_store(&files[0][0]->readers, 0);
    ck_assert(reaches(&hung, 1));
    atomic_store(&files[1][0]->readers, 0);
    for (int ms = 0; ms < TIMEOUT_MS && count_open_files(directory_paths[1]) > 0; ms++)
        usleep(1000);
    ck_assert_uint_eq(count_open_files(directory_paths[1]), 0);
    io_counters(io, &counters);
    ck_assert_uint_eq(counters.descriptors, 0);
}
END_TEST

static void *
acquire_first_file(void *arg)
{
    expect(descriptors_acquire(arg, files[0][0], ACCESS_BUFFERED) >= 0);
    return NULL;
}

static void *
free_descriptors(void *arg)
{
    descriptors_free(arg);
    return NULL;
}

static void *
try_other_file(void *arg)
{
    expect(descriptors_try(arg, files[1][0], ACCESS_BUFFERED) == -EAGAIN); /* it is not open */
    return NULL;
}

/* While close() hangs in another thread. Lets it return. */
static void
assert_module_is_not_locked(struct descriptors *descriptors)
{
    struct timespec until;
    pthread_t thread;
    int error;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += TIMEOUT_MS / 1000;
    pthread_create(&thread, NULL, try_other_file, descriptors);
    error = pthread_timedjoin_np(thread, NULL, &until);
    atomic_store(&hangs, false);
    if (error)
        pthread_join(thread, NULL);
    ck_assert_int_eq(error, 0);
}

/* Two threads open one file at the same time, and the slower one closes its descriptor. */
START_TEST(surplus_descriptor_is_closed_without_lock)
{
    struct descriptors *descriptors;
    pthread_t threads[2];

    ck_assert_int_eq(descriptors_new(4, false, &descriptors), 0);
    atomic_store(&stats, 0);
    atomic_store(&hung, 0);
    atomic_store(&stat_waits, true);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, acquire_first_file, descriptors);
    ck_assert(reaches(&stats, 2));
    atomic_store(&hangs, true);
    atomic_store(&stat_waits, false);
    ck_assert(reaches(&hung, 1));
    assert_module_is_not_locked(descriptors);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        descriptors_release(descriptors, files[0][0], ACCESS_BUFFERED);
    }
    ck_assert_uint_eq(descriptors_state(descriptors).open, 1);
    ck_assert_uint_eq(count_open_files(directory_paths[0]), 1);
    descriptors_free(descriptors);
}
END_TEST

/* An engine that is freed does not block the others. */
START_TEST(free_closes_without_lock)
{
    struct descriptors *freed, *other;
    pthread_t thread;

    ck_assert_int_eq(descriptors_new(4, false, &freed), 0);
    ck_assert_int_eq(descriptors_new(4, false, &other), 0);
    acquire_first_file(freed);
    descriptors_release(freed, files[0][0], ACCESS_BUFFERED);
    atomic_store(&hung, 0);
    atomic_store(&hangs, true);
    pthread_create(&thread, NULL, free_descriptors, freed);
    ck_assert(reaches(&hung, 1));
    assert_module_is_not_locked(other);
    pthread_join(thread, NULL);
    descriptors_free(other);
    ck_assert_uint_eq(count_open_files(directory_paths[0]), 0);
}
END_TEST

/* ---- fstat() that may hang ---- */

START_TEST(rings_do_not_stat)
{
    start_engine(0);
    atomic_store(&stats_on_ring, 0);
    for (int i = 0; i < FILES; i++)
        ck_assert(read_is_answered(files[0][i], 0));
    ck_assert_uint_eq(atomic_load(&stats_on_ring), 0);
}
END_TEST

/* While one verification waits for the server, the reads that end are left to the next one. */
START_TEST(reads_share_a_verification)
{
    static atomic_uint answers;
    struct io_counters counters = {0};
    const unsigned reads = 7;

    start_engine(0);
    ck_assert(read_is_answered(files[0][0], 0));
    atomic_store(&answers, 0);
    atomic_store(&stats, 0);
    atomic_store(&stat_waits, true);
    for (unsigned i = 1; i <= reads; i++)
        begin_read(files[0][0], i * (MIB / 8), &answers);
    for (int ms = 0; ms < TIMEOUT_MS && counters.storage_reads < 1 + reads; ms++) {
        usleep(1000);
        io_counters(io, &counters);
    }
    ck_assert(reaches(&stats, 1));
    ck_assert_uint_eq(atomic_load(&answers), 0);
    atomic_store(&stat_waits, false);
    ck_assert(reaches(&answers, reads));
    /* The last read may have ended after the second verification began. */
    ck_assert_uint_le(atomic_load(&stats), 3);
}
END_TEST

/* ---- shares ---- */

START_TEST(share_of_lane)
{
    ck_assert_uint_eq(lane_share(8, 0), 8);
    ck_assert_uint_eq(lane_share(8, 8), 4);
    ck_assert_uint_eq(lane_share(8, 12), 2);
    for (unsigned others = 14; others < 100; others++)
        ck_assert_uint_eq(lane_share(8, others), 1);
}
END_TEST

/* A lane may have three quarters of the budget that other lanes leave. */
START_TEST(share_of_memory)
{
    struct io_options options = {.memory = 8 * MIB};
    struct memory_lane first = {.bytes = 0}, second = {.bytes = 0};
    struct chunk_cache *cache;

    ck_assert_int_eq(io_new(&options, &io), 0);
    cache = &io->cache;
    ck_assert(memory_lane_allows(cache, &first, 6 * MIB));
    ck_assert(!memory_lane_allows(cache, &first, 6 * MIB + 4096));
    first.bytes = cache->held = 4 * MIB;
    ck_assert(memory_lane_allows(cache, &first, 2 * MIB));
    ck_assert(!memory_lane_allows(cache, &first, 2 * MIB + 4096));
    ck_assert(memory_lane_allows(cache, &second, 3 * MIB));
    ck_assert(!memory_lane_allows(cache, &second, 3 * MIB + 4096));
    cache->held = 0;
}
END_TEST

static struct memory_lane *
lane_of(const struct backing *file, const struct backing *other)
{
    uint64_t key = file->identity.device;

    if (other && other->identity.device != key)
        key = key * 31 + other->identity.device;
    return chunk_cache_lane(&io->cache, key);
}

static atomic_uint held; /* answers that are held; from 100 on they return */

static void
hold_answer(void *arg, const struct io_answer *answer)
{
    (void)arg;
    expect(answer->result == 0);
    atomic_fetch_add(&held, 1);
    while (atomic_load(&held) < 100)
        usleep(1000);
}

static void *
read_and_hold(void *arg)
{
    struct extent_list *list = arg;

    io_read(io, list, 0, list->size, hold_answer, NULL);
    return NULL;
}

/* A request for two file systems has a lane of its own. */
START_TEST(lane_of_two_file_systems)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct extent_list *list;
    pthread_t thread;

    start_engine(0);
    atomic_store(&held, 0);
    extent_builder_add_backing(&builder, files[0][0], 0, MIB);
    extent_builder_add_backing(&builder, files[1][0], 0, MIB);
    list = extent_builder_finish(&builder);
    pthread_create(&thread, NULL, read_and_hold, list);
    ck_assert(reaches(&held, 1));
    pthread_mutex_lock(&io->cache.lock);
    expect(lane_of(files[0][0], files[1][0])->active == 1);
    expect(lane_of(files[0][0], files[1][0])->bytes >= 2 * MIB);
    expect(lane_of(files[0][0], NULL)->active == 0);
    expect(lane_of(files[1][0], NULL)->active == 0);
    chunk_cache_unlock(&io->cache);
    atomic_store(&held, 100);
    pthread_join(thread, NULL);
    extent_list_unref(list);
}
END_TEST

static unsigned order[4], order_count;

/* Called by one thread at a time: the one that starts queued requests. */
static void
note_order(void *arg, const struct io_answer *answer)
{
    expect(answer->result == -ESTALE);
    order[order_count++] = *(unsigned *)arg;
}

/* The queued requests of a lane start in order, and the lanes take turns. */
START_TEST(lanes_take_turns)
{
    static unsigned numbers[4] = {0, 1, 2, 3};
    struct io_options options = {.memory = 4 * MIB, .no_prefetch = true, .no_direct = true};
    struct extent_list *lists[SYSTEMS];
    pthread_t threads[SYSTEMS];

    ck_assert_int_eq(io_new(&options, &io), 0);
    atomic_store(&held, 0);
    order_count = 0;
    for (int i = 0; i < SYSTEMS; i++) {
        struct extent_builder builder = EXTENT_BUILDER_INIT;

        for (int k = 0; k < FILES - 1; k++)
            extent_builder_add_backing(&builder, files[i][k], 0, MIB);
        lists[i] = extent_builder_finish(&builder);
        /* The only active request of its lane, so it may exceed the budget. */
        pthread_create(&threads[i], NULL, read_and_hold, lists[i]);
        ck_assert(reaches(&held, (unsigned)i + 1));
    }
    /* Queue two requests for the first file system, then two for the second. */
    for (int i = 0; i < 4; i++) {
        struct extent_builder builder = EXTENT_BUILDER_INIT;
        struct extent_list *list;

        extent_builder_add_backing(&builder, files[i / 2][FILES - 1], 0, MIB);
        list = extent_builder_finish(&builder);
        io_read(io, list, 0, 100, note_order, &numbers[i]);
        extent_list_unref(list);
    }
    ck_assert_uint_eq(order_count, 0);
    for (int i = 0; i < SYSTEMS; i++)
        atomic_store(&files[i][FILES - 1]->stale, true);
    atomic_store(&held, 100);
    for (int i = 0; i < SYSTEMS; i++) {
        pthread_join(threads[i], NULL);
        extent_list_unref(lists[i]);
    }
    io_free(io);
    io = NULL;
    ck_assert_uint_eq(order_count, 4);
    ck_assert_uint_eq(order[0] / 2, 1 - order[1] / 2);
    ck_assert_uint_eq(order[2] / 2, 1 - order[3] / 2);
    ck_assert_uint_lt(order[0] % 2, 1);
    ck_assert_uint_lt(order[1] % 2, 1);
}
END_TEST

/* A request that is queued for memory is counted once, however often it is tried. */
START_TEST(queued_request_is_counted_once)
{
    struct io_options options = {.memory = 4 * MIB, .no_prefetch = true, .no_direct = true};
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct cached_file *file;
    struct extent_list *list;
    atomic_uint answers = 0;
    uint64_t again;
    pthread_t thread;

    ck_assert_int_eq(io_new(&options, &io), 0);
    ck_assert(read_is_answered(files[0][FILES - 1], 0));
    file = chunk_cache_file(&io->cache, files[0][FILES - 1]);
    for (int k = 0; k < FILES - 1; k++)
        extent_builder_add_backing(&builder, files[0][k], 0, MIB);
    list = extent_builder_finish(&builder);
    atomic_store(&held, 0);
    /* The only active request of its lane, so it may exceed the budget. */
    pthread_create(&thread, NULL, read_and_hold, list);
    ck_assert(reaches(&held, 1));
    pthread_mutex_lock(&io->cache.lock);
    file->delivered[0] = (struct byte_range){0, MIB};
    file->delivered_count = 1;
    file->delivered_again = 0;
    chunk_cache_unlock(&io->cache);
    begin_read(files[0][FILES - 1], MIB / 2, &answers);
    /* Each of these tries the queued request again when it completes. */
    for (int i = 0; i < 10; i++)
        ck_assert(read_is_answered(files[1][0], 0));
    ck_assert_uint_eq(atomic_load(&answers), 0);
    pthread_mutex_lock(&io->cache.lock);
    again = file->delivered_again;
    chunk_cache_unlock(&io->cache);
    atomic_store(&held, 100);
    pthread_join(thread, NULL);
    ck_assert(reaches(&answers, 1));
    extent_list_unref(list);
    ck_assert_uint_eq(again, 0);
    pthread_mutex_lock(&io->cache.lock);
    again = file->delivered_again;
    chunk_cache_unlock(&io->cache);
    ck_assert_uint_eq(again, 4096);
}
END_TEST

/* ---- a ring ---- */

#define DEPTH 4

static atomic_uint ended;

static void
ring_read_ended(struct ring_read *read, int result)
{
    expect(result == (int)read->length);
    atomic_fetch_add(&ended, 1);
}

/* Reads of an empty pipe hang, and leave room for a read of another file system. */
START_TEST(hung_lane_does_not_fill_ring)
{
    struct ring_read *hung_reads = calloc(4 * DEPTH, sizeof(*hung_reads)), other;
    char bytes[4 * DEPTH], byte;
    struct rings rings = {0};
    struct reason reason;
    struct ring *ring;
    int ends[2], file;
    bool is_answered;

    ck_assert_ptr_nonnull(hung_reads);
    if (ring_new(DEPTH, &rings, &ring, &reason) < 0) {
        free(hung_reads);
        return; /* no io_uring on this machine */
    }
    atomic_store(&ended, 0);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    file = openat(directories[0], "a", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < 4 * DEPTH; i++) {
        hung_reads[i] = (struct ring_read){.fd = ends[0],
                                           .lane_key = 1,
                                           .buffer = &bytes[i],
                                           .length = 1,
                                           .offset = UINT64_MAX,
                                           .complete = ring_read_ended};
        ck_assert(ring_submit(ring, &hung_reads[i], true));
    }
    other = hung_reads[0];
    other.fd = file;
    other.lane_key = 2;
    other.buffer = &byte;
    other.offset = 0;
    ck_assert(ring_submit(ring, &other, false));
    is_answered = reaches(&ended, 1);
    ck_assert_uint_eq(atomic_load(&rings.in_flight), DEPTH);
    ck_assert_int_eq(write(ends[1], bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
    ck_assert(reaches(&ended, 4 * DEPTH + 1));
    ring_free(ring);
    free(hung_reads);
    close(file);
    close(ends[0]);
    close(ends[1]);
    ck_assert(is_answered);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("lanes");
    TCase *tests = tcase_create("lanes");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, rings_do_not_stat);
    tcase_add_test(tests, reads_share_a_verification);
    tcase_add_test(tests, share_of_lane);
    tcase_add_test(tests, share_of_memory);
    tcase_add_test(tests, lane_of_two_file_systems);
    tcase_add_test(tests, lanes_take_turns);
    tcase_add_test(tests, queued_request_is_counted_once);
    tcase_add_test(tests, hung_lane_does_not_fill_ring);
    tcase_add_test(tests, eviction_does_not_wait_for_close);
    tcase_add_test(tests, last_unref_does_not_wait_for_close);
    tcase_add_test(tests, reclaim_does_not_wait_for_close);
    tcase_add_test(tests, surplus_descriptor_is_closed_without_lock);
    tcase_add_test(tests, free_closes_without_lock);
    suite_add_tcase(made, tests);
    return made;
}

#include "check_main.h"
