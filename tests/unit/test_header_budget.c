/* SPDX-License-Identifier: Apache-2.0 */
/* The budget for headers, the table cache, and the memory that parsing takes. */
#include "catalog/header_budget.h"
#include "catalog/table_cache.h"
#include "format/index.h"
#include "format/safetensors.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the budget ---- */

struct idle {
    struct header_budget budget;
    unsigned items; /* each of 10 bytes */
};

static bool
evict_item(void *arg)
{
    struct idle *idle = arg;

    if (idle->items == 0)
        return false;
    idle->items--;
    header_budget_give(&idle->budget, 10);
    return true;
}

static void
take_and_keep(struct header_budget *budget, uint64_t bytes)
{
    ck_assert_int_eq(header_budget_take(budget, bytes), 0);
    header_budget_settle(budget, bytes, bytes);
}

START_TEST(test_take_reclaims)
{
    struct idle idle = {.items = 5};

    header_budget_init(&idle.budget, 100, evict_item, &idle);
    take_and_keep(&idle.budget, 50); /* the items' */
    ck_assert_int_eq(header_budget_take(&idle.budget, 70), 0);
    ck_assert_uint_eq(idle.items, 3);
    ck_assert_uint_eq(idle.budget.used, 100);
    ck_assert_int_eq(header_budget_take(&idle.budget, 101), -ENOBUFS);
    ck_assert_uint_eq(idle.items, 3); /* nothing is reclaimed for a charge that can never fit */
    ck_assert_uint_eq(idle.budget.peak, 100);
    ck_assert_uint_eq(idle.budget.refusals, 1);
    header_budget_destroy(&idle.budget);
}
END_TEST

START_TEST(test_take_does_not_wait_for_settled_charges)
{
    struct header_budget budget;

    header_budget_init(&budget, 100, NULL, NULL);
    take_and_keep(&budget, 60);
    ck_assert_int_eq(header_budget_take(&budget, 50), -ENOBUFS);
    ck_assert_int_eq(header_budget_take(&budget, 40), 0);
    header_budget_settle(&budget, 40, 10);
    ck_assert_uint_eq(budget.used, 70);
    header_budget_give(&budget, 70);
    ck_assert_uint_eq(budget.used, 0);
    ck_assert_uint_eq(budget.transient, 0);
    header_budget_destroy(&budget);
}
END_TEST

static void *
take_seventy(void *arg)
{
    return (void *)(intptr_t)header_budget_take(arg, 70);
}

START_TEST(test_take_waits_for_others)
{
    struct header_budget budget;
    pthread_t thread;
    void *error;

    header_budget_init(&budget, 100, NULL, NULL);
    ck_assert_int_eq(header_budget_take(&budget, 60), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, take_seventy, &budget), 0);
    while (atomic_load(&budget.waiters) == 0)
        sched_yield();
    header_budget_settle(&budget, 60, 30);
    ck_assert_int_eq(pthread_join(thread, &error), 0);
    ck_assert_ptr_null(error);
    ck_assert_uint_eq(budget.used, 100);
    header_budget_destroy(&budget);
}
END_TEST

/* ---- the table cache ---- */

static int
file_of(const char *json, struct backing **backing)
{
    uint64_t n = strlen(json);
    int fd = memfd_create("header", 0);
    struct file_identity identity;
    unsigned char first[8];

    ck_assert_int_ge(fd, 0);
    for (unsigned i = 0; i < 8; i++)
        first[i] = (unsigned char)(n >> 8 * i);
    ck_assert_int_eq(write(fd, first, 8), 8);
    ck_assert_int_eq(write(fd, json, n), (ssize_t)n);
    ck_assert_int_eq(file_identity_from_fd(&identity, fd), 0);
    *backing = backing_new(AT_FDCWD, "header", &identity);
    ck_assert_ptr_nonnull(*backing);
    return fd;
}

static const char small[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
                            "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";

struct caching {
    struct header_budget budget;
    struct table_cache cache;
};

static struct caching *
caching_new(uint64_t limit)
{
    struct caching *caching = calloc(1, sizeof(*caching));

    ck_assert_ptr_nonnull(caching);
    header_budget_init(&caching->budget, limit, NULL, NULL);
    table_cache_init(&caching->cache, &caching->budget);
    return caching;
}

static void
caching_free(struct caching *caching)
{
    ck_assert_uint_eq(caching->budget.used, 0);
    ck_assert_uint_eq(caching->budget.transient, 0);
    ck_assert_uint_eq(caching->cache.bytes, 0);
    for (int i = 0; i < TABLE_BUCKETS; i++)
        ck_assert_ptr_null(caching->cache.buckets[i]);
    table_cache_destroy(&caching->cache);
    header_budget_destroy(&caching->budget);
    free(caching);
}

START_TEST(test_one_table_of_one_file)
{
    struct caching *caching = caching_new(1 << 20);
    struct table_cache *cache = &caching->cache;
    struct kept_table *first, *second, *third;
    struct backing *backing, *linked, *changed;
    struct file_identity identity;
    const struct tensor_ref *by_name;
    struct reason reason;
    int fd = file_of(small, &backing);

    ck_assert_int_eq(table_cache_read(cache, fd, backing, &container_safetensors, &first, &reason),
                     0);
    identity = backing->identity;
    identity.mode = 0100000;
    identity.links++;
    linked = backing_new(AT_FDCWD, "another name", &identity);
    ck_assert_ptr_nonnull(linked);
    ck_assert_int_eq(table_cache_read(cache, -1, linked, &container_safetensors, &second, &reason),
                     0);
    ck_assert_ptr_eq(first, second);
    ck_assert_uint_eq(caching->budget.used, first->table->bytes);
    identity.changed.tv_nsec ^= 1;
    changed = backing_new(AT_FDCWD, "header", &identity);
    ck_assert_ptr_nonnull(changed);
    ck_assert_int_eq(table_cache_read(cache, fd, changed, &container_safetensors, &third, &reason),
                     0);
    ck_assert_ptr_ne(third, first);
    table_cache_unref(cache, third);
    by_name = table_cache_by_name(cache, first);
    ck_assert_ptr_nonnull(by_name);
    ck_assert_ptr_eq(table_cache_by_name(cache, first), by_name);
    ck_assert_int_eq(first->table->text[first->table->tensors[by_name[0].tensor].name], 'a');
    ck_assert_uint_eq(caching->budget.used, first->table->bytes + 2 * sizeof(*by_name));
    table_cache_unref(cache, second);
    table_cache_forget(cache, first);
    ck_assert_int_eq(table_cache_read(cache, fd, linked, &container_safetensors, &second, &reason),
                     0);
    ck_assert_ptr_ne(first, second);
    table_cache_unref(cache, second);
    table_cache_unref(cache, first);
    backing_unref(changed);
    backing_unref(linked);
    backing_unref(backing);
    close(fd);
    caching_free(caching);
}
END_TEST

/* The file changed, and its identity did not, as by a write to a mapping on tmpfs: a reader by
 * another name does not get the old table. */
START_TEST(test_table_of_a_stale_backing_is_not_used)
{
    struct caching *caching = caching_new(1 << 20);
    struct table_cache *cache = &caching->cache;
    struct kept_table *first, *second;
    struct backing *backing, *linked;
    struct reason reason;
    int fd = file_of(small, &backing);

    linked = backing_new(AT_FDCWD, "another name", &backing->identity);
    ck_assert_ptr_nonnull(linked);
    ck_assert_int_eq(table_cache_read(cache, fd, backing, &container_safetensors, &first, &reason),
                     0);
    atomic_store(&backing->stale, true);
    ck_assert_int_eq(table_cache_read(cache, fd, linked, &container_safetensors, &second, &reason),
                     0);
    ck_assert_ptr_ne(first, second);
    table_cache_unref(cache, first);
    table_cache_unref(cache, second);
    backing_unref(linked);
    backing_unref(backing);
    close(fd);
    caching_free(caching);
}
END_TEST

/* A reader that is admitted twice and keeps a table of `kept_bytes`. */
static size_t kept_bytes;

static errint_t
read_in_two_steps(int fd, uint64_t size, st_admit *admit, void *arg, struct st_table **table,
                  struct reason *reason)
{
    const struct st_counts counts = {.text = kept_bytes - sizeof(struct st_table)};
    struct st_builder builder;
    errint_t error = st_admit_bytes(admit, arg, 100000, reason);

    if (!error)
        error = st_admit_bytes(admit, arg, 5000, reason);
    if (error || kept_bytes == 0)
        return error ? error : reason_set(reason, -EBADMSG, "Bad", "refused");
    ck_assert(st_builder_init(&builder, &counts));
    *table = builder.table;
    return 0;
}

static const struct container two_steps = {.read = read_in_two_steps};

/* Whatever a reader is admitted, only what it keeps stays charged. A file may be read as two
 * containers. */
START_TEST(test_reader_that_is_admitted_twice)
{
    static const size_t kept[] = {0, 1000, 50000};
    struct caching *caching = caching_new(200000);
    struct backing *backing;
    struct reason reason;
    int fd = file_of(small, &backing);

    for (size_t i = 0; i < 3; i++) {
        struct kept_table *table = NULL, *other;

        kept_bytes = kept[i];
        ck_assert_int_eq(
            table_cache_read(&caching->cache, fd, backing, &two_steps, &table, &reason),
            kept[i] ? 0 : -EBADMSG);
        ck_assert_uint_eq(caching->budget.used, kept[i]);
        ck_assert_uint_eq(caching->budget.transient, 0);
        ck_assert_int_eq(
            table_cache_read(&caching->cache, fd, backing, &container_safetensors, &other, &reason),
            0);
        ck_assert_ptr_ne(table, other);
        table_cache_unref(&caching->cache, other);
        table_cache_unref(&caching->cache, table);
    }
    ck_assert_uint_ge(caching->budget.peak, 105000);
    caching->budget.limit = 103000; /* the second step does not fit */
    ck_assert_int_eq(table_cache_read(&caching->cache, fd, backing, &two_steps, NULL, &reason),
                     -ENOBUFS);
    backing_unref(backing);
    close(fd);
    caching_free(caching);
}
END_TEST

/* Tensors that share a storage are one piece, so that pieces do not overlap. */
START_TEST(test_layout_of_tensors_that_overlap)
{
    static const struct st_entry entries[] = {
        {.name = "z", .name_length = 1, .begin = 100, .end = 200},
        {.name = "a", .name_length = 1, .begin = 100, .end = 200},
        {.name = "b", .name_length = 1, .begin = 150, .end = 300},
        {.name = "c", .name_length = 1, .begin = 300, .end = 300},
        {.name = "e", .name_length = 1, .begin = 300, .end = 310},
        {.name = "d", .name_length = 1, .begin = 400, .end = 500},
    };
    const struct st_counts counts = {.tensors = 6, .text = 6};
    struct header_budget budget;
    struct st_builder builder;
    struct layout *layout;

    header_budget_init(&budget, UINT64_MAX, NULL, NULL);
    ck_assert(st_builder_init(&builder, &counts));
    for (size_t i = 0; i < 6; i++)
        ck_assert(st_builder_add(&builder, &entries[i]));
    st_builder_sort(&builder);
    layout = layout_of_table(builder.table, &budget);
    ck_assert_ptr_nonnull(layout);
    ck_assert_uint_eq(layout->count, 3);
    ck_assert_uint_eq(layout->pieces[0].start, 100);
    ck_assert_uint_eq(layout->pieces[0].end, 300);
    ck_assert_uint_eq(layout->pieces[1].start, 300);
    ck_assert_uint_eq(layout->pieces[1].end, 310);
    ck_assert_uint_eq(layout->pieces[2].start, 400);
    ck_assert_uint_eq(layout->pieces[2].end, 500);
    ck_assert_uint_eq(layout->pieces[0].next, 2); /* by name: a, d, e */
    ck_assert_uint_eq(layout->pieces[2].next, 1);
    ck_assert_uint_eq(layout->pieces[1].next, 3);
    budget.used = layout->charge.bytes;
    layout_unref(layout);
    ck_assert_uint_eq(budget.used, 0);
    st_table_free(builder.table);
    header_budget_destroy(&budget);
}
END_TEST

START_TEST(test_refused_header_is_not_kept)
{
    struct caching *caching = caching_new(1 << 20);
    struct backing *backing;
    struct kept_table *kept;
    struct reason reason;
    int fd = file_of("{", &backing);

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(
            table_cache_read(&caching->cache, fd, backing, &container_safetensors, &kept, &reason),
            -EBADMSG);
        ck_assert_str_eq(reason.rule, "InvalidHeaderDeserialization");
    }
    backing_unref(backing);
    close(fd);
    caching_free(caching);
}
END_TEST

/* A header of `length` bytes. */
static int
long_file(size_t length, struct backing **backing)
{
    char *json = malloc(length + 1);
    int fd;

    ck_assert_ptr_nonnull(json);
    memset(json, ' ', length);
    memcpy(json, "{}", 2);
    json[length] = '\0';
    fd = file_of(json, backing);
    free(json);
    return fd;
}

START_TEST(test_header_without_room)
{
    struct caching *caching = caching_new(ST_PARSE_FACTOR * 200000);
    struct backing *backing;
    struct kept_table *kept;
    struct reason reason;
    int fd = long_file(200000, &backing);

    ck_assert_int_eq(
        table_cache_read(&caching->cache, fd, backing, &container_safetensors, &kept, &reason),
        -ENOBUFS);
    ck_assert_str_eq(reason.rule, "NoMemoryForHeaders");
    ck_assert_uint_eq(caching->budget.refusals, 1);
    caching->budget.limit *= 2;
    ck_assert_int_eq(
        table_cache_read(&caching->cache, fd, backing, &container_safetensors, &kept, &reason), 0);
    table_cache_unref(&caching->cache, kept);
    backing_unref(backing);
    close(fd);
    caching_free(caching);
}
END_TEST

struct reader {
    struct caching *caching;
    struct backing *backing;
    int fd;
    struct kept_table *kept;
    errint_t error;
    bool has_table; /* when it was returned */
};

static void *
read_one(void *arg)
{
    struct reader *reader = arg;
    struct reason reason;

    reader->error = table_cache_read(&reader->caching->cache, reader->fd, reader->backing,
                                     &container_safetensors, &reader->kept, &reason);
    reader->has_table = !reader->error && reader->kept->table;
    return NULL;
}

static unsigned
references_of(struct table_cache *cache, const struct backing *backing)
{
    uint64_t bucket = (backing->identity.inode ^ backing->identity.device) % TABLE_BUCKETS;
    unsigned references;

    pthread_mutex_lock(&cache->lock);
    references = cache->buckets[bucket]->references;
    pthread_mutex_unlock(&cache->lock);
    return references;
}

/* Fills the budget, and makes two readers of one file. */
static struct caching *
two_readers(struct reader readers[2])
{
    struct caching *caching = caching_new(10 * ST_PARSE_FACTOR * 200000);

    ck_assert_int_eq(header_budget_take(&caching->budget, caching->budget.limit), 0);
    readers[0] = (struct reader){.caching = caching};
    readers[0].fd = long_file(200000, &readers[0].backing);
    readers[1] = readers[0];
    return caching;
}

/* Starts two threads while the budget is full: the first waits in the budget, the second for the
 * table of the first. */
static void
start_readers(struct caching *caching, struct reader readers[2], pthread_t threads[2])
{
    ck_assert_int_eq(pthread_create(&threads[0], NULL, read_one, &readers[0]), 0);
    while (atomic_load(&caching->budget.waiters) == 0)
        sched_yield();
    ck_assert_int_eq(pthread_create(&threads[1], NULL, read_one, &readers[1]), 0);
    while (references_of(&caching->cache, readers[0].backing) < 2)
        sched_yield();
}

/* Frees the budget, and waits until both have a table. */
static void
finish_readers(struct caching *caching, struct reader readers[2], const pthread_t threads[2])
{
    header_budget_settle(&caching->budget, caching->budget.limit, 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(readers[i].error, 0);
        ck_assert(readers[i].has_table);
    }
}

/* The first thread waits in the budget. The second waits for the table of the first and does not
 * parse: its own descriptor cannot be read. */
START_TEST(test_two_threads_parse_once)
{
    struct reader readers[2];
    struct caching *caching = two_readers(readers);
    pthread_t threads[2];

    readers[1].fd = -1;
    start_readers(caching, readers, threads);
    finish_readers(caching, readers, threads);
    ck_assert_ptr_eq(readers[0].kept, readers[1].kept);
    for (int i = 0; i < 2; i++)
        table_cache_unref(&caching->cache, readers[i].kept);
    backing_unref(readers[0].backing);
    close(readers[0].fd);
    caching_free(caching);
}
END_TEST

/* The same, but the file changes while the first thread parses it: the second parses it again. */
START_TEST(test_backing_becomes_stale_while_it_is_parsed)
{
    struct reader readers[2];
    struct caching *caching = two_readers(readers);
    pthread_t threads[2];

    readers[1].backing = backing_new(AT_FDCWD, "another name", &readers[0].backing->identity);
    ck_assert_ptr_nonnull(readers[1].backing);
    start_readers(caching, readers, threads);
    atomic_store(&readers[0].backing->stale, true);
    finish_readers(caching, readers, threads);
    ck_assert_ptr_ne(readers[0].kept, readers[1].kept);
    for (int i = 0; i < 2; i++) {
        table_cache_unref(&caching->cache, readers[i].kept);
        backing_unref(readers[i].backing);
    }
    close(readers[0].fd);
    caching_free(caching);
}
END_TEST

/* A file of `count` empty tensors. */
static int
file_of_many(unsigned count, struct backing **backing)
{
    struct buffer json = BUFFER_INIT;
    int fd;

    for (unsigned i = 0; i < count; i++)
        buffer_addf(&json, "%c\"t%u\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                    i ? ',' : '{', i);
    buffer_add_text(&json, "}");
    buffer_add_char(&json, '\0');
    ck_assert(!buffer_failed(&json));
    fd = file_of(json.data, backing);
    buffer_free(&json);
    return fd;
}

struct sorter {
    struct caching *caching;
    struct kept_table *kept;
    const struct tensor_ref *by_name;
};

static void *
sort_one(void *arg)
{
    struct sorter *sorter = arg;

    sorter->by_name = table_cache_by_name(&sorter->caching->cache, sorter->kept);
    return NULL;
}

/* A table that waits for memory does not delay one that is sorted with the memory that is left. */
START_TEST(test_sorting_waits_for_no_other_table)
{
    struct caching *caching = caching_new(1 << 20);
    struct table_cache *cache = &caching->cache;
    struct sorter sorters[2] = {{.caching = caching}, {.caching = caching}};
    struct backing *backings[2];
    struct reason reason;
    pthread_t thread;
    uint64_t others;

    for (int i = 0; i < 2; i++) {
        int fd = file_of_many(i ? 2 : 1000, &backings[i]);

        ck_assert_int_eq(table_cache_read(cache, fd, backings[i], &container_safetensors,
                                          &sorters[i].kept, &reason),
                         0);
        close(fd);
    }
    others = caching->budget.limit - caching->budget.used - 1000;
    ck_assert_int_eq(header_budget_take(&caching->budget, others), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, sort_one, &sorters[0]), 0);
    while (atomic_load(&caching->budget.waiters) == 0)
        sched_yield();
    sort_one(&sorters[1]);
    header_budget_settle(&caching->budget, others, 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_nonnull(sorters[i].by_name);
        table_cache_unref(cache, sorters[i].kept);
        backing_unref(backings[i]);
    }
    caching_free(caching);
}
END_TEST

static atomic_int taken; /* the result of take_too_much(); 1: it waits */

static void *
take_too_much(void *budget)
{
    atomic_store(&taken, header_budget_take(budget, 60));
    return NULL;
}

/* Charges that come and go do not extend the wait for one that stays. */
START_TEST(test_take_does_not_wait_for_ever)
{
    struct header_budget budget;
    pthread_t thread;

    atomic_store(&taken, 1);
    header_budget_init(&budget, 100, NULL, NULL);
    ck_assert_int_eq(header_budget_take(&budget, 50), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, take_too_much, &budget), 0);
    while (atomic_load(&taken) == 1) {
        ck_assert_int_eq(header_budget_take(&budget, 10), 0);
        header_budget_settle(&budget, 10, 0);
        usleep(100000);
    }
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(atomic_load(&taken), -ENOBUFS);
    header_budget_settle(&budget, 50, 0);
    header_budget_destroy(&budget);
}
END_TEST

/* ---- memory for parsing ---- */

enum { TEXT_BYTES = 16 << 20, NOISE_BYTES = 2 << 20 };

static void
entry_metadata(struct buffer *out, uint32_t i)
{
    if (i == 0)
        buffer_add_text(out, "\"__metadata__\":{\"b\":\"\"");
    else
        buffer_add_text(out, ",\"\":\"\"");
}

static void
entry_tensor(struct buffer *out, uint32_t i)
{
    buffer_addf(out, "%s\"%x\":[\"U8\",[0],[0,0]]", i ? "," : "", UINT32_MAX - i);
}

static void
entry_byte(struct buffer *out, uint32_t i)
{
    buffer_addf(out, "%s\"%x\":[\"U8\",[1],[%u,%u]]", i ? "," : "", UINT32_MAX - i, i, i + 1);
}

static void
entry_escapes(struct buffer *out, uint32_t i)
{
    buffer_addf(out, "%s\"\\u00e9%x\":[\"Q%x\",[],[0,0]]", i ? "," : "", UINT32_MAX - i, i);
}

static void
entry_dims(struct buffer *out, uint32_t i)
{
    buffer_add_text(out, i ? ",0" : "\"a\":[\"U8\",[0");
}

static void
entry_index(struct buffer *out, uint32_t i)
{
    buffer_addf(out, "%s\"%x\":\"%x.safetensors\"", i ? "," : "{\"weight_map\":{", UINT32_MAX - i,
                i);
}

static const struct {
    void (*entry)(struct buffer *out, uint32_t i);
    const char *end;
    bool is_index;
} worst[] = {
    {entry_metadata, "}}", false},    {entry_tensor, "}", false}, {entry_escapes, "}", false},
    {entry_dims, "],[0,0]]}", false}, {entry_index, "}}", true},  {entry_byte, "}", false},
};

/* Returns the number of entries. */
static uint32_t
write_worst(int i, struct buffer *text)
{
    uint32_t n = 0;

    if (!worst[i].is_index)
        buffer_add_char(text, '{');
    while (text->length < TEXT_BYTES)
        worst[i].entry(text, n++);
    buffer_add_text(text, worst[i].end);
    return n;
}

/* As table_cache.c does: the table, then its layout when the text is freed. */
static bool
parse_header(struct buffer *text, uint64_t data)
{
    struct header_budget budget;
    struct st_table *table = NULL;
    struct layout *layout;
    struct reason reason;

    header_budget_init(&budget, UINT64_MAX, NULL, NULL);
    if (st_table_parse(text->data, text->length, 8 + text->length + data, &table, &reason) != 0)
        return false;
    buffer_free(text);
    layout = layout_of_table(table, &budget);
    return (layout != NULL) == (data > 0);
}

/* Returns the peak memory of a child process that parses the text, or only holds it. */
static uint64_t
peak_of(struct buffer *text, bool is_index, uint64_t data, bool parse)
{
    struct rusage usage;
    struct reason reason;
    struct st_index *index = NULL;
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (!parse)
            _exit(0);
        if (is_index)
            _exit(st_index_parse(text->data, text->length, &container_safetensors, &index,
                                 &reason) != 0);
        _exit(!parse_header(text, data));
    }
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(wait4(pid, &status, 0, &usage), pid);
    ck_assert_int_eq(status, 0);
    return (uint64_t)usage.ru_maxrss * 1024;
}

START_TEST(test_factor)
{
    struct buffer text = BUFFER_INIT;
    uint64_t factor = worst[_i].is_index ? ST_INDEX_FACTOR : ST_PARSE_FACTOR;
    uint64_t idle, parsed, data;

    data = write_worst(_i, &text);
    data = worst[_i].entry == entry_byte ? data : 0;
    ck_assert(!buffer_failed(&text));
    idle = peak_of(&text, worst[_i].is_index, data, false);
    parsed = peak_of(&text, worst[_i].is_index, data, true);
    printf("# worst %d: %.2f times the text\n", _i,
           1 + (double)(parsed - idle) / (double)text.length);
#ifndef __SANITIZE_ADDRESS__
    /* Both include the text itself. */
    ck_assert_uint_le(parsed - idle, (factor - 1) * text.length + NOISE_BYTES);
#endif
    ck_assert_uint_gt(factor, 1);
    buffer_free(&text);
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("header_budget");
    TCase *budget = tcase_create("budget"), *waiting = tcase_create("waiting"),
          *cache = tcase_create("cache"), *factor = tcase_create("factor");

    tcase_add_test(budget, test_take_reclaims);
    tcase_add_test(budget, test_take_does_not_wait_for_settled_charges);
    tcase_add_test(budget, test_take_waits_for_others);
    tcase_add_test(waiting, test_take_does_not_wait_for_ever);
    suite_add_tcase(made, budget);
    tcase_set_timeout(waiting, 6 * HEADER_BUDGET_WAIT_SECONDS);
    suite_add_tcase(made, waiting);
    tcase_add_test(cache, test_one_table_of_one_file);
    tcase_add_test(cache, test_table_of_a_stale_backing_is_not_used);
    tcase_add_test(cache, test_reader_that_is_admitted_twice);
    tcase_add_test(cache, test_layout_of_tensors_that_overlap);
    tcase_add_test(cache, test_refused_header_is_not_kept);
    tcase_add_test(cache, test_header_without_room);
    tcase_add_test(cache, test_two_threads_parse_once);
    tcase_add_test(cache, test_backing_becomes_stale_while_it_is_parsed);
    tcase_add_test(cache, test_sorting_waits_for_no_other_table);
    suite_add_tcase(made, cache);
    tcase_set_timeout(factor, 300);
    tcase_add_loop_test(factor, test_factor, 0, sizeof(worst) / sizeof(worst[0]));
    suite_add_tcase(made, factor);
    return made;
}

#include "check_main.h"
