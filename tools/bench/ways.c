/* SPDX-License-Identifier: Apache-2.0 */
#include "ways.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static const struct way readers[] = {
    {.name = "direct",
     .text = "O_DIRECT, io_uring, 32 x 1 MiB",
     .order = ORDER_FILES,
     .reader = {READER_DIRECT, MIB, 32, 1, 1, false}},
    {.name = "read",
     .text = "buffered read, 1 MiB",
     .order = ORDER_FILES,
     .reader = {READER_READ, MIB, 1, 1, 1, false},
     .has_warm = true},
    {.name = "mmap",
     .text = "mmap, in file order",
     .order = ORDER_FILES,
     .reader = {READER_COPY, MIB, 1, 1, 1, false},
     .has_warm = true},
    {.name = "names",
     .text = "mmap, tensors in name order",
     .order = ORDER_NAMES,
     .reader = {READER_COPY, MIB, 1, 1, 1, false},
     .has_warm = true},
};

/* Those of loaders.py. */
static const char *const loader_names[] = {
    "load_file", "safe_open", "fastsafetensors", "runai", "transformers", "diffusers",
};

const char ways_names[] = "direct, read, mmap, names; gpu (with --device); load_file, safe_open, "
                          "fastsafetensors, runai, transformers, diffusers (with --loaders)";

static bool
is_name(const char *known, const char *name, size_t length)
{
    return strlen(known) == length && memcmp(known, name, length) == 0;
}

enum way_kind
way_kind_of(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof(readers) / sizeof(*readers); i++)
        if (is_name(readers[i].name, name, length))
            return WAY_READER;
    for (size_t i = 0; i < sizeof(loader_names) / sizeof(*loader_names); i++)
        if (is_name(loader_names[i], name, length))
            return WAY_LOADER;
    return is_name("gpu", name, length) ? WAY_DEVICE : WAY_NONE;
}

unsigned
ways_list(struct way ways[WAYS_MOST])
{
    memcpy(ways, readers, sizeof(readers));
    return sizeof(readers) / sizeof(*readers);
}

struct way
way_of_loader(const struct loader *loader)
{
    struct way way = {.is_loader = true, .order = ORDER_NAMES, .has_warm = true, .in_memory = true};

    const char *title = loader->title[0] ? loader->title : loader->name;

    strcpy(way.name, loader->name);
    strcpy(way.missing, loader->missing);
    if (strncmp(loader->package, title, strlen(title)) == 0)
        snprintf(way.text, sizeof(way.text), "%s", loader->package);
    else
        snprintf(way.text, sizeof(way.text), "%s, %s", title, loader->package);
    return way;
}

struct way
way_of_device(const char *name)
{
    struct way way = {.name = "gpu", .is_device = true, .order = ORDER_NAMES, .has_warm = true};

    snprintf(way.text, sizeof(way.text), "libfstfs into %s", name);
    return way;
}

/* ---- statistics ---- */

static int
compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the values. */
static struct spread
spread_of(double *values, unsigned count)
{
    qsort(values, count, sizeof(*values), compare);
    return (struct spread){
        .median = (values[(count - 1) / 2] + values[count / 2]) / 2,
        .least = values[0],
        .most = values[count - 1],
    };
}

static double
rate_in(const struct row *row, unsigned round)
{
    return row->seconds[round] > 0 ? (double)row->bytes / row->seconds[round] : 0;
}

/* One value of each round. */
typedef double (*value_in)(const struct row *row, const struct row *to, unsigned round);

static struct spread
spread_over(const struct row *row, const struct row *to, unsigned count, value_in value)
{
    double *values = calloc(count + 1, sizeof(*values));
    struct spread spread = {0};

    for (unsigned i = 0; values && i < count; i++)
        values[i] = value(row, to, i);
    if (values && count > 0)
        spread = spread_of(values, count);
    free(values);
    return spread;
}

static double
rate_of(const struct row *row, const struct row *to, unsigned round)
{
    return rate_in(row, round);
}

struct spread
row_rate(const struct row *row)
{
    return spread_over(row, NULL, row->rounds, rate_of);
}

static double
ratio_of(const struct row *row, const struct row *to, unsigned round)
{
    return rate_in(to, round) > 0 ? rate_in(row, round) / rate_in(to, round) : 0;
}

struct spread
row_ratio(const struct row *row, const struct row *to)
{
    return spread_over(row, to, row->rounds < to->rounds ? row->rounds : to->rounds, ratio_of);
}

static double
pinned_of(const struct row *row, const struct row *to, unsigned round)
{
    return row->pinned[round];
}

struct spread
row_pinned(const struct row *row)
{
    return spread_over(row, NULL, row->rounds, pinned_of);
}

static double
ratio_of_pinned(const struct row *row, const struct row *to, unsigned round)
{
    return row->pinned[round] > 0 ? rate_in(row, round) / row->pinned[round] : 0;
}

struct spread
row_of_pinned(const struct row *row)
{
    return spread_over(row, NULL, row->rounds, ratio_of_pinned);
}
