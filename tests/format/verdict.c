/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What src/format says of files, for tests in Python.
 *
 *   verdict check             each line of standard input is a path of a safetensors file;
 *                             answers "ok COUNT" or "RULE text"
 *   verdict dump FILE         the header of FILE, written anew with st_header_*, aligned to 8
 *   verdict npy DTYPE BYTES [DIM...]   the npy header
 *   verdict index FILE        "ok", then a line of total_size or -, then "shard<TAB>name" lines
 *   verdict container         each line of standard input is a path of a file of torch.save() or of
 * a GGUF file; answers a line "ok COUNT REFUSED IMPORTS", then a line of the first refused tensor,
 * lines of imports, and for each tensor name<TAB>dtype<TAB>begin<TAB>end<TAB>dimensions; or "RULE
 * text"
 *   verdict imports FILE      "ok" or "RULE text", then the imports of a file of torch.save(), and
 * "..." if there are more
 *   verdict metadata FILE     key and value of a GGUF file as hexadecimal digits, "json" or "text"
 *   verdict merge OUT FILE...  merges parts of a GGUF model; "ok" or "PART RULE text"
 *   verdict time FILE N       parses FILE's header N times; milliseconds and bytes of the table
 */
#include "format/dtype.h"
#include "format/gguf.h"
#include "format/gguf_write.h"
#include "format/index.h"
#include "format/npy.h"
#include "format/safetensors.h"
#include "format/torch.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static errint_t
read_table(const char *path, struct st_table **table, struct reason *reason)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) < 0) {
        perror(path);
        exit(2);
    }
    errint_t error = st_table_read(fd, (uint64_t)st.st_size, NULL, NULL, table, reason);
    close(fd);
    return error;
}

static int
check(void)
{
    char *path = NULL;
    size_t size = 0;

    while (getline(&path, &size, stdin) > 0) {
        struct st_table *table;
        struct reason reason;
        path[strcspn(path, "\n")] = '\0';
        if (read_table(path, &table, &reason)) {
            printf("%s %s\n", reason.rule, reason.text);
        } else {
            printf("ok %" PRIu32 "\n", table->count);
            st_table_free(table);
        }
        fflush(stdout);
    }
    free(path);
    return 0;
}

static int
dump(const char *path)
{
    struct buffer out = BUFFER_INIT;
    struct st_table *table;
    struct reason reason;

    if (read_table(path, &table, &reason)) {
        fprintf(stderr, "%s %s\n", reason.rule, reason.text);
        return 1;
    }
    st_header_begin(&out);
    for (uint32_t i = 0; i < table->metadata_count; i++) {
        const struct st_metadata *pair = &table->metadata[i];
        st_header_metadata(&out, table->text + pair->key, pair->key_length,
                           table->text + pair->value, pair->value_length);
    }
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];
        size_t length;
        const char *dtype = st_dtype_text(table, tensor, &length);
        st_header_tensor(&out, table->text + tensor->name, tensor->name_length, dtype, length,
                         table->dims + tensor->shape, tensor->rank, tensor->begin, tensor->end);
    }
    if (st_header_finish(&out, 8))
        return 1;
    fwrite(out.data, 1, out.length, stdout);
    buffer_free(&out);
    st_table_free(table);
    return 0;
}

static int
npy(const char *name, const char *bytes, char **dims_text, int rank)
{
    struct buffer out = BUFFER_INIT;
    uint64_t *dims = malloc(sizeof(dims[0]) * (size_t)rank + 1);

    if (!dims)
        return 1;
    for (int i = 0; i < rank; i++)
        dims[i] = strtoull(dims_text[i], NULL, 10);
    errint_t error = npy_header(&out, dtype_from_name(name, strlen(name)), dims, (uint32_t)rank,
                                strtoull(bytes, NULL, 10));
    if (!error)
        fwrite(out.data, 1, out.length, stdout);
    buffer_free(&out);
    free(dims);
    return error ? 1 : 0;
}

static int
index_of(const char *path)
{
    struct buffer text = BUFFER_INIT;
    struct st_index *index;
    struct reason reason;
    char piece[65536];
    size_t got;
    FILE *file = fopen(path, "rb");

    if (!file)
        return 2;
    while ((got = fread(piece, 1, sizeof(piece), file)) > 0)
        buffer_add(&text, piece, got);
    fclose(file);
    buffer_reserve(&text, 1); /* data is not NULL even when the file is empty */
    errint_t error =
        st_index_parse(text.data, text.length, &container_safetensors, &index, &reason);
    buffer_free(&text);
    if (error) {
        printf("%s %s\n", reason.rule, reason.text);
        return 0;
    }
    printf("ok\n");
    if (index->has_total_size)
        printf("%" PRIu64 "\n", index->total_size);
    else
        printf("-\n");
    for (uint32_t i = 0; i < index->count; i++) {
        const struct st_index_entry *entry = &index->entries[i];
        printf("%s\t%.*s\n", index->shards[entry->shard], (int)entry->name_length,
               index->text + entry->name);
    }
    st_index_free(index);
    return 0;
}

static void
print_tensors(const struct st_table *table)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];
        size_t length;
        const char *dtype = st_dtype_text(table, tensor, &length);

        printf("%.*s\t%.*s\t%" PRIu64 "\t%" PRIu64 "\t", (int)tensor->name_length,
               table->text + tensor->name, (int)length, dtype, table->data_start + tensor->begin,
               table->data_start + tensor->end);
        for (uint32_t d = 0; d < tensor->rank; d++)
            printf("%s%" PRIu64, d ? "," : "", table->dims[tensor->shape + d]);
        printf("\n");
    }
}

static void
answer_torch(int fd, uint64_t size)
{
    struct buffer imports = BUFFER_INIT;
    struct torch_file file;
    struct reason reason;
    unsigned lines = 0;

    if (torch_read(fd, size, NULL, NULL, &imports, &file, &reason)) {
        printf("%s %s\n", reason.rule, reason.text);
    } else {
        const char *refused = file.table->refused_count ? file.table->refused : "";

        for (size_t i = 0; i < imports.length; i++)
            lines += imports.data[i] == '\n';
        printf("ok %" PRIu32 " %" PRIu32 " %u\n%.*s\n", file.table->count,
               file.table->refused_count, lines, (int)strcspn(refused, "\n"), refused);
        fwrite(imports.length ? imports.data : "", 1, imports.length, stdout);
        print_tensors(file.table);
        torch_file_free(&file);
    }
    buffer_free(&imports);
}

static int
print_imports(const char *path)
{
    struct buffer imports = BUFFER_INIT;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct torch_file file;
    struct reason reason;
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0) {
        perror(path);
        return 2;
    }
    if (torch_read(fd, (uint64_t)st.st_size, NULL, NULL, &imports, &file, &reason) == 0)
        reason = (struct reason){"ok", ""};
    printf("%s %s\n%s%s", reason.rule, reason.text, imports.length ? imports.data : "",
           file.imports_incomplete ? "...\n" : "");
    torch_file_free(&file);
    buffer_free(&imports);
    close(fd);
    return 0;
}

static void
answer_gguf(int fd, uint64_t size)
{
    struct st_table *table;
    struct reason reason;

    if (gguf_read(fd, size, NULL, NULL, &table, &reason)) {
        printf("%s %s\n", reason.rule, reason.text);
        return;
    }
    printf("ok %" PRIu32 " 0 0\n\n", table->count);
    print_tensors(table);
    st_table_free(table);
}

/* Opens a GGUF file and reads its header; exits if that fails. */
static int
open_gguf(const char *path, struct st_table **table)
{
    struct reason reason;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) < 0 ||
        gguf_read(fd, (uint64_t)st.st_size, NULL, NULL, table, &reason)) {
        fprintf(stderr, "verdict: %s\n", path);
        exit(2);
    }
    return fd;
}

static void
print_hex(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        printf("%02x", (unsigned char)text[i]);
}

static int
print_metadata(const char *path)
{
    struct st_table *table;

    close(open_gguf(path, &table));
    for (uint32_t i = 0; i < table->metadata_count; i++) {
        const struct st_metadata *pair = &table->metadata[i];

        print_hex(table->text + pair->key, pair->key_length);
        printf(" ");
        print_hex(table->text + pair->value, pair->value_length);
        printf(" %s\n", pair->is_json ? "json" : "text");
    }
    st_table_free(table);
    return 0;
}

enum { MOST_PARTS = 64 };

struct merging {
    FILE *out;
    int parts[MOST_PARTS];
    const struct buffer *header;
};

static void
write_run(void *arg, const struct gguf_run *run)
{
    struct merging *merging = arg;
    char *bytes = calloc(run->length + 1, 1);

    if (!bytes)
        exit(2);
    if (run->kind == GGUF_RUN_HEADER)
        memcpy(bytes, merging->header->data + run->offset, run->length);
    else if (run->kind != GGUF_RUN_ZERO &&
             pread(merging->parts[run->kind == GGUF_RUN_TENSOR ? run->part : 0], bytes, run->length,
                   (off_t)run->offset) != (ssize_t)run->length)
        exit(2);
    fwrite(bytes, 1, run->length, merging->out);
    free(bytes);
}

static int
merge_gguf(const char *out, char **paths, int count)
{
    struct buffer header = BUFFER_INIT;
    struct merging merging = {.out = fopen(out, "wb"), .header = &header};
    struct st_table *tables[MOST_PARTS];
    const struct st_table *const *parts = (const struct st_table *const *)tables;
    struct reason reason;
    uint32_t wrong;
    uint64_t size;

    if (!merging.out || count > MOST_PARTS)
        return 2;
    for (int i = 0; i < count; i++)
        merging.parts[i] = open_gguf(paths[i], &tables[i]);
    if (gguf_check_parts(parts, (uint32_t)count, &wrong, &reason)) {
        printf("%" PRIu32 " %s %s\n", wrong, reason.rule, reason.text);
    } else {
        size = gguf_merge(parts, (uint32_t)count, &header, NULL, NULL);
        buffer_free(&header);
        gguf_merge(parts, (uint32_t)count, &header, write_run, &merging);
        printf("%s\n", (uint64_t)ftell(merging.out) == size ? "ok" : "wrong size");
    }
    for (int i = 0; i < count; i++) {
        st_table_free(tables[i]);
        close(merging.parts[i]);
    }
    buffer_free(&header);
    return fclose(merging.out) ? 2 : 0;
}

static int
containers(void)
{
    char *path = NULL;
    size_t size = 0;

    while (getline(&path, &size, stdin) > 0) {
        char magic[4] = "";
        struct stat st;
        int fd;

        path[strcspn(path, "\n")] = '\0';
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0 || pread(fd, magic, sizeof(magic), 0) < 0) {
            perror(path);
            return 2;
        }
        if (gguf_has_magic(magic))
            answer_gguf(fd, (uint64_t)st.st_size);
        else
            answer_torch(fd, (uint64_t)st.st_size);
        close(fd);
        fflush(stdout);
    }
    free(path);
    return 0;
}

static int
measure(const char *path, int times)
{
    struct timespec start, end;
    struct st_table *table;
    struct reason reason;

    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < times; i++) {
        if (read_table(path, &table, &reason))
            return 1;
        if (i == times - 1)
            printf("%" PRIu32 " tensors, %zu bytes, ", table->count, table->bytes);
        st_table_free(table);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double milliseconds =
        (double)(end.tv_sec - start.tv_sec) * 1e3 + (double)(end.tv_nsec - start.tv_nsec) / 1e6;
    printf("%.1f ms\n", milliseconds / times);
    return 0;
}

int
main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "check") == 0)
        return check();
    if (argc == 2 && strcmp(argv[1], "container") == 0)
        return containers();
    if (argc == 3 && strcmp(argv[1], "dump") == 0)
        return dump(argv[2]);
    if (argc >= 4 && strcmp(argv[1], "npy") == 0)
        return npy(argv[2], argv[3], argv + 4, argc - 4);
    if (argc == 3 && strcmp(argv[1], "index") == 0)
        return index_of(argv[2]);
    if (argc == 3 && strcmp(argv[1], "imports") == 0)
        return print_imports(argv[2]);
    if (argc == 3 && strcmp(argv[1], "metadata") == 0)
        return print_metadata(argv[2]);
    if (argc >= 4 && strcmp(argv[1], "merge") == 0)
        return merge_gguf(argv[2], argv + 3, argc - 3);
    if (argc == 4 && strcmp(argv[1], "time") == 0)
        return measure(argv[2], (int)strtol(argv[3], NULL, 10));
    fprintf(stderr, "verdict: see the first comment of tests/format/verdict.c\n");
    return 2;
}
