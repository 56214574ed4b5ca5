/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods of loading a model, and the results of measuring them.
 *
 * Each method reads the bare files and the same files through a mount, both cold and warm. Each of
 * these four combinations is a row of the results.
 */
#ifndef FSTFS_BENCH_METHODS_H
#define FSTFS_BENCH_METHODS_H

#include "model.h"

#include <cjson/cJSON.h>

enum method_kind {
    METHOD_UNKNOWN,
    METHOD_READER, /* a reader of readers.h */
    METHOD_DEVICE, /* libfstfs into a GPU */
    METHOD_LOADER, /* a Python loader, which keeps the whole model in memory */
};

struct method {
    enum method_kind kind;
    char name[32]; /* as in --methods and JSON */
    char text[128]; /* for people */
    struct reader reader; /* of METHOD_READER */
    enum order order;
    bool has_warm; /* false: it bypasses the page cache */
    char missing[200]; /* why it is unavailable; "" if it is available */
};

enum { LOADERS_MOST = 8, METHODS_MOST = 5 + LOADERS_MOST, ROUNDS_MOST = 1000 };

/* The kind of a name, of `length` bytes, as --methods has it. */
enum method_kind method_kind_of(const char *name, size_t length);
/* All names that --methods accepts and the options they need, for people. */
extern const char method_names[];

/* Returns the methods that need no option, in the order of the table, and their number. */
unsigned methods_list(struct method methods[METHODS_MOST]);
/* The method that loads into the GPU `device`, "cuda:0". */
struct method method_of_device(const char *device);

enum temperature { COLD, WARM, TEMPERATURES };

/* One method, bare or mounted, cold or warm. */
struct row {
    const struct method *method;
    bool mounted;
    enum temperature temperature;
    char skipped[512]; /* why it was not measured; "" if it was */
    bool failed; /* not measured because of an error */
    unsigned rounds; /* measured so far */
    double seconds[ROUNDS_MOST];
    uint64_t bytes; /* of one round */
    /* Maxima over the rounds; 0: unknown, or none. Bytes. */
    uint64_t reader_memory, daemon_memory; /* peak memory */
    uint64_t bare_cache, mount_cache; /* left in the page cache */
    uint64_t storage_bytes; /* read from storage by the mount's daemon */
    /* Of METHOD_DEVICE, see struct device_report: */
    double pinned[ROUNDS_MOST];
    cJSON *storage; /* of the last round; or NULL */
};

/* False for the warm row of a method that bypasses the page cache: there is no such row. */
bool row_exists(const struct row *row);

/* Marks a row as not measured, with the reason. */
void row_skip(struct row *row, bool failed, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Over the rounds of one or two rows. */
struct spread {
    double median, least, most;
};

/* Bytes per second. */
struct spread row_rate(const struct row *row);
/* The ratio of a row's rate to that of another, round by round. */
struct spread row_ratio(const struct row *row, const struct row *to);
/* Of METHOD_DEVICE: bytes per second of plain copies from pinned memory, and the ratio of the
 * row's rate to it, round by round. All 0 if these copies could not be measured. */
struct spread row_pinned(const struct row *row);
struct spread row_ratio_to_pinned(const struct row *row);

#endif
