/* SPDX-License-Identifier: Apache-2.0 */
#include "methods.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static const struct method readers[] = {
    {METHOD_READER, "direct", "O_DIRECT, io_uring, 32 x 1 MiB",
     .reader = {READER_DIRECT, MIB, 32, 1, 1, false}, .order = ORDER_FILES},
    {METHOD_READER, "read", "buffered read, 1 MiB", .reader = {READER_READ, MIB, 1, 1, 1, false},
     .order = ORDER_FILES, .has_warm = true},
    {METHOD_READER, "mmap", "mmap, file order", .reader = {READER_COPY, MIB, 1, 1, 1, false},
     .order = ORDER_FILES, .has_warm = true},
    {METHOD_READER, "names", "mmap, tensors in name order",
     .reader = {READER_COPY, MIB, 1, 1, 1, false}, .order = ORDER_NAMES, .has_warm = true},
};

/* Those of loaders.py. */
static const char *const loader_names[] = {
    "load_file", "safe_open", "fastsafetensors", "runai", "transformers", "diffusers", "fstfs",
};

const char method_names[] =
    "direct, read, mmap, names; gpu (with --device); load_file, safe_open, "
    "fastsafetensors, runai, transformers, diffusers, fstfs (with --loaders)";

enum method_kind
method_kind_of(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof(readers) / sizeof(*readers); i++)
        if (text_is(name, length, readers[i].name))
            return METHOD_READER;
    for (size_t i = 0; i < sizeof(loader_names) / sizeof(*loader_names); i++)
        if (text_is(name, length, loader_names[i]))
            return METHOD_LOADER;
    return text_is(name, length, "gpu") ? METHOD_DEVICE : METHOD_UNKNOWN;
}

unsigned
methods_list(struct method methods[METHODS_MOST])
{
    memcpy(methods, readers, sizeof(readers));
    return sizeof(readers) / sizeof(*readers);
}

struct method
method_of_device(const char *device)
{
    struct method method = {
        .kind = METHOD_DEVICE, .name = "gpu", .order = ORDER_NAMES, .has_warm = true};

    snprintf(method.text, sizeof(method.text), "libfstfs into %s", device);
    return method;
}

/* ---- rows ---- */

bool
row_exists(const struct row *row)
{
    return row->temperature == COLD || row->method->has_warm;
}

void
row_skip(struct row *row, bool failed, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(row->skipped, sizeof(row->skipped), format, arguments);
    va_end(arguments);
    row->failed = failed;
    row->rounds = 0;
}

static int
compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the values. */
static struct spread
spread_of(double *values, unsigned count)
{
    if (count == 0)
        return (struct spread){0};
    qsort(values, count, sizeof(*values), compare_doubles);
    return (struct spread){
        .median = (values[(count - 1) / 2] + values[count / 2]) / 2,
        .least = values[0],
        .most = values[count - 1],
    };
}

static double
rate_of_round(const struct row *row, unsigned round)
{
    return row->seconds[round] > 0 ? (double)row->bytes / row->seconds[round] : 0;
}

static double
quotient(double a, double b)
{
    return b > 0 ? a / b : 0;
}

struct spread
row_rate(const struct row *row)
{
    double values[ROUNDS_MOST];

    for (unsigned i = 0; i < row->rounds; i++)
        values[i] = rate_of_round(row, i);
    return spread_of(values, row->rounds);
}

struct spread
row_ratio(const struct row *row, const struct row *to)
{
    unsigned count = row->rounds < to->rounds ? row->rounds : to->rounds;
    double values[ROUNDS_MOST];

    for (unsigned i = 0; i < count; i++)
        values[i] = quotient(rate_of_round(row, i), rate_of_round(to, i));
    return spread_of(values, count);
}

struct spread
row_pinned(const struct row *row)
{
    double values[ROUNDS_MOST];

    memcpy(values, row->pinned, row->rounds * sizeof(*values));
    return spread_of(values, row->rounds);
}

struct spread
row_ratio_to_pinned(const struct row *row)
{
    double values[ROUNDS_MOST];

    for (unsigned i = 0; i < row->rounds; i++)
        values[i] = quotient(rate_of_round(row, i), row->pinned[i]);
    return spread_of(values, row->rounds);
}
