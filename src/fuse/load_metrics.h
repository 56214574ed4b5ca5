/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus metrics of the loads that have ended. The caller locks. */
#ifndef FSTFS_FUSE_LOAD_METRICS_H
#define FSTFS_FUSE_LOAD_METRICS_H

#include "base/buffer.h"
#include "base/histogram.h"

#include <stdbool.h>
#include <stdint.h>

/* Limits the checkpoints that have their own histogram: the first ones that are loaded. */
enum { LOAD_HISTOGRAMS = 16 };

enum load_part { LOAD_STORAGE, LOAD_DAEMON, LOAD_READER, LOAD_PARTS };
extern const char *const load_part_names[LOAD_PARTS];

struct load_histogram {
    char *checkpoint; /* owned */
    struct histogram durations;
};

struct load_metrics {
    bool are_names_public; /* if false, all loads are counted in `others` */
    unsigned count; /* of histograms[] */
    struct load_histogram histograms[LOAD_HISTOGRAMS];
    struct histogram others; /* loads of all other checkpoints */
    uint64_t parts[LOAD_PARTS]; /* total nanoseconds */
};

void load_metrics_init(struct load_metrics *metrics, bool are_names_public);
/* Adds a load. `parts`: nanoseconds, by enum load_part; their sum is the load's duration. */
void load_metrics_add(struct load_metrics *metrics, const char *checkpoint,
                      const uint64_t parts[LOAD_PARTS]);
void load_metrics_write(struct load_metrics *metrics, struct buffer *out);
void load_metrics_free(struct load_metrics *metrics);

#endif
