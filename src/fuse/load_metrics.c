/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/load_metrics.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BOUND_US UINT64_C(250000)

const char *const load_part_names[LOAD_PARTS] = {"storage", "daemon", "reader"};

void
load_metrics_init(struct load_metrics *metrics, bool are_names_public)
{
    memset(metrics, 0, sizeof(*metrics));
    metrics->are_names_public = are_names_public;
    metrics->others.first_bound_us = FIRST_BOUND_US;
    for (unsigned i = 0; i < LOAD_HISTOGRAMS; i++)
        metrics->histograms[i].durations.first_bound_us = FIRST_BOUND_US;
}

static struct histogram *
histogram_of_checkpoint(struct load_metrics *metrics, const char *checkpoint)
{
    struct load_histogram *histogram;

    if (!metrics->are_names_public)
        return &metrics->others;
    for (unsigned i = 0; i < metrics->count; i++)
        if (strcmp(metrics->histograms[i].checkpoint, checkpoint) == 0)
            return &metrics->histograms[i].durations;
    if (metrics->count == LOAD_HISTOGRAMS)
        return &metrics->others;
    histogram = &metrics->histograms[metrics->count];
    histogram->checkpoint = strdup(checkpoint);
    if (!histogram->checkpoint)
        return &metrics->others;
    metrics->count++;
    return &histogram->durations;
}

void
load_metrics_add(struct load_metrics *metrics, const char *checkpoint,
                 const uint64_t parts[LOAD_PARTS])
{
    uint64_t duration = 0;

    for (unsigned i = 0; i < LOAD_PARTS; i++) {
        metrics->parts[i] += parts[i];
        duration += parts[i];
    }
    histogram_add(histogram_of_checkpoint(metrics, checkpoint), duration);
}

/* Appends the label `checkpoint="NAME"`. The name is quoted as on the other pages, so that it
 * contains no line break; backslashes and quotes are then escaped as Prometheus requires. */
static void
add_checkpoint_label(struct buffer *out, const char *name)
{
    struct buffer quoted = BUFFER_INIT;

    buffer_add_quoted(&quoted, name, strlen(name), strlen(name));
    buffer_add_text(out, "checkpoint=\"");
    for (size_t i = 0; i < quoted.length; i++) {
        if (quoted.data[i] == '\\' || quoted.data[i] == '"')
            buffer_add_char(out, '\\');
        buffer_add_char(out, quoted.data[i]);
    }
    buffer_add_char(out, '"');
    out->failed = out->failed || buffer_failed(&quoted);
    buffer_free(&quoted);
}

static void
write_durations(struct histogram *durations, const char *checkpoint, struct buffer *out)
{
    struct histogram_snapshot snapshot;
    struct buffer label = BUFFER_INIT;

    histogram_read(durations, &snapshot);
    add_checkpoint_label(&label, checkpoint);
    if (buffer_failed(&label))
        out->failed = true;
    else
        histogram_write_metric(&snapshot, "fstfs_load_duration_seconds", label.data, out);
    buffer_free(&label);
}

void
load_metrics_write(struct load_metrics *metrics, struct buffer *out)
{
    buffer_add_text(out, "# HELP fstfs_load_seconds_total Time of loads, by what it was spent on.\n"
                         "# TYPE fstfs_load_seconds_total counter\n");
    for (unsigned i = 0; i < LOAD_PARTS; i++)
        buffer_addf(out, "fstfs_load_seconds_total{part=\"%s\"} %.6f\n", load_part_names[i],
                    (double)metrics->parts[i] / 1e9);
    buffer_add_text(out, "# HELP fstfs_load_duration_seconds Duration of loads.\n"
                         "# TYPE fstfs_load_duration_seconds histogram\n");
    for (unsigned i = 0; i < metrics->count; i++)
        write_durations(&metrics->histograms[i].durations, metrics->histograms[i].checkpoint, out);
    write_durations(&metrics->others, "", out);
}

void
load_metrics_free(struct load_metrics *metrics)
{
    for (unsigned i = 0; i < metrics->count; i++)
        free(metrics->histograms[i].checkpoint);
}
