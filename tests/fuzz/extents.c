/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extent lists, compared with a model that keeps every run as it was added.
 *
 * Input: 17 bytes per run: one of four backings and two blobs, the offset in it, and the length.
 * Bits of the first byte make the numbers small, or make a run begin where the last one ended.
 */
#include "fuzz.h"

#include "base/extent.h"

#include <stdlib.h>
#include <string.h>

enum { BACKINGS = 4, BLOBS = 2, MOST_RUNS = 512 };

struct run {
    unsigned which;
    uint64_t offset, length;
};

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    return 0;
}

static size_t
take_runs(struct input *input, struct run *runs)
{
    size_t count = 0;

    while (input->left && count < MOST_RUNS) {
        struct run *run = &runs[count], *last = count ? run - 1 : NULL;
        uint8_t how = input_byte(input);

        run->which = how % (BACKINGS + BLOBS);
        run->offset = how & 0x80 ? input_number(input) : input_byte(input);
        run->length = how & 0x40 ? input_number(input) : input_byte(input);
        if (last && how & 0x20) {
            run->which = last->which;
            run->offset = last->offset + last->length;
        }
        count++;
    }
    return count;
}

/* Whether the runs are valid: neither the end of a run nor their total length exceeds 2^63 - 1. */
static bool
fits(const struct run *runs, size_t count)
{
    unsigned __int128 sum = 0;

    for (size_t i = 0; i < count; i++) {
        sum += runs[i].length;
        if (runs[i].length && (unsigned __int128)runs[i].offset + runs[i].length > INT64_MAX)
            return false;
        if (sum > INT64_MAX)
            return false;
    }
    return true;
}

/* Expects that the byte of the file at `at` is where the model has it. */
static void
expect_byte(const struct extent_list *list, uint64_t at, const void *where, uint64_t offset)
{
    const struct extent *extent = &list->extents[extent_list_find(list, at)];
    const void *found = extent->backing ? (const void *)extent->backing : extent->blob;

    EXPECT(!extent->backing != !extent->blob);
    EXPECT(extent->start <= at && at - extent->start < extent->length);
    EXPECT(found == where && extent->offset + (at - extent->start) == offset);
}

static void
check_list(const struct extent_list *list, const struct run *runs, size_t count,
           const void *const *sources)
{
    uint64_t at = 0;

    for (size_t i = 0; i < count; i++) {
        const struct run *run = &runs[i];

        if (!run->length)
            continue;
        expect_byte(list, at, sources[run->which], run->offset);
        expect_byte(list, at + run->length / 2, sources[run->which], run->offset + run->length / 2);
        at += run->length;
        expect_byte(list, at - 1, sources[run->which], run->offset + run->length - 1);
    }
    EXPECT(list->size == at);
    at = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct extent *extent = &list->extents[i], *before = extent - 1;

        EXPECT(extent->length && extent->start == at);
        EXPECT(i == 0 || extent->backing != before->backing || extent->blob != before->blob ||
               extent->offset != before->offset + before->length);
        at += extent->length;
    }
    EXPECT(at == list->size);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run runs[MOST_RUNS];
    struct input input = {(const char *)data, size};
    size_t count = take_runs(&input, runs);
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct file_identity identity;
    struct backing *backings[BACKINGS];
    struct blob *blobs[BLOBS];
    const void *sources[BACKINGS + BLOBS];
    struct extent_list *list;

    memset(&identity, 0, sizeof(identity));
    for (int i = 0; i < BACKINGS; i++)
        sources[i] = backings[i] = backing_new(-1, "shard", &identity);
    for (int i = 0; i < BLOBS; i++)
        sources[BACKINGS + i] = blobs[i] =
            blob_new(&(struct buffer){.data = malloc(1), .length = 1});
    for (size_t i = 0; i < count; i++) {
        unsigned which = runs[i].which;

        if (which < BACKINGS)
            extent_builder_add_backing(&builder, backings[which], runs[i].offset, runs[i].length);
        else
            extent_builder_add_blob(&builder, blobs[which - BACKINGS], runs[i].offset,
                                    runs[i].length);
    }
    list = extent_builder_finish(&builder);
    EXPECT(!builder.extents && !list == !fits(runs, count));
    if (list) {
        check_list(list, runs, count, sources);
        extent_list_opened(extent_list_ref(list));
        for (uint32_t i = 0; i < list->count; i++)
            EXPECT(!list->extents[i].backing || atomic_load(&list->extents[i].backing->readers));
        extent_list_closed(list);
        extent_list_unref(list);
        extent_list_unref(list);
    }
    for (int i = 0; i < BACKINGS; i++) {
        EXPECT(atomic_load(&backings[i]->readers) == 0);
        EXPECT(atomic_load(&backings[i]->references) == 1);
        backing_unref(backings[i]);
    }
    for (int i = 0; i < BLOBS; i++) {
        EXPECT(atomic_load(&blobs[i]->references) == 1);
        blob_unref(blobs[i]);
    }
    return 0;
}
