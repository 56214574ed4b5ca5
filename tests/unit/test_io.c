/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: bytes against a model in each way it can read, changes of files,
 * limits, many at once. */
#include "expect.h"
#include "io/io.h"
#include "random.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILES 6
#define FILE_SIZE 3000007
#define FAR 2900000 /* not in memory after a read at the start */
#define BLOBS 3
#define MIB (1024 * 1024)
#define BLOB_SIZE 20011

/* The ways of reading, each of which must give the same bytes. */
enum mode { RING, BUFFERED, THREADS, BUFFERED_THREADS, NO_PREFETCH, LITTLE_MEMORY, IN_MEMORY };

static const struct io_options modes[] = {
    [RING] = {0},
    [BUFFERED] = {.no_direct = true},
    [THREADS] = {.no_ring = true},
    [BUFFERED_THREADS] = {.no_ring = true, .no_direct = true},
    [NO_PREFETCH] = {.no_prefetch = true},
    [LITTLE_MEMORY] = {.memory = 4 * MIB, .rings = 2, .queue_depth = 4},
    [IN_MEMORY] = {0}, /* files on a tmpfs */
};

static char place[sizeof("/dev/shm/fstfs-test-io-XXXXXX")];
static int directory;
static char *contents[FILES];
static struct backing *backings[FILES];
static struct blob *blobs[BLOBS];
static struct io *io;

/* The linker puts these in the place of the real ones: whatever is tested, buffers are mapped and
 * unmapped with no lock held, which others would wait for. */
static __thread int locks; /* that this thread holds */

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *address, size_t size);
int __wrap_munmap(void *address, size_t size);

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

/* What glibc makes of mmap() where offsets have 64 bits. */
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

static char *
random_bytes(uint64_t seed, size_t size)
{
    char *bytes = malloc(size);

    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)random_next(&seed, 256);
    return bytes;
}

static void
write_file(const char *name, const char *bytes, size_t size)
{
    int fd = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
    /* Out of the page cache, so that it must be read. */
    ck_assert_int_eq(fdatasync(fd), 0);
    ck_assert_int_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    ck_assert_int_eq(close(fd), 0);
}

/* As if somebody had it open: the engine keeps its descriptors. */
static struct backing *
look_at(const char *name)
{
    struct file_identity identity;
    struct backing *backing;
    struct stat st = {0};

    expect(fstatat(directory, name, &st, 0) == 0);
    file_identity_from_stat(&identity, &st);
    backing = backing_new(directory, name, &identity);
    atomic_store(&backing->readers, 1);
    return backing;
}

static const char *
name_of(int i)
{
    static const char *const names[FILES] = {"a", "b", "c", "d", "e", "f"};

    return names[i];
}

static void
start(unsigned threads, unsigned descriptors)
{
    struct io_options options = {.threads = threads, .descriptors = descriptors};

    ck_assert_int_eq(io_new(&options, &io), 0);
}

static void
setup_for(enum mode mode)
{
    strcpy(place,
           mode == IN_MEMORY ? "/dev/shm/fstfs-test-io-XXXXXX" : "/tmp/fstfs-test-io-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place));
    directory = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(directory, 0);
    for (int i = 0; i < FILES; i++) {
        contents[i] = random_bytes((uint64_t)i, FILE_SIZE);
        write_file(name_of(i), contents[i], FILE_SIZE);
        backings[i] = look_at(name_of(i));
    }
    for (int i = 0; i < BLOBS; i++)
        blobs[i] = blob_new(random_bytes(100 + (uint64_t)i, BLOB_SIZE), BLOB_SIZE);
    ck_assert_int_eq(io_new(&modes[mode], &io), 0);
}

static void
setup(void)
{
    setup_for(RING);
}

static void
teardown(void)
{
    io_free(io);
    for (int i = 0; i < FILES; i++) {
        backing_unref(backings[i]);
        free(contents[i]);
        unlinkat(directory, name_of(i), 0);
    }
    for (int i = 0; i < BLOBS; i++)
        blob_unref(blobs[i]);
    close(directory);
    ck_assert_int_eq(rmdir(place), 0);
    assert_expectations();
}

/* One read and its end. */
struct request {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    unsigned answers;
    errint_t result;
    char *bytes;
    size_t length;
};

static void
request_init(struct request *request, size_t length)
{
    pthread_mutex_init(&request->lock, NULL);
    pthread_cond_init(&request->ended, NULL);
    request->answers = 0;
    request->bytes = malloc(length);
    request->length = length;
}

static void
request_free(struct request *request)
{
    pthread_mutex_destroy(&request->lock);
    pthread_cond_destroy(&request->ended);
    free(request->bytes);
}

static void
keep(void *arg, errint_t result, const struct iovec *vectors, int count)
{
    struct request *request = arg;
    size_t got = 0;

    for (int i = 0; i < count; i++) {
        if (!expect(got + vectors[i].iov_len <= request->length))
            break;
        memcpy(request->bytes + got, vectors[i].iov_base, vectors[i].iov_len);
        got += vectors[i].iov_len;
    }
    expect(got == (result == 0 ? request->length : 0));
    pthread_mutex_lock(&request->lock);
    request->result = result;
    request->answers++;
    pthread_cond_signal(&request->ended);
    pthread_mutex_unlock(&request->lock);
}

static errint_t
wait_for(struct request *request)
{
    pthread_mutex_lock(&request->lock);
    while (request->answers == 0)
        pthread_cond_wait(&request->ended, &request->lock);
    expect(request->answers == 1);
    pthread_mutex_unlock(&request->lock);
    return request->result;
}

/* Reads and compares with `expected`, unless it is NULL; the result. On any thread. */
static errint_t
read_list(struct extent_list *list, uint64_t offset, size_t length, const char *expected)
{
    struct request request;
    errint_t result;

    request_init(&request, length);
    io_read(io, list, offset, length, keep, &request);
    result = wait_for(&request);
    if (result == 0 && expected)
        expect(memcmp(request.bytes, expected, length) == 0);
    request_free(&request);
    return result;
}

static struct extent_list *
whole_file(struct backing *backing)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;

    extent_builder_add_backing(&builder, backing, 0, backing->identity.size);
    return extent_builder_finish(&builder);
}

static errint_t
read_backing(struct backing *backing, uint64_t offset, size_t length, const char *expected)
{
    struct extent_list *list = whole_file(backing);
    errint_t result = read_list(list, offset, length, expected);

    extent_list_unref(list);
    return result;
}

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

struct same_thread {
    pthread_t thread;
    bool same;
    const void *base;
};

static void
note_thread(void *arg, errint_t result, const struct iovec *vectors, int count)
{
    struct same_thread *note = arg;

    expect(result == 0);
    note->same = pthread_equal(note->thread, pthread_self());
    note->base = vectors[0].iov_base;
}

START_TEST(memory_at_once_without_copy)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct same_thread note = {pthread_self(), false, NULL};
    struct extent_list *list;

    extent_builder_add_blob(&builder, blobs[0], 10, 5000);
    extent_builder_add_blob(&builder, blobs[1], 0, 100);
    list = extent_builder_finish(&builder);
    io_read(io, list, 7, 5050, note_thread, &note);
    ck_assert(note.same);
    ck_assert_ptr_eq(note.base, blobs[0]->data + 17);
    extent_list_unref(list);
}
END_TEST

START_TEST(many_tiny_pieces)
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

/* As `cat` reads: one range after the other. */
START_TEST(sequential)
{
    struct extent_list *list = whole_file(backings[0]);
    struct io_counters counters;

    for (uint64_t offset = 0; offset < FILE_SIZE; offset += 131072) {
        size_t length = FILE_SIZE - offset < 131072 ? FILE_SIZE - offset : 131072;

        ck_assert_int_eq(read_list(list, offset, length, contents[0] + offset), 0);
    }
    extent_list_unref(list);
    io_counters(io, &counters);
    /* Nothing was read twice. */
    ck_assert_uint_ge(counters.storage_bytes, FILE_SIZE);
    ck_assert_uint_le(counters.storage_bytes, FILE_SIZE + 30 * 4096);
}
END_TEST

/* A file that cannot be read directly, whose pages nobody can tell, and that
 * gives a page at most for each read. */
START_TEST(odd_file)
{
    static const char path[] = "/sys/kernel/btf/vmlinux";
    struct file_identity identity;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t got = 0;
    ssize_t part;
    struct backing *backing;
    struct buffer status = BUFFER_INIT;
    char *bytes;

    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < MIB)
        return;
    bytes = malloc((size_t)st.st_size);
    while (got < MIB && (part = pread(fd, bytes + got, MIB - got, (off_t)got)) > 0)
        got += (size_t)part;
    ck_assert_uint_eq(got, MIB);
    close(fd);
    file_identity_from_stat(&identity, &st);
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
    /* So that the kernel does not give the pages up again, as it may at any time. */
    void *kept = mmap(NULL, FILE_SIZE, PROT_READ, MAP_SHARED | MAP_LOCKED, fd, 0);

    ck_assert_ptr_ne(kept, MAP_FAILED);
    ck_assert_int_eq(pread(fd, bytes, FILE_SIZE, 0), FILE_SIZE);
    ck_assert_int_eq(read_backing(backings[0], 12345, MIB, contents[0] + 12345), 0);
    io_counters(io, &counters);
    if (syscall(451, -1, NULL, NULL, 0) < 0 && errno != ENOSYS)
        ck_assert_uint_ge(counters.page_cache_bytes, MIB);
    munmap(kept, FILE_SIZE);
    close(fd);
    free(bytes);
}
END_TEST

START_TEST(leaves_no_second_copy)
{
    struct io_counters before, after;

    /* Read through the page cache, and let go: the second reading of the same
     * bytes, by another engine, finds nothing in it. */
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

START_TEST(truncated)
{
    ck_assert_int_eq(read_backing(backings[0], 1000, 5000, contents[0] + 1000), 0);
    write_file("a", contents[0], 500);
    ck_assert_int_eq(read_backing(backings[0], FAR, 5000, NULL), -ESTALE);
    ck_assert(atomic_load(&backings[0]->stale));
    /* At once, from then on: also for bytes that are still there. */
    ck_assert_int_eq(read_backing(backings[0], 0, 100, NULL), -ESTALE);
    ck_assert_int_eq(read_backing(backings[1], 0, 100, contents[1]), 0);
}
END_TEST

START_TEST(rewritten_in_place)
{
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, contents[0]), 0);
    usleep(20000); /* times may be as coarse as a clock tick */
    write_file("a", contents[1], FILE_SIZE);
    ck_assert_int_eq(read_backing(backings[0], FAR, 5000, NULL), -ESTALE);
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, NULL), -ESTALE);
    backing_unref(backings[0]);
    backings[0] = look_at("a");
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, contents[1]), 0);
}
END_TEST

START_TEST(replaced_by_rename)
{
    /* "a" is open by then and keeps its version; "b" was never opened. */
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, contents[0]), 0);
    write_file("new", contents[2], FILE_SIZE);
    ck_assert_int_eq(renameat(directory, "new", directory, "a"), 0);
    write_file("new", contents[2], FILE_SIZE);
    ck_assert_int_eq(renameat(directory, "new", directory, "b"), 0);
    ck_assert_int_eq(read_backing(backings[0], 5000, 5000, contents[0] + 5000), 0);
    ck_assert_int_eq(read_backing(backings[1], 0, 5000, NULL), -ESTALE);
}
END_TEST

START_TEST(removed)
{
    ck_assert_int_eq(read_backing(backings[0], 0, 5000, contents[0]), 0);
    ck_assert_int_eq(unlinkat(directory, "a", 0), 0);
    ck_assert_int_eq(unlinkat(directory, "b", 0), 0);
    ck_assert_int_eq(read_backing(backings[0], 5000, 5000, contents[0] + 5000), 0);
    ck_assert_int_eq(read_backing(backings[1], 0, 5000, NULL), -ESTALE);
}
END_TEST

START_TEST(became_something_else)
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

/* Without a lease a write may hide behind whatever moves the change time, except that a name went.
 */
START_TEST(other_names_and_modes)
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

static unsigned
open_here(void)
{
    DIR *list = opendir("/proc/self/fd");
    unsigned count = 0;
    struct dirent *entry;
    char target[256];

    while ((entry = readdir(list))) {
        ssize_t length = readlinkat(dirfd(list), entry->d_name, target, sizeof(target) - 1);

        target[length > 0 ? length : 0] = '\0';
        count += strncmp(target, place, strlen(place)) == 0 && target[strlen(place)] == '/';
    }
    closedir(list);
    return count;
}

/* All files at once, from many threads of readers. */
struct crowd {
    atomic_uint done, errors;
    unsigned most_open;
};

static void
count_end(void *arg, errint_t result, const struct iovec *vectors, int count)
{
    struct crowd *crowd = arg;

    if (result != 0)
        atomic_fetch_add(&crowd->errors, 1);
    atomic_fetch_add(&crowd->done, 1);
}

START_TEST(descriptor_limit)
{
    struct extent_list *lists[FILES];
    struct crowd crowd = {0};
    struct io_counters counters;

    io_free(io);
    start(8, 2);
    for (int i = 0; i < FILES; i++)
        lists[i] = whole_file(backings[i]);
    for (unsigned i = 0; i < 500; i++) {
        unsigned now;

        io_read(io, lists[i % FILES], i * 100, 5000, count_end, &crowd);
        now = open_here();
        if (now > crowd.most_open)
            crowd.most_open = now;
    }
    while (atomic_load(&crowd.done) < 500)
        usleep(1000);
    /* The last were perhaps not opened before all had been asked for. */
    if (open_here() > crowd.most_open)
        crowd.most_open = open_here();
    io_counters(io, &counters);
    ck_assert_uint_eq(atomic_load(&crowd.errors), 0);
    ck_assert_uint_le(crowd.most_open, 2);
    ck_assert_uint_ge(crowd.most_open, 1);
    ck_assert_uint_le(counters.descriptors, 2);
    for (int i = 0; i < FILES; i++) {
        ck_assert_int_eq(read_list(lists[i], 0, FILE_SIZE, contents[i]), 0);
        extent_list_unref(lists[i]);
    }
}
END_TEST

/* The engine lets go of a file a moment after it has answered; what is being
 * read ahead may hold it a little longer. */
static void
wait_until_only_ours(struct backing *backing)
{
    while (atomic_load(&backing->references) > 1)
        usleep(100);
}

START_TEST(last_unref_closes)
{
    struct io_counters counters;

    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
    ck_assert_uint_ge(open_here(), 1);
    wait_until_only_ours(backings[0]);
    backing_unref(backings[0]);
    backings[0] = NULL;
    while (open_here() > 0) /* a worker may close it */
        usleep(1000);
    io_counters(io, &counters);
    ck_assert_uint_eq(counters.descriptors, 0);
    backings[0] = look_at("a");
    /* The other way round: the engine goes first. */
    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
    io_free(io);
    ck_assert_uint_eq(open_here(), 0);
    start(0, 0);
    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
}
END_TEST

static void *
unref_and_look_again(void *arg)
{
    for (int i = 0; i < 300; i++) {
        struct backing *backing = look_at("a");
        struct extent_list *list = whole_file(backing);
        struct request request;

        backing_unref(backing);
        request_init(&request, 1000);
        io_read(io, list, 17, 1000, keep, &request);
        extent_list_unref(list); /* the engine may have the last reference now */
        expect(wait_for(&request) == 0);
        request_free(&request);
    }
    return NULL;
}

START_TEST(needless_descriptors_are_closed)
{
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(read_backing(backings[i], 0, 100, contents[i]), 0);
    /* Nobody has it open any more. */
    atomic_store(&backings[0]->readers, 0);
    /* It is open, and all that can be read of it is an error. */
    atomic_store(&backings[1]->stale, true);
    /* It is open, and its bytes are to be had by the descriptor alone. */
    ck_assert_int_eq(unlinkat(directory, "c", 0), 0);
    while (open_here() != 1)
        usleep(10000);
    ck_assert_int_eq(read_backing(backings[2], FAR, 5000, contents[2] + FAR), 0);
    ck_assert_int_eq(read_backing(backings[0], FAR, 5000, contents[0] + FAR), 0);
}
END_TEST

/* For a while the process can open nothing: the engine does with the descriptors that it has. When
 * the process can open files again it uses as many as before. */
START_TEST(descriptors_run_out_for_a_while)
{
    struct rlimit before, none;
    int lowest;

    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(read_backing(backings[0], 0, 100, contents[0]), 0);
    wait_until_only_ours(backings[0]); /* no read ahead holds its descriptors */
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
    ck_assert_uint_ge(open_here(), FILES);
}
END_TEST

/* Not even one can be had: an error, and no more than that. */
START_TEST(no_descriptor_at_all)
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

START_TEST(unref_against_eviction)
{
    pthread_t threads[4];

    io_free(io);
    start(4, 2);
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, unref_and_look_again, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    io_free(io);
    io = NULL;
    ck_assert_uint_eq(open_here(), 0);
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

/* Many readers and little memory: all come to their end, within it. */
START_TEST(memory_limit)
{
    struct extent_list *lists[FILES];
    struct crowd crowd = {0};
    struct io_counters counters;
    uint64_t state = 5;

    io_free(io);
    ck_assert_int_eq(io_new(&modes[LITTLE_MEMORY], &io), 0);
    for (int i = 0; i < FILES; i++)
        lists[i] = whole_file(backings[i]);
    for (unsigned i = 0; i < 400; i++) {
        size_t length = 1 + random_next(&state, MIB);

        io_read(io, lists[i % FILES], random_next(&state, FILE_SIZE - MIB), length, count_end,
                &crowd);
        io_counters(io, &counters);
        ck_assert_uint_le(counters.memory, counters.memory_budget);
    }
    while (atomic_load(&crowd.done) < 400)
        usleep(1000);
    ck_assert_uint_eq(atomic_load(&crowd.errors), 0);
    for (int i = 0; i < FILES; i++)
        extent_list_unref(lists[i]);
}
END_TEST

START_TEST(free_waits_for_answers)
{
    struct extent_list *list = whole_file(backings[0]);
    struct crowd crowd = {0};

    for (int i = 0; i < 100; i++)
        io_read(io, list, (uint64_t)i * 19000, MIB, count_end, &crowd);
    extent_list_unref(list);
    io_free(io);
    ck_assert_uint_eq(atomic_load(&crowd.done), 100);
    ck_assert_uint_eq(atomic_load(&crowd.errors), 0);
    ck_assert_uint_eq(atomic_load(&backings[0]->references), 1);
    io = NULL;
}
END_TEST

static atomic_bool first_goes_on, is_answering, is_freed;

static void
answer_first(void *arg, errint_t result, const struct iovec *vectors, int count)
{
    expect(result == 0);
    atomic_store(&is_answering, true);
    while (!atomic_load(&first_goes_on))
        usleep(1000);
}

static void
answer_last(void *arg, errint_t result, const struct iovec *vectors, int count)
{
    expect(result == -ESTALE);
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
free_engine(void *arg)
{
    io_free(io);
    atomic_store(&is_freed, true);
    return NULL;
}

/* The last request is queued, and fails when its turn comes. */
START_TEST(free_waits_for_a_queued_failure)
{
    struct io_options options = {.memory = 4 * MIB, .no_prefetch = true};
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct extent_list *first = whole_file(backings[0]), *last;
    struct timespec until;
    pthread_t reader, closer;

    atomic_store(&first_goes_on, false);
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
    io_read(io, last, 0, last->size, answer_last, NULL); /* more than the memory */
    atomic_store(&backings[1]->stale, true);
    pthread_create(&closer, NULL, free_engine, NULL);
    usleep(100000);
    atomic_store(&first_goes_on, true);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    ck_assert_int_eq(pthread_timedjoin_np(closer, NULL, &until), 0);
    pthread_join(reader, NULL);
    io = NULL;
    extent_list_unref(first);
    extent_list_unref(last);
}
END_TEST

START_TEST(counts)
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

#define SETUP(mode)                                                                                \
    static void setup_##mode(void)                                                                 \
    {                                                                                              \
        setup_for(mode);                                                                           \
    }
SETUP(RING)
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
    tcase_add_test(reads, sequential);
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
    TCase *limits = tcase_create("limits");

    add_reads(made, "ring", setup_RING);
    add_reads(made, "buffered", setup_BUFFERED);
    add_reads(made, "threads", setup_THREADS);
    add_reads(made, "buffered_threads", setup_BUFFERED_THREADS);
    add_reads(made, "no_prefetch", setup_NO_PREFETCH);
    add_reads(made, "little_memory", setup_LITTLE_MEMORY);
    add_reads(made, "in_memory", setup_IN_MEMORY);
    tcase_add_checked_fixture(reads, setup, teardown);
    tcase_add_test(reads, memory_at_once_without_copy);
    tcase_add_test(reads, many_tiny_pieces);
    tcase_add_test(reads, counts);
    tcase_add_test(reads, odd_file);
    tcase_add_test(reads, uses_page_cache);
    tcase_add_test(reads, leaves_no_second_copy);
    tcase_add_checked_fixture(changes, setup, teardown);
    tcase_add_test(changes, truncated);
    tcase_add_test(changes, rewritten_in_place);
    tcase_add_test(changes, replaced_by_rename);
    tcase_add_test(changes, removed);
    tcase_add_test(changes, became_something_else);
    tcase_add_test(changes, other_names_and_modes);
    tcase_add_checked_fixture(limits, setup, teardown);
    tcase_set_timeout(limits, 100);
    tcase_add_test(limits, descriptor_limit);
    tcase_add_test(limits, memory_limit);
    tcase_add_test(limits, last_unref_closes);
    tcase_add_test(limits, needless_descriptors_are_closed);
    tcase_add_test(limits, descriptors_run_out_for_a_while);
    tcase_add_test(limits, no_descriptor_at_all);
    tcase_add_test(limits, unref_against_eviction);
    tcase_add_test(limits, free_waits_for_answers);
    tcase_add_test(limits, free_waits_for_a_queued_failure);
    suite_add_tcase(made, reads);
    suite_add_tcase(made, changes);
    suite_add_tcase(made, limits);
    return made;
}

#include "check_main.h"
