/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gguf_read(), and gguf_merge() of the file as the only part, and as both of two parts.
 *
 * Input: the whole file.
 */
#include "format/gguf_write.h"
#include "fuzz.h"

static int fd;

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    fd = fuzz_file("fuzz-gguf");
    return 0;
}

/* A merged file, whose runs expect_run() gets one after another. */
struct merged {
    uint64_t file_size, header_length, size;
};

static void
expect_run(void *arg, const struct gguf_run *run)
{
    struct merged *merged = arg;

    if (run->kind == GGUF_RUN_HEADER)
        EXPECT(run->offset <= merged->header_length &&
               run->length <= merged->header_length - run->offset);
    else if (run->kind != GGUF_RUN_ZERO && run->length)
        EXPECT(run->offset <= merged->file_size && run->length <= merged->file_size - run->offset);
    merged->size += run->length;
}

static void
expect_merge(const struct st_table *table, uint32_t count, uint64_t file_size)
{
    const struct st_table *tables[] = {table, table};
    struct merged merged = {.file_size = file_size};
    struct buffer header = BUFFER_INIT;
    struct reason reason = {NULL, ""};
    uint64_t size;
    uint32_t wrong;

    if (gguf_check_parts(tables, count, &wrong, &reason)) {
        fuzz_expect_reason(&reason);
        EXPECT(wrong < count);
    }
    if (table->gguf->alignment > GGUF_MERGE_ALIGNMENT)
        return;
    size = gguf_merge(tables, count, &header, NULL, NULL);
    merged.header_length = header.length;
    buffer_free(&header);
    EXPECT(gguf_merge(tables, count, &header, expect_run, &merged) == size);
    EXPECT(merged.size == size && merged.header_length == header.length);
    buffer_free(&header);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct reason reason = {NULL, ""};
    struct st_table *table;

    fuzz_file_write(fd, data, size);
    if (gguf_read(fd, size, fuzz_admit, NULL, &table, &reason)) {
        fuzz_expect_reason(&reason);
        return 0;
    }
    fuzz_expect_in_file(table, size);
    EXPECT(table->gguf->pairs.start <= table->gguf->pairs.end && table->gguf->pairs.end <= size);
    expect_merge(table, 1, size);
    expect_merge(table, 2, size);
    st_table_free(table);
    return 0;
}
