/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ways to read a model, and what measuring them gave.
 *
 * A way reads either the bare files or the same files through a mount, and both
 * cold or warm: each of these is a row of the table.
 */
#ifndef FSTFS_BENCH_WAYS_H
#define FSTFS_BENCH_WAYS_H

#include "device.h"
#include "loaders.h"
#include "model.h"
#include "readers.h"

struct way {
    char name[32]; /* for --ways and JSON */
    char text[128]; /* for people */
    struct reader reader; /* of a way that is no loader */
    enum order order;
    bool is_loader; /* a Python loader of that name */
    bool is_device; /* libfstfs into a GPU */
    bool has_warm; /* O_DIRECT has no page cache to be warm */
    bool in_memory; /* it has all of the model in memory at its end */
    char missing[200]; /* why it cannot be had here; "" when it can */
};

enum { WAYS_MOST = 5 + LOADERS_MOST };

enum way_kind { WAY_NONE, WAY_READER, WAY_DEVICE, WAY_LOADER };

/* Of a name that --ways may have. */
enum way_kind way_kind_of(const char *name, size_t length);
/* All those names, and what each wants, for people. */
extern const char ways_names[];

/* The ways of the C readers, in the order of the table; gives their number. */
unsigned ways_list(struct way ways[WAYS_MOST]);
/* The way of a Python loader. */
struct way way_of_loader(const struct loader *loader);
/* The way into a GPU, "cuda:0". */
struct way way_of_device(const char *name);

enum temperature { COLD, WARM, TEMPERATURES };

/* One way, bare or mounted, cold or warm. */
struct row {
    const struct way *way;
    bool mounted;
    enum temperature temperature;
    char skipped[512]; /* why it was not measured; "" when it was */
    bool failed; /* it should have worked */
    double *seconds; /* of each round */
    unsigned rounds; /* measured so far */
    uint64_t bytes; /* of one round */
    /* The most of all rounds; 0: not known, or none. */
    uint64_t reader_memory, daemon_memory;
    uint64_t bare_cache, mount_cache; /* page cache that it left behind */
    uint64_t storage_bytes; /* what the mount's daemon read of its storage */
    /* Of a way into a device: see struct device_report; the last round's storage. */
    double *pinned; /* of each round */
    cJSON *storage; /* or NULL */
};

/* Median, least and most of a row's (or two rows') rounds. */
struct spread {
    double median, least, most;
};

/* Bytes in a second. */
struct spread row_rate(const struct row *row);
/* A row's rate over another's, round by round. */
struct spread row_ratio(const struct row *row, const struct row *to);
/* Of a way into a device: bytes in a second of bare copies from pinned memory, and the
 * row's rate over that, round by round. All 0 where that could not be measured. */
struct spread row_pinned(const struct row *row);
struct spread row_of_pinned(const struct row *row);

#endif
