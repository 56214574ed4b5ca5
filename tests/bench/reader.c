/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gives scripts the timed readers and the page cache functions of fstfs-bench.
 *
 *   reader [-b BLOCK] [-d DEPTH] [-t THREADS] [-p PROCESSES] [-a] KIND PLAN
 *   reader evict FILE...
 *   reader cached FILE...
 *
 * The first form reads what a plan lists, in its order, and prints a JSON object: seconds, bytes
 * and the readers' checksum. KIND is read, mmap, copy, file or direct (enum reader_kind); PLAN is a
 * file of lines "OFFSET LENGTH PATH", one for each segment. All threads of all processes claim
 * segments in order; with -a every process reads the whole plan.
 *
 * `evict` drops files from the page cache, and fails if they stay there. `cached` prints the bytes
 * of the files that are in the page cache.
 */
#include "cache.h"
#include "readers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("reader: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* Adds a segment of a file, which may be in the plan already. */
static errint_t
plan_add_path(struct plan *plan, const char *path, uint64_t offset, uint64_t length)
{
    size_t file = plan->file_count;

    while (file > 0 && strcmp(plan->files[file - 1], path) != 0)
        file--;
    if (file > 0)
        return plan_add_segment(plan, file - 1, offset, length);
    if (length == 0)
        return 0;
    if (plan_add_file(plan, path))
        return -ENOMEM;
    return plan_add_segment(plan, plan->file_count - 1, offset, length);
}

static void
load_plan(const char *name, struct plan *plan)
{
    FILE *file = fopen(name, "r");
    char *line = NULL;
    size_t size = 0;

    if (!file)
        die("%s: %s", name, strerror(errno));
    while (getline(&line, &size, file) > 0) {
        uint64_t offset, length;
        int at = 0;

        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%" SCNu64 " %" SCNu64 " %n", &offset, &length, &at) != 2 || at == 0)
            die("%s: bad line: %s", name, line);
        if (plan_add_path(plan, line + at, offset, length))
            die("no memory");
    }
    free(line);
    fclose(file);
}

static unsigned long
number(const char *text)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (n == 0 || *end)
        die("not a positive number: %s", text);
    return n;
}

static enum reader_kind
kind_of(const char *name)
{
    static const char *const names[] = {"read", "mmap", "copy", "file", "direct"};

    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if (strcmp(name, names[i]) == 0)
            return (enum reader_kind)i;
    }
    die("unknown kind of reader: %s", name);
}

static void
evict_files(char **paths, size_t count)
{
    struct eviction eviction = {0};
    struct reason reason;

    if (cache_evict(paths, count, &eviction, &reason))
        die("%s", reason.text);
}

static void
print_cached(char **paths, size_t count)
{
    uint64_t total = 0, bytes;

    for (size_t i = 0; i < count; i++) {
        if (cache_bytes(paths[i], &bytes))
            die("%s: cannot tell what is cached", paths[i]);
        total += bytes;
    }
    printf("%" PRIu64 "\n", total);
}

int
main(int argc, char **argv)
{
    struct reader reader = {.block = 1 << 20, .depth = 8, .threads = 1, .processes = 1};
    struct reader_result result;
    struct plan plan = {0};
    struct reason reason;
    int option;

    if (argc > 1 && strcmp(argv[1], "evict") == 0) {
        evict_files(argv + 2, (size_t)argc - 2);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "cached") == 0) {
        print_cached(argv + 2, (size_t)argc - 2);
        return 0;
    }
    while ((option = getopt(argc, argv, "b:d:t:p:a")) != -1) {
        switch (option) {
        case 'b':
            reader.block = number(optarg);
            break;
        case 'd':
            reader.depth = (unsigned)number(optarg);
            break;
        case 't':
            reader.threads = (unsigned)number(optarg);
            break;
        case 'p':
            reader.processes = (unsigned)number(optarg);
            break;
        case 'a':
            reader.each_all = true;
            break;
        default:
            return 2;
        }
    }
    if (argc - optind != 2 || reader.processes > CHILDREN_MOST || reader.block % 4096 != 0)
        die("usage: reader [-b BLOCK] [-d DEPTH] [-t THREADS] [-p PROCESSES] [-a] KIND PLAN");
    reader.kind = kind_of(argv[optind]);
    load_plan(argv[optind + 1], &plan);
    if (reader_run(&reader, &plan, NULL, &result, &reason))
        die("%s", reason.text);
    printf("{\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"sum\": %" PRIu64 "}\n", result.seconds,
           result.bytes, result.sum);
    plan_free(&plan);
    return 0;
}
