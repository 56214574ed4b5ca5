/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: bytes in each mode, copies and caches, changed files. */
#include "base/system_call.h"
#include "io_fixture.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>

static struct extent_list *
random_list(uint64_t *state, char **bytes)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    uint64_t runs = 1 + random_next(state, 40);
    size_t size = 0;
    struct extent_list *list;

    *bytes = malloc(runs * FILE_SIZE / 2);
    for (uint64_t i = 0; i < runs; i++) {
        uint64_t most = random_next(state, 4) ? 5000 : FILE_SIZE / 2;
        uint64_t which, offset, length;

        if (random_next(state, 2)) {
            which = random_next(state, FILES);
            offset = random_next(state, FILE_SIZE);
            length = 1 + random_next(state, FILE_SIZE - offset);
            length = length < most ? length : most;
            extent_builder_add_backing(&builder, backings[which], offset, length);
            memcpy(*bytes + size, contents[which] + offset, length);
        } else {
            which = random_next(state, BLOBS);
            offset = random_next(state, BLOB_SIZE);
            length = 1 + random_next(state, BLOB_SIZE - offset);
            extent_builder_add_blob(&builder, blobs[which], offset, length);
            memcpy(*bytes + size, blobs[which]->data + offset, length);
        }
        size += length;
    }
    list = extent_builder_finish(&builder);
    ck_assert_uint_eq(list->size, size);
    return list;
}

static void
random_range(uint64_t *state, const struct extent_list *list, uint64_t *offset, size_t *length)
{
    uint64_t most = random_next(state, 3) ? 10000 : 2 * MIB;

    *offset = random_next(state, list->size);
    if (most > list->size - *offset)
        most = list->size - *offset;
    *length = 1 + random_next(state, most);
}

START_TEST(random_reads)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        uint64_t state = seed;
        char *bytes;
        struct extent_list *list = random_list(&state, &bytes);

        ck_assert_int_eq(read_list(list, 0, list->size, bytes), 0);
        for (int i = 0; i < 40; i++) {
            uint64_t offset;
            size_t length;

            random_range(&state, list, &offset, &length);
            ck_assert_int_eq(read_list(list, offset, length, bytes + offset), 0);
        }
        extent_list_unref(list);
        free(bytes);
    }
}
END_TEST

struct answer_note {
    pthread_t reader;
    bool is_same_thread;
    const void *base; /* of the first vector */
};

static void
note_answer(void *arg, const struct io_answer *answer)
{
    struct answer_note *note = arg;

    expect(answer->result == 0);
    note->is_same_thread = pthread_equal(note->reader, pthread_self());
    note->base = answer->vectors[0].iov_base;
}

START_TEST(blobs_are_answered_at_once_without_copy)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct answer_note note = {pthread_self(), false, NULL};
    struct extent_list *list;

    extent_builder_add_blob(&builder, blobs[0], 10, 5000);
    extent_builder_add_blob(&builder, blobs[1], 0, 100);
    list = extent_builder_finish(&builder);
    io_read(io, list, 7, 5050, note_answer, &note);
    ck_assert(note.is_same_thread);
    ck_assert_ptr_eq(note.base, blobs[0]->data + 17);
    extent_list_unref(list);
}
END_TEST

START_TEST(answer_of_many_iovecs)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    char *bytes = malloc(20000);
    struct extent_list *list;

    for (int i = 0; i < 20000; i++) {
        extent_builder_add_blob(&builder, blobs[i % 2], (uint64_t)i / 2, 1);
        bytes[i] = blobs[i % 2]->data[i / 2];
    }
    list = extent_builder_finish(&builder);
    ck_assert_uint_eq(list->count, 20000);
    ck_assert_int_eq(read_list(list, 3, 19990, bytes + 3), 0);
    extent_list_unref(list);
    free(bytes);
}
END_TEST

START_TEST(sequential_reads_read_storage_once)
{
    struct extent_list *list = whole_file(backings[0]);
    struct io_counters counters;

    for (uint64_t offset = 0; offset < FILE_SIZE; offset += 131072) {
        size_t length = FILE_SIZE - offset < 131072 ? FILE_SIZE - offset : 131072;

        ck_assert_int_eq(read_list(list, offset, length, contents[0] + offset), 0);
    }
    extent_list_unref(list);
    io_counters(io, &counters);
    /* Up to one block more for each request. */
    ck_assert_uint_ge(counters.storage_bytes, FILE_SIZE);
    ck_assert_uint_le(counters.storage_bytes, FILE_SIZE + 30 * 4096);
}
END_TEST

/* A sysfs file: it refuses O_DIRECT and cachestat(2), and each read returns at most a page. */
START_TEST(sysfs_file)
{
    static const char path[] = "/sys/kernel/btf/vmlinux";
    struct file_identity identity;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t got = 0;
    ssize_t part;
    struct backing *backing;
    struct buffer status = BUFFER_INIT;
    char *bytes;

    if (fd < 0 || file_identity_from_fd(&identity, fd) != 0 || identity.size < MIB)
        return;
    bytes = malloc(identity.size);
    while (got < MIB && (part = pread(fd, bytes + got, MIB - got, (off_t)got)) > 0)
        got += (size_t)part;
    ck_assert_uint_eq(got, MIB);
    close(fd);
    backing = backing_new(AT_FDCWD, path, &identity);
    ck_assert_int_eq(read_backing(backing, 1, MIB - 1, bytes + 1), 0);
    ck_assert_int_eq(read_backing(backing, 50000, 100, bytes + 50000), 0);
    io_status(io, &status);
    ck_assert_ptr_nonnull(strstr(status.data, "direct_refused"));
    buffer_free(&status);
    backing_unref(backing);
    free(bytes);
}
END_TEST

START_TEST(uses_page_cache)
{
    struct io_counters counters;
    char *bytes = malloc(FILE_SIZE);
    int fd = openat(directory, "a", O_RDONLY | O_CLOEXEC);
    /* Locked, so that the kernel keeps the pages, unless RLIMIT_MEMLOCK forbids it. */
    void *locked = mmap(NULL, FILE_SIZE, PROT_READ, MAP_SHARED | MAP_LOCKED, fd, 0);

    if (locked == MAP_FAILED)
        locked = mmap(NULL, FILE_SIZE, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    ck_assert_ptr_ne(locked, MAP_FAILED);
    ck_assert_int_eq(pread(fd, bytes, FILE_SIZE, 0), FILE_SIZE);
    ck_assert_int_eq(read_backing(backings[0], 12345, MIB, contents[0] + 12345), 0);
    io_counters(io, &counters);
    if (syscall(451, -1, NULL, NULL, 0) < 0 && errno != ENOSYS)
        ck_assert_uint_ge(counters.page_cache_bytes, MIB);
    munmap(locked, FILE_SIZE);
    close(fd);
    free(bytes);
}
END_TEST

static atomic_bool denies_cachestat; /* of the first file; all pages of the others are cached */
static atomic_uint denied;

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

/* Called in place of syscall(2). */
long
__wrap_syscall(long number, ...)
{
    long values[6];
    va_list arguments;
    struct stat now;

    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        values[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number != SYS_cachestat || !atomic_load(&denies_cachestat))
        return __real_syscall(number, values[0], values[1], values[2], values[3], values[4],
                              values[5]);
    if (fstat((int)values[0], &now) < 0)
        return -1;
    if (now.st_ino == backings[0]->identity.inode) {
        atomic_fetch_add(&denied, 1);
        errno = EPERM;
        return -1;
    }
    *(uint64_t *)values[2] = UINT64_MAX; /* pages in the page cache */
    return 0;
}

/* The kernel allows cachestat(2) only for files that the caller owns or may write to. */
START_TEST(cachestat_is_denied_for_one_file)
{
    struct buffer status = BUFFER_INIT;
    struct io_counters counters;
    char *bytes = malloc(FILE_SIZE);
    int fd = openat(directory, "b", O_RDONLY | O_CLOEXEC);

    ck_assert_int_eq(pread(fd, bytes, FILE_SIZE, 0), FILE_SIZE);
    atomic_store(&denied, 0);
    atomic_store(&denies_cachestat, true);
    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
    ck_assert_int_eq(read_backing(backings[0], FAR, 5000, contents[0] + FAR), 0);
    ck_assert_int_eq(read_backing(backings[1], 0, MIB, contents[1]), 0);
    atomic_store(&denies_cachestat, false);
    io_counters(io, &counters);
    ck_assert_uint_ge(counters.page_cache_bytes, MIB);
    io_status(io, &status);
    ck_assert_ptr_nonnull(strstr(status.data, "\"cachestat\":{\"on\":true"));
    /* By then, reads that were submitted together may have asked. */
    ck_assert_uint_ge(atomic_load(&denied), 1);
    atomic_store(&denied, 0);
    atomic_store(&denies_cachestat, true);
    ck_assert_int_eq(read_backing(backings[0], MIB + MIB / 2, 100, contents[0] + MIB + MIB / 2), 0);
    atomic_store(&denies_cachestat, false);
    ck_assert_uint_eq(atomic_load(&denied), 0);
    buffer_free(&status);
    close(fd);
    free(bytes);
}
END_TEST

START_TEST(buffered_reads_leave_no_pages)
{
    struct io_counters before, after;
    struct statfs fs;

    ck_assert_int_eq(fstatfs(directory, &fs), 0);
    if (fs.f_type == TMPFS_MAGIC)
        return; /* its files are always in the page cache */
    /* A buffered read must drop its pages: another engine does not find the bytes in the page
     * cache. */
    io_free(io);
    ck_assert_int_eq(io_new(&modes[BUFFERED], &io), 0);
    ck_assert_int_eq(read_backing(backings[0], 0, FILE_SIZE, contents[0]), 0);
    io_free(io);
    ck_assert_int_eq(io_new(&modes[BUFFERED], &io), 0);
    io_counters(io, &before);
    ck_assert_int_eq(read_backing(backings[0], 0, FILE_SIZE, contents[0]), 0);
    io_counters(io, &after);
    ck_assert_uint_eq(after.page_cache_bytes, before.page_cache_bytes);
}
END_TEST

struct reader {
    struct extent_list *list;
    const char *bytes;
    uint64_t seed;
    pthread_t thread;
};

static void *
read_randomly(void *arg)
{
    struct reader *reader = arg;

    for (int i = 0; i < 200; i++) {
        uint64_t offset;
        size_t length;

        random_range(&reader->seed, reader->list, &offset, &length);
        expect(read_list(reader->list, offset, length, reader->bytes + offset) == 0);
    }
    return NULL;
}

START_TEST(many_readers)
{
    struct reader readers[12];
    struct io_counters counters;
    uint64_t state = 99;
    char *bytes;
    struct extent_list *list = random_list(&state, &bytes);

    for (unsigned i = 0; i < 12; i++) {
        readers[i] = (struct reader){list, bytes, i, 0};
        pthread_create(&readers[i].thread, NULL, read_randomly, &readers[i]);
    }
    for (unsigned i = 0; i < 12; i++)
        pthread_join(readers[i].thread, NULL);
    io_counters(io, &counters);
    ck_assert_uint_eq(counters.reads, 12 * 200);
    ck_assert_uint_eq(counters.errors, 0);
    ck_assert_uint_gt(counters.storage_bytes, 0);
    extent_list_unref(list);
    free(bytes);
}
END_TEST

START_TEST(counters_of_reads)
{
    struct io_counters counters;

    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
    ck_assert_int_eq(unlinkat(directory, "b", 0), 0);
    ck_assert_int_eq(read_backing(backings[1], 0, 100, NULL), -ESTALE);
    io_counters(io, &counters);
    ck_assert_uint_eq(counters.reads, 2);
    ck_assert_uint_eq(counters.bytes, 100);
    ck_assert_uint_ge(counters.storage_reads, 1);
    ck_assert_uint_ge(counters.storage_bytes, 100);
    ck_assert_uint_eq(counters.errors, 1);
    ck_assert_uint_eq(counters.stale, 1);
    ck_assert_uint_ge(counters.descriptors, 1);
}
END_TEST

START_TEST(truncated_file_is_stale)
{
    ck_assert_int_eq(read_backing(backings[0], 1000, 5000, contents[0] + 1000), 0);
    write_file("a", contents[0], 500);
    ck_assert_int_eq(read_backing(backings[0], FAR, 5000, NULL), -ESTALE);
    ck_assert(atomic_load(&backings[0]->stale));
    /* All further reads fail, also of bytes that the file still has. */
    ck_assert_int_eq(read_backing(backings[0], 0, 100, NULL), -ESTALE);
    ck_assert_int_eq(read_backing(backings[1], 0, 100, contents[1]), 0);
}
END_TEST

START_TEST(rewritten_file_is_stale)
{
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, contents[0]), 0);
    usleep(20000); /* time stamps may have the resolution of a clock tick */
    write_file("a", contents[1], FILE_SIZE);
    ck_assert_int_eq(read_backing(backings[0], FAR, 5000, NULL), -ESTALE);
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, NULL), -ESTALE);
    backing_unref(backings[0]);
    backings[0] = new_backing("a");
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, contents[1]), 0);
}
END_TEST

START_TEST(replaced_file_is_stale_unless_open)
{
    /* "a" was open before, "b" was not. */
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, contents[0]), 0);
    write_file("new", contents[2], FILE_SIZE);
    ck_assert_int_eq(renameat(directory, "new", directory, "a"), 0);
    write_file("new", contents[2], FILE_SIZE);
    ck_assert_int_eq(renameat(directory, "new", directory, "b"), 0);
    ck_assert_int_eq(read_backing(backings[0], 5000, 5000, contents[0] + 5000), 0);
    ck_assert_int_eq(read_backing(backings[1], 0, 5000, NULL), -ESTALE);
}
END_TEST

START_TEST(removed_file_is_stale_unless_open)
{
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, contents[0]), 0);
    ck_assert_int_eq(unlinkat(directory, "a", 0), 0);
    ck_assert_int_eq(unlinkat(directory, "b", 0), 0);
    ck_assert_int_eq(read_backing(backings[0], 5000, 5000, contents[0] + 5000), 0);
    ck_assert_int_eq(read_backing(backings[1], 0, 5000, NULL), -ESTALE);
}
END_TEST

/* As after the end of a lease: the next read logs it, once. */
START_TEST(stale_file_is_logged_once)
{
    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
    atomic_store(&lines_logged, 0);
    atomic_store(&backings[0]->stale, true);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(read_backing(backings[0], 0, 100, NULL), -ESTALE);
    ck_assert_uint_eq(atomic_load(&lines_logged), 1);
}
END_TEST

START_TEST(fifo_or_directory_is_stale)
{
    ck_assert_int_eq(unlinkat(directory, "a", 0), 0);
    ck_assert_int_eq(mkfifoat(directory, "a", 0644), 0);
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, NULL), -ESTALE);
    ck_assert_int_eq(unlinkat(directory, "b", 0), 0);
    ck_assert_int_eq(mkdirat(directory, "b", 0755), 0);
    ck_assert_int_eq(read_backing(backings[1], 0, 5000, NULL), -ESTALE);
    ck_assert_int_eq(unlinkat(directory, "b", AT_REMOVEDIR), 0);
}
END_TEST

/* Without a lease any change of the ctime may hide a write, so the file is stale, except after
 * unlink(2). */
START_TEST(new_ctime_is_stale)
{
    ck_assert_int_eq(read_backing(backings[2], 0, 5000, contents[2]), 0);
    ck_assert_int_eq(unlinkat(directory, "c", 0), 0);
    ck_assert_int_eq(read_backing(backings[2], 0, 5000, contents[2]), 0);
    ck_assert_int_eq(fchmodat(directory, "a", 0400, 0), 0);
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, contents[0]), -ESTALE);
    ck_assert_int_eq(linkat(directory, "b", directory, "other", 0), 0);
    ck_assert_int_eq(read_backing(backings[1], 0, 5000, contents[1]), -ESTALE);
    ck_assert_int_eq(unlinkat(directory, "other", 0), 0);
}
END_TEST

#define SETUP(mode)                                                                                \
    static void setup_##mode(void)                                                                 \
    {                                                                                              \
        setup_for(mode);                                                                           \
    }
SETUP(BUFFERED)
SETUP(THREADS)
SETUP(BUFFERED_THREADS)
SETUP(NO_PREFETCH)
SETUP(LITTLE_MEMORY)
SETUP(IN_MEMORY)

static void
add_reads(Suite *to, const char *name, SFun set_up)
{
    TCase *reads = tcase_create(name);

    tcase_add_checked_fixture(reads, set_up, teardown);
    tcase_add_test(reads, random_reads);
    tcase_add_test(reads, sequential_reads_read_storage_once);
    tcase_add_test(reads, many_readers);
    tcase_set_timeout(reads, 100);
    suite_add_tcase(to, reads);
}

static Suite *
suite(void)
{
    Suite *made = suite_create("io");
    TCase *reads = tcase_create("reads");
    TCase *changes = tcase_create("changes");

    add_reads(made, "ring", setup);
    add_reads(made, "buffered", setup_BUFFERED);
    add_reads(made, "threads", setup_THREADS);
    add_reads(made, "buffered_threads", setup_BUFFERED_THREADS);
    add_reads(made, "no_prefetch", setup_NO_PREFETCH);
    add_reads(made, "little_memory", setup_LITTLE_MEMORY);
    add_reads(made, "in_memory", setup_IN_MEMORY);
    tcase_add_checked_fixture(reads, setup, teardown);
    tcase_add_test(reads, blobs_are_answered_at_once_without_copy);
    tcase_add_test(reads, answer_of_many_iovecs);
    tcase_add_test(reads, counters_of_reads);
    tcase_add_test(reads, sysfs_file);
    tcase_add_test(reads, uses_page_cache);
    tcase_add_test(reads, cachestat_is_denied_for_one_file);
    tcase_add_test(reads, buffered_reads_leave_no_pages);
    tcase_add_checked_fixture(changes, setup, teardown);
    tcase_add_test(changes, truncated_file_is_stale);
    tcase_add_test(changes, rewritten_file_is_stale);
    tcase_add_test(changes, replaced_file_is_stale_unless_open);
    tcase_add_test(changes, removed_file_is_stale_unless_open);
    tcase_add_test(changes, stale_file_is_logged_once);
    tcase_add_test(changes, fifo_or_directory_is_stale);
    tcase_add_test(changes, new_ctime_is_stale);
    suite_add_tcase(made, reads);
    suite_add_tcase(made, changes);
    return made;
}

#include "check_main.h"
