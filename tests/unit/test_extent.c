/* SPDX-License-Identifier: Apache-2.0 */
/* Extent lists, compared with a model that stores the place of each byte; identities. */
#include "base/extent.h"
#include "expect.h"
#include "random.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 300
#define SOURCES 3 /* of each kind */
#define SOURCE_SIZE 200
#define MOST_BYTES 4096

/* The place of a byte in the model. */
struct place {
    const void *source;
    uint64_t offset;
};

struct model {
    struct backing *backings[SOURCES];
    struct blob *blobs[SOURCES];
    struct place bytes[MOST_BYTES];
    size_t size;
};

static void
model_init(struct model *model, uint64_t seed)
{
    struct file_identity identity = {.size = SOURCE_SIZE};

    memset(model, 0, sizeof(*model));
    random_state = seed;
    for (int i = 0; i < SOURCES; i++) {
        model->backings[i] = backing_new(AT_FDCWD, "x", &identity);
        model->blobs[i] =
            blob_new(&(struct buffer){.data = calloc(1, SOURCE_SIZE), .length = SOURCE_SIZE});
    }
}

static void
model_free(struct model *model)
{
    for (int i = 0; i < SOURCES; i++) {
        ck_assert_uint_eq(atomic_load(&model->backings[i]->references), 1);
        ck_assert_uint_eq(atomic_load(&model->blobs[i]->references), 1);
        backing_unref(model->backings[i]);
        blob_unref(model->blobs[i]);
    }
}

/* Adds a random run to both; it often continues where the last run ended. */
static void
model_add(struct model *model, struct extent_builder *builder)
{
    const struct place *last = model->size ? &model->bytes[model->size - 1] : NULL;
    uint64_t which = random_below(SOURCES);
    bool in_memory = random_below(2);
    uint64_t offset = random_below(SOURCE_SIZE);
    uint64_t length;
    const void *source;

    if (last && random_below(3) == 0) {
        for (which = 0; which < SOURCES; which++)
            if (last->source == model->backings[which] || last->source == model->blobs[which])
                break;
        /* cppcheck-suppress arrayIndexOutOfBounds ; the last run came from one of them */
        in_memory = last->source == model->blobs[which];
        offset = last->offset + 1;
    }
    length = random_below(4) ? random_below(SOURCE_SIZE - offset + 1) : 0;
    if (length > MOST_BYTES - model->size)
        length = MOST_BYTES - model->size;
    source = in_memory ? (void *)model->blobs[which] : (void *)model->backings[which];
    if (in_memory)
        extent_builder_add_blob(builder, model->blobs[which], offset, length);
    else
        extent_builder_add_backing(builder, model->backings[which], offset, length);
    for (uint64_t i = 0; i < length; i++)
        model->bytes[model->size++] = (struct place){source, offset + i};
}

static bool
model_joins(const struct model *model, size_t i)
{
    return model->bytes[i].source == model->bytes[i - 1].source &&
           model->bytes[i].offset == model->bytes[i - 1].offset + 1;
}

static void
compare(const struct model *model, const struct extent_list *list)
{
    uint32_t runs = model->size ? 1 : 0;
    uint64_t start = 0;

    for (size_t i = 1; i < model->size; i++)
        runs += !model_joins(model, i);
    ck_assert_uint_eq(list->count, runs);
    ck_assert_uint_eq(list->size, model->size);
    for (uint32_t i = 0; i < list->count; i++) {
        ck_assert_uint_eq(list->extents[i].start, start);
        ck_assert_uint_gt(list->extents[i].length, 0);
        start += list->extents[i].length;
    }
    ck_assert_uint_eq(start, list->size);
    for (size_t i = 0; i < model->size; i++) {
        const struct extent *extent = &list->extents[extent_list_find(list, i)];
        const void *source = extent->backing ? (void *)extent->backing : (void *)extent->blob;

        expect(extent->start <= i);
        expect(i < extent->start + extent->length);
        expect(!extent->backing || !extent->blob);
        expect(source == model->bytes[i].source);
        expect(extent->offset + (i - extent->start) == model->bytes[i].offset);
    }
    assert_expectations();
}

START_TEST(random_lists)
{
    static struct model model;

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct extent_builder builder = EXTENT_BUILDER_INIT;
        struct extent_list *list;
        uint64_t adds = seed % 41;

        model_init(&model, seed);
        for (uint64_t i = 0; i < adds; i++)
            model_add(&model, &builder);
        list = extent_builder_finish(&builder);
        ck_assert_ptr_nonnull(list);
        ck_assert_ptr_null(builder.extents);
        compare(&model, list);
        extent_list_unref(extent_list_ref(list));
        compare(&model, list);
        extent_list_unref(list);
        model_free(&model);
    }
}
END_TEST

START_TEST(too_big)
{
    static const struct {
        uint64_t offset, length;
    } bad[] = {{0, UINT64_MAX}, {0, 1ull << 63}, {INT64_MAX, 1}, {UINT64_MAX, 2}};
    struct file_identity identity = {.size = 1};
    struct backing *backing = backing_new(AT_FDCWD, "x", &identity);
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct extent_list *list;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        extent_builder_add_backing(&builder, backing, 0, 1);
        extent_builder_add_backing(&builder, backing, bad[i].offset, bad[i].length);
        extent_builder_add_backing(&builder, backing, 5, 1);
        ck_assert_ptr_null(extent_builder_finish(&builder));
        ck_assert_uint_eq(atomic_load(&backing->references), 1);
    }
    /* The largest possible list, and one more byte. */
    extent_builder_add_backing(&builder, backing, 0, INT64_MAX);
    list = extent_builder_finish(&builder);
    ck_assert_uint_eq(list->size, INT64_MAX);
    ck_assert_uint_eq(extent_list_find(list, INT64_MAX - 1), 0);
    extent_list_unref(list);
    extent_builder_add_backing(&builder, backing, 0, INT64_MAX);
    extent_builder_add_backing(&builder, backing, 0, 1);
    ck_assert_ptr_null(extent_builder_finish(&builder));
    backing_unref(backing);
}
END_TEST

START_TEST(finds_pieces)
{
    static const struct {
        uint64_t offset;
        uint32_t piece;
    } cases[] = {{0, UINT32_MAX}, {9, UINT32_MAX}, {10, 0}, {19, 0},        {25, 0},
                 {30, 1},         {31, 2},         {99, 2}, {UINT64_MAX, 2}};
    struct layout *layout = malloc(sizeof(*layout) + 3 * sizeof(layout->pieces[0]));

    layout->count = 3;
    layout->pieces[0] = (struct piece){10, 20, 1};
    layout->pieces[1] = (struct piece){30, 31, 2};
    layout->pieces[2] = (struct piece){31, 40, 3};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_uint_eq(layout_find(layout, cases[i].offset), cases[i].piece);
    ck_assert_uint_eq(layout_find(NULL, 0), UINT32_MAX);
    free(layout);
}
END_TEST

static unsigned detached;

static void
detach(struct backing *backing)
{
    detached++;
}

START_TEST(detach_on_last_unref)
{
    struct file_identity identity = {.size = 1};
    struct backing *backing = backing_new(AT_FDCWD, "x", &identity);

    backing->io_detach = detach;
    backing_unref(backing_ref(backing));
    ck_assert_uint_eq(detached, 0);
    backing_unref(backing);
    ck_assert_uint_eq(detached, 1);
    backing_unref(NULL);
    blob_unref(NULL);
    extent_list_unref(NULL);
}
END_TEST

START_TEST(same_content)
{
    const struct file_identity then = {.mount = 4,
                                       .device = 1,
                                       .inode = 2,
                                       .size = 3,
                                       .mode = S_IFREG | 0644,
                                       .links = 1,
                                       .modified = {10, 11},
                                       .changed = {12, 13}};
    struct file_identity now;

#define CHANGED(field, value, same)                                                                \
    do {                                                                                           \
        now = then;                                                                                \
        now.field = (value);                                                                       \
        ck_assert_int_eq(file_identity_same_content(&then, &now), (same));                         \
        now.changed.tv_nsec++;                                                                     \
        ck_assert(!file_identity_same_content(&then, &now));                                       \
    } while (0)
    CHANGED(mount, 9, false);
    CHANGED(device, 9, false);
    CHANGED(inode, 9, false);
    CHANGED(size, 9, false);
    CHANGED(modified.tv_sec, 9, false);
    CHANGED(modified.tv_nsec, 9, false);
    CHANGED(mode, S_IFIFO | 0644, false);
    CHANGED(mode, S_IFREG | 0600, true);
    CHANGED(owner, 9, true);
    CHANGED(group, 9, true);
    CHANGED(links, 0, true);
#undef CHANGED
    now = then;
    ck_assert(file_identity_same_content(&then, &now));
    now.changed.tv_nsec++;
    ck_assert(!file_identity_same_content(&then, &now));
    now = then;
    now.changed.tv_sec++;
    ck_assert(!file_identity_same_content(&then, &now));
}
END_TEST

static Suite *
suite(void)
{
    Suite *made = suite_create("extent");
    TCase *lists = tcase_create("lists");
    TCase *files = tcase_create("files");

    tcase_add_test(lists, random_lists);
    tcase_add_test(lists, too_big);
    tcase_add_test(files, finds_pieces);
    tcase_add_test(files, detach_on_last_unref);
    tcase_add_test(files, same_content);
    suite_add_tcase(made, lists);
    suite_add_tcase(made, files);
    return made;
}

#include "check_main.h"
