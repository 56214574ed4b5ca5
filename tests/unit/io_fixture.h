/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine with files and blobs of random bytes, for unit tests of src/io/io.h. One at a time;
 * include it once in a test program, which must be linked with the wrapped functions below.
 */
#ifndef FSTFS_TESTS_IO_FIXTURE_H
#define FSTFS_TESTS_IO_FIXTURE_H

#include "base/log.h"
#include "expect.h"
#include "io/io.h"
#include "random.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 6
#define FILE_SIZE 3000007
#define FAR 2900000 /* an offset that a read at the start does not prefetch */
#define BLOBS 3
#define MIB (1024 * 1024)
#define BLOB_SIZE 20011

/* Options of the engine; the bytes must be the same with all of them. */
enum mode { RING, BUFFERED, THREADS, BUFFERED_THREADS, NO_PREFETCH, LITTLE_MEMORY, IN_MEMORY };

static const struct io_options modes[] = {
    [RING] = {0},
    [BUFFERED] = {.no_direct = true},
    [THREADS] = {.no_ring = true},
    [BUFFERED_THREADS] = {.no_ring = true, .no_direct = true},
    [NO_PREFETCH] = {.no_prefetch = true},
    [LITTLE_MEMORY] = {.memory = 4 * MIB, .rings = 2, .queue_depth = 4},
    [IN_MEMORY] = {0}, /* with the files on a tmpfs */
};

static char directory_path[sizeof("/dev/shm/fstfs-test-io-XXXXXX")];
static int directory;
static char *contents[FILES];
static struct backing *backings[FILES];
static struct blob *blobs[BLOBS];
static struct io *io;

/* The linker replaces the real functions with these (--wrap). They verify in all tests that no lock
 * is held while memory is mapped or unmapped, which takes long, or while a line is logged, which
 * may block. */
static __thread int locks; /* held by this thread */
static atomic_uint lines_logged;

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t size);
int __wrap_munmap(void *address, size_t size);
void __real_log_line(enum log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void __wrap_log_line(enum log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

int
__wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locks++;
    return __real_pthread_mutex_lock(mutex);
}

int
__wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    locks--;
    return __real_pthread_mutex_unlock(mutex);
}

void *
__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    expect(locks == 0);
    return __real_mmap(address, size, protection, flags, fd, offset);
}

/* glibc redirects mmap() to it where offsets have 64 bits. */
void *
__wrap_mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    return __wrap_mmap(address, size, protection, flags, fd, offset);
}

int
__wrap_munmap(void *address, size_t size)
{
    expect(locks == 0);
    return __real_munmap(address, size);
}

void
__wrap_log_line(enum log_level level, const char *format, ...)
{
    char line[512];
    va_list arguments;

    expect(locks == 0);
    atomic_fetch_add(&lines_logged, 1);
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    __real_log_line(level, "%s", line);
}

static inline char *
random_bytes(uint64_t seed, size_t size)
{
    char *bytes = malloc(size);

    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)random_next(&seed, 256);
    return bytes;
}

static inline void
write_file(const char *name, const char *bytes, size_t size)
{
    int fd = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
    /* Drop it from the page cache, so that the engine must read storage. */
    ck_assert_int_eq(fdatasync(fd), 0);
    ck_assert_int_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ck_assert_int_eq(close(fd), 0);
}

/* The backing of the file as it is now. It has a reader, so the engine keeps its descriptors. */
static inline struct backing *
new_backing(const char *name)
{
    struct file_identity identity;
    struct backing *backing;

    expect(file_identity_at(&identity, directory, name) == 0);
    backing = backing_new(directory, name, &identity);
    atomic_store(&backing->readers, 1);
    return backing;
}

static inline const char *
file_name(int i)
{
    static const char *const names[FILES] = {"a", "b", "c", "d", "e", "f"};

    return names[i];
}

static inline void
start_engine(unsigned threads, unsigned descriptors)
{
    struct io_options options = {.threads = threads, .descriptors = descriptors};

    ck_assert_int_eq(io_new(&options, &io), 0);
}

static inline void
setup_for(enum mode mode)
{
    strcpy(directory_path,
           mode == IN_MEMORY ? "/dev/shm/fstfs-test-io-XXXXXX" : "/tmp/fstfs-test-io-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory_path));
    directory = open(directory_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(directory, 0);
    for (int i = 0; i < FILES; i++) {
        contents[i] = random_bytes((uint64_t)i, FILE_SIZE);
        write_file(file_name(i), contents[i], FILE_SIZE);
        backings[i] = new_backing(file_name(i));
    }
    for (int i = 0; i < BLOBS; i++)
        blobs[i] = blob_new(&(struct buffer){.data = random_bytes(100 + (uint64_t)i, BLOB_SIZE),
                                             .length = BLOB_SIZE});
    ck_assert_int_eq(io_new(&modes[mode], &io), 0);
}

static inline void
setup(void)
{
    setup_for(RING);
}

static inline void
teardown(void)
{
    io_free(io);
    for (int i = 0; i < FILES; i++) {
        backing_unref(backings[i]);
        free(contents[i]);
        unlinkat(directory, file_name(i), 0);
    }
    for (int i = 0; i < BLOBS; i++)
        blob_unref(blobs[i]);
    close(directory);
    ck_assert_int_eq(rmdir(directory_path), 0);
    assert_expectations();
}

/* One read, and its answer. */
struct request {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    unsigned answers;
    errint_t result;
    char *bytes;
    size_t length;
};

static inline void
request_init(struct request *request, size_t length)
{
    pthread_mutex_init(&request->lock, NULL);
    pthread_cond_init(&request->answered, NULL);
    request->answers = 0;
    request->bytes = malloc(length);
    request->length = length;
}

static inline void
request_free(struct request *request)
{
    pthread_mutex_destroy(&request->lock);
    pthread_cond_destroy(&request->answered);
    free(request->bytes);
}

static inline void
keep_answer(void *arg, const struct io_answer *answer)
{
    struct request *request = arg;
    size_t got = 0;

    for (int i = 0; i < answer->count; i++) {
        const struct iovec *vector = &answer->vectors[i];

        if (!expect(got + vector->iov_len <= request->length))
            break;
        memcpy(request->bytes + got, vector->iov_base, vector->iov_len);
        got += vector->iov_len;
    }
    expect(got == (answer->result == 0 ? request->length : 0));
    pthread_mutex_lock(&request->lock);
    request->result = answer->result;
    request->answers++;
    pthread_cond_signal(&request->answered);
    pthread_mutex_unlock(&request->lock);
}

static inline errint_t
request_wait(struct request *request)
{
    pthread_mutex_lock(&request->lock);
    while (request->answers == 0)
        pthread_cond_wait(&request->answered, &request->lock);
    expect(request->answers == 1);
    pthread_mutex_unlock(&request->lock);
    return request->result;
}

/* Reads, compares the bytes with `expected` unless it is NULL, returns the result. Any thread. */
static inline errint_t
read_list(struct extent_list *list, uint64_t offset, size_t length, const char *expected)
{
    struct request request;
    errint_t result;

    request_init(&request, length);
    io_read(io, list, offset, length, keep_answer, &request);
    result = request_wait(&request);
    if (result == 0 && expected)
        expect(memcmp(request.bytes, expected, length) == 0);
    request_free(&request);
    return result;
}

static inline struct extent_list *
whole_file(struct backing *backing)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;

    extent_builder_add_backing(&builder, backing, 0, backing->identity.size);
    return extent_builder_finish(&builder);
}

static inline errint_t
read_backing(struct backing *backing, uint64_t offset, size_t length, const char *expected)
{
    struct extent_list *list = whole_file(backing);
    errint_t result = read_list(list, offset, length, expected);

    extent_list_unref(list);
    return result;
}

#endif
