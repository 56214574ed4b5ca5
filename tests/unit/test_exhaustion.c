/* SPDX-License-Identifier: Apache-2.0 */
/* Out of memory: the n-th allocation fails, for every n, while parsing, listing and reading. The
 * result must be ENOMEM or success, and the next one success. The linker replaces the allocation
 * functions with the ones here (--wrap). AddressSanitizer finds leaks. */
#include "catalog/catalog.h"
#include "format/index.h"
#include "format/safetensors.h"
#include "io/io.h"
#include "view/derived.h"
#include "view/view.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TENSOR_BYTES 5000 /* of each shard */
#define ALLOCATIONS_MAX 20000

/* ---- allocations that fail ---- */

static atomic_long until_failure; /* allocations until one fails; 0 or less: none fails */
static atomic_bool has_failed;

static bool
allocation_fails(void)
{
    if (atomic_load(&until_failure) <= 0 || atomic_fetch_sub(&until_failure, 1) != 1)
        return false;
    atomic_store(&has_failed, true);
    errno = ENOMEM;
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
char *__real_realpath(const char *path, char *resolved);
void *__real_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_realpath(const char *path, char *resolved);
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset);
int __wrap_asprintf(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));

void *
__wrap_malloc(size_t size)
{
    return allocation_fails() ? NULL : __real_malloc(size);
}

void *
__wrap_calloc(size_t count, size_t size)
{
    return allocation_fails() ? NULL : __real_calloc(count, size);
}

void *
__wrap_realloc(void *old, size_t size)
{
    return allocation_fails() ? NULL : __real_realloc(old, size);
}

char *
__wrap_strdup(const char *text)
{
    return allocation_fails() ? NULL : __real_strdup(text);
}

char *
__wrap_realpath(const char *path, char *resolved)
{
    return allocation_fails() ? NULL : __real_realpath(path, resolved);
}

void *
__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    return allocation_fails() ? MAP_FAILED
                              : __real_mmap(address, length, protection, flags, fd, offset);
}

/* glibc redirects mmap() to it where offsets have 64 bits. */
void *
__wrap_mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    return __wrap_mmap(address, length, protection, flags, fd, offset);
}

int
__wrap_asprintf(char **text, const char *format, ...)
{
    va_list arguments;
    int length;

    if (allocation_fails())
        return -1;
    va_start(arguments, format);
    length = vasprintf(text, format, arguments);
    va_end(arguments);
    return length;
}

/* Calls `work` with the first allocation failing, then with the second, and so on until none fails.
 * Returns the number of failures. `work` must not use Check, which allocates memory. */
static long
fail_each(errint_t (*work)(void *), void *arg, void (*after)(void *))
{
    for (long n = 1; n < ALLOCATIONS_MAX; n++) {
        errint_t error;
        bool failed;

        atomic_store(&has_failed, false);
        atomic_store(&until_failure, n);
        error = work(arg);
        atomic_store(&until_failure, 0);
        failed = atomic_load(&has_failed);
        ck_assert_msg(error == 0 || (failed && error == -ENOMEM),
                      "allocation %ld: %s instead of ENOMEM", n, strerror(-error));
        if (after)
            after(arg);
        if (!failed)
            return n - 1;
    }
    ck_abort_msg("an allocation still fails after %d calls", ALLOCATIONS_MAX);
    return 0;
}

/* ---- parsing ---- */

static const char *const header =
    "{\"__metadata__\":{\"format\":\"pt\",\"a\\u0041\":\"b\"},"
    "\"first\\n\":{\"dtype\":\"U8\",\"shape\":[10],\"data_offsets\":[0,10]},"
    "\"second\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[10,18]}}";

static const char *const index_text =
    "{\"metadata\":{\"total_size\":18,\"b\":[1,{\"c\":null}]},"
    "\"weight_map\":{\"first\\n\":\"model-00001-of-00002.safetensors\","
    "\"second\":\"model-00002-of-00002.safetensors\"}}";

static errint_t
parse_header(void *arg)
{
    struct st_table *table = NULL;
    struct reason reason = {0};
    errint_t error =
        st_table_parse(header, strlen(header), 8 + strlen(header) + 18, &table, &reason);

    if (error && table)
        return -EPROTO;
    st_table_free(table);
    return error;
}

static errint_t
parse_index(void *arg)
{
    struct st_index *index = NULL;
    struct reason reason = {0};
    errint_t error =
        st_index_parse(index_text, strlen(index_text), &container_safetensors, &index, &reason);

    if (error && index)
        return -EPROTO;
    st_index_free(index);
    return error;
}

START_TEST(parsing_out_of_memory)
{
    ck_assert_int_gt(fail_each(parse_header, NULL, NULL), 0);
    ck_assert_int_gt(fail_each(parse_index, NULL, NULL), 0);
}
END_TEST

/* ---- listing and reading ---- */

static char directory_path[sizeof("/tmp/fstfs-test-exhaustion-XXXXXX")];
static char content[TENSOR_BYTES];

struct mount {
    struct io_options io_options;
    struct view_options view_options;
    struct catalog *catalog;
    struct view *view;
    struct io *io;
    unsigned files; /* read by the last walk */
    uint64_t bytes;
};

static void
write_shard(const char *name, const char *tensor)
{
    char head[200];
    uint64_t length = (uint64_t)snprintf(
        head, sizeof(head), "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}",
        tensor, TENSOR_BYTES, TENSOR_BYTES);
    FILE *f;

    ck_assert_int_eq(chdir(directory_path), 0);
    f = fopen(name, "we");
    ck_assert_ptr_nonnull(f);
    fwrite(&length, 8, 1, f);
    fwrite(head, length, 1, f);
    fwrite(content, TENSOR_BYTES, 1, f);
    ck_assert_int_eq(fclose(f), 0);
}

static void
setup(void)
{
    FILE *f;

    strcpy(directory_path, "/tmp/fstfs-test-exhaustion-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory_path));
    memset(content, 7, sizeof(content));
    write_shard("model-00001-of-00002.safetensors", "first\\n");
    write_shard("model-00002-of-00002.safetensors", "second");
    f = fopen("model.safetensors.index.json", "we");
    ck_assert_ptr_nonnull(f);
    fputs(index_text, f);
    ck_assert_int_eq(fclose(f), 0);
}

static void
teardown(void)
{
    ck_assert_int_eq(chdir(directory_path), 0);
    ck_assert_int_eq(unlink("model-00001-of-00002.safetensors"), 0);
    ck_assert_int_eq(unlink("model-00002-of-00002.safetensors"), 0);
    ck_assert_int_eq(unlink("model.safetensors.index.json"), 0);
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(rmdir(directory_path), 0);
}

static errint_t
mount_start(struct mount *mount)
{
    struct catalog_options options = {.source = directory_path, .derived_free = view_derived_free};
    errint_t error = catalog_new(&options, &mount->catalog);

    if (!error)
        error = io_new(&mount->io_options, &mount->io);
    if (!error)
        error = view_new(mount->catalog, &mount->view_options, &mount->view);
    return error;
}

static void
mount_stop(struct mount *mount)
{
    io_free(mount->io);
    if (mount->view)
        view_free(mount->view);
    if (mount->catalog)
        catalog_free(mount->catalog);
    mount->io = NULL;
    mount->view = NULL;
    mount->catalog = NULL;
}

struct answer {
    pthread_mutex_t lock;
    pthread_cond_t has_ended;
    bool is_done;
    errint_t result;
    uint64_t bytes;
};

static void
record_answer(void *arg, const struct io_answer *given)
{
    struct answer *answer = arg;

    pthread_mutex_lock(&answer->lock);
    for (int i = 0; i < given->count; i++)
        answer->bytes += given->vectors[i].iov_len;
    answer->result = given->result;
    answer->is_done = true;
    pthread_cond_signal(&answer->has_ended);
    pthread_mutex_unlock(&answer->lock);
}

static errint_t
read_file(struct mount *mount, node_id id)
{
    struct answer answer = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, 0};
    struct extent_list *list;
    bool live;
    errint_t error = view_open(mount->view, NULL, id, &list, &live);

    if (error)
        return error;
    if (list->size > 0) {
        uint64_t size = list->size;

        io_read(mount->io, list, 0, (size_t)size, record_answer, &answer);
        pthread_mutex_lock(&answer.lock);
        while (!answer.is_done)
            pthread_cond_wait(&answer.has_ended, &answer.lock);
        pthread_mutex_unlock(&answer.lock);
        if (answer.bytes != (answer.result ? 0 : size))
            answer.result = -EPROTO;
    }
    mount->files++;
    mount->bytes += answer.bytes;
    view_close(mount->view, list);
    return answer.result;
}

static errint_t
read_xattrs(struct mount *mount, node_id id)
{
    struct buffer names = BUFFER_INIT, value = BUFFER_INIT;
    errint_t error = view_listxattr(mount->view, id, &names);

    for (size_t i = 0; !error && i < names.length; i += strlen(names.data + i) + 1) {
        error = view_getxattr(mount->view, NULL, id, names.data + i, &value);
        buffer_free(&value);
    }
    buffer_free(&names);
    return error;
}

static errint_t walk(struct mount *mount, node_id id);

static errint_t
visit(struct mount *mount, struct view_directory *directory, uint64_t position)
{
    struct stat st;
    node_id id;
    errint_t error = view_readdir_lookup(mount->view, directory, position, &id, &st);

    if (error)
        return error;
    if (S_ISDIR(st.st_mode)) {
        error = walk(mount, id);
    } else {
        error = read_file(mount, id);
        if (!error)
            error = read_xattrs(mount, id);
    }
    view_forget(mount->view, id, 1);
    return error;
}

/* NOLINTNEXTLINE(misc-no-recursion): the tree has three levels */
static errint_t
walk(struct mount *mount, node_id id)
{
    struct view_directory *directory;
    const char *name;
    struct stat st;
    errint_t error = view_opendir(mount->view, NULL, id, &directory);

    if (error)
        return error;
    for (uint64_t i = 2; !error && view_readdir(mount->view, directory, i, &name, &st) == 0; i++) {
        error = visit(mount, directory, i);
        if (error == -ESTALE) /* the kernel repeats a lookup if the open after it returns this */
            error = visit(mount, directory, i);
    }
    view_closedir(mount->view, directory);
    return error;
}

static errint_t
walk_all(struct mount *mount)
{
    mount->files = 0;
    mount->bytes = 0;
    return walk(mount, VIEW_ROOT_ID);
}

static errint_t
start_and_walk(void *arg)
{
    struct mount *mount = arg;
    errint_t error = mount_start(mount);

    return error ? error : walk_all(mount);
}

/* Whatever failed before, the mount must work now. */
static void
check_and_stop(void *arg)
{
    struct mount *mount = arg;

    if (mount->view) {
        ck_assert_int_eq(walk_all(mount), 0);
        ck_assert_uint_eq(catalog_count_problems(mount->catalog), 0);
        ck_assert_uint_eq(mount->files, 3 + 1 + 3 + 2);
        ck_assert_uint_gt(mount->bytes, (uint64_t)TENSOR_BYTES * 2 * 4);
    }
    mount_stop(mount);
}

static void
stop_after(void *arg)
{
    mount_stop(arg);
}

static const struct io_options engines[] = {
    {.no_ring = true, .threads = 2},
    {.rings = 1},
};

START_TEST(listing_and_reading_out_of_memory)
{
    struct mount mount = {.io_options = engines[_i], .view_options = {.root = -1}};

    ck_assert_int_gt(fail_each(start_and_walk, &mount, check_and_stop), 100);
}
END_TEST

START_TEST(recut_out_of_memory)
{
    struct mount mount = {.io_options = engines[0],
                          .view_options = {.root = VIEW_SHARDS, .shards = 2}};

    ck_assert_int_gt(fail_each(start_and_walk, &mount, stop_after), 50);
}
END_TEST

static void *
malloc_or_fail(size_t size)
{
    return __wrap_malloc(size);
}

static Suite *
suite(void)
{
    Suite *s = suite_create("exhaustion");
    TCase *t = tcase_create("parsing");
    cJSON_Hooks hooks = {malloc_or_fail, free};

    cJSON_InitHooks(&hooks);
    tcase_add_test(t, parsing_out_of_memory);
    suite_add_tcase(s, t);
    t = tcase_create("tree");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 0);
    tcase_add_loop_test(t, listing_and_reading_out_of_memory, 0, 2);
    tcase_add_test(t, recut_out_of_memory);
    suite_add_tcase(s, t);
    return s;
}

#include "check_main.h"
