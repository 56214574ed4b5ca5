/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timed readers of the bench: reads what a plan says, in its order, as one
 * kind of loader would, and prints how long that took.
 *
 *   reader [-b BLOCK] [-d DEPTH] [-t THREADS] [-p PROCESSES] [-a] KIND PLAN
 *
 * KIND  read, mmap, copy, file, direct: see enum reader_kind in readers.h
 * PLAN  a file of lines "OFFSET LENGTH PATH", one for each segment
 *
 * Segments are claimed in order by all threads of all processes together; with
 * -a every process reads all of the plan, its threads sharing that.
 *
 * Prints one JSON object: seconds, bytes, and the readers' sum.
 */
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
        if (plan_add(plan, line + at, offset, length))
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
        die("not a number over 0: %s", text);
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
    die("no such kind of reader: %s", name);
}

int
main(int argc, char **argv)
{
    struct reader reader = {.block = 1 << 20, .depth = 8, .threads = 1, .processes = 1};
    struct reader_result result;
    struct plan plan = {0};
    struct reason reason;
    int option;

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
    if (argc - optind != 2 || reader.processes > READER_PROCESSES_MOST || reader.block % 4096 != 0)
        die("usage: reader [-b BLOCK] [-d DEPTH] [-t THREADS] [-p PROCESSES] [-a] KIND PLAN");
    reader.kind = kind_of(argv[optind]);
    load_plan(argv[optind + 1], &plan);
    if (reader_run(&reader, &plan, NULL, NULL, &result, &reason))
        die("%s", reason.text);
    printf("{\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"sum\": %" PRIu64 "}\n", result.seconds,
           result.bytes, result.sum);
    plan_free(&plan);
    return 0;
}
