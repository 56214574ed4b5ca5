/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/pages.h"

#include "base/array.h"
#include "base/lease.h"
#include "fuse/opener.h"
#include "fuse/sandbox.h"
#include "fuse/session.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* ---- counters of the engine ---- */

/* A field of struct io_counters and its name in metrics and status. */
struct io_number {
    const char *name, *type, *help;
    size_t offset;
};

#define COUNTER(name, field, help)                                                                 \
    {                                                                                              \
        name, "counter", help, offsetof(struct io_counters, field)                                 \
    }
#define GAUGE(name, field, help)                                                                   \
    {                                                                                              \
        name, "gauge", help, offsetof(struct io_counters, field)                                   \
    }

/* docs/metrics.md explains them. */
static const struct io_number io_numbers[] = {
    COUNTER("requested_bytes_total", bytes_asked, "Bytes the kernel requested."),
    COUNTER("reads_total", reads, "Kernel reads answered."),
    COUNTER("read_bytes_total", bytes, "Bytes returned to the kernel."),
    COUNTER("cached_bytes_total", cached_bytes,
            "Bytes returned to the kernel that were in memory, in flight or in the source's page "
            "cache."),
    COUNTER("read_errors_total", errors, "Reads answered with an error."),
    COUNTER("stale_reads_total", stale, "Reads of files that changed after they were opened."),
    COUNTER("storage_reads_total", storage_reads, "Reads of the source."),
    COUNTER("storage_read_bytes_total", storage_bytes, "Bytes read from the source."),
    COUNTER("stalls_total", stalls, "Reads that waited for the source."),
    COUNTER("page_cache_read_bytes_total", page_cache_bytes,
            "Bytes read from the source that were in its page cache."),
    COUNTER("prefetched_bytes_total", prefetched_bytes, "Bytes prefetched."),
    COUNTER("prefetched_used_bytes_total", prefetched_used,
            "Prefetched bytes that were requested later."),
    COUNTER("prefetched_wasted_bytes_total", prefetched_wasted,
            "Prefetched bytes that were evicted without having been requested."),
    COUNTER("expired_bytes_total", expired, "Bytes freed because they were not read for 5 s."),
    COUNTER("storage_retries_total", retries, "Reads of the source that were retried."),
    GAUGE("storage_reads_in_flight", storage_in_flight, "Reads of the source in flight."),
    GAUGE("storage_reads_waiting", storage_waiting, "Reads of the source that are queued."),
    GAUGE("buffer_bytes", memory, "Buffer memory in use."),
    GAUGE("buffer_budget_bytes", memory_budget, "Limit of the buffer memory."),
    GAUGE("open_descriptors", descriptors, "Open descriptors of files of the source."),
    GAUGE("reads_in_flight", in_flight, "Kernel reads in flight."),
};

#define IO_NUMBERS COUNT_OF(io_numbers)

static uint64_t
io_number_value(const struct io_counters *counters, const struct io_number *number)
{
    return *(const uint64_t *)((const char *)counters + number->offset);
}

/* ---- status: one JSON object ---- */

static void
add_status_key(struct buffer *out, const char *key)
{
    buffer_addf(out, ",\n  \"%s\": ", key);
}

static void
add_status_text(struct buffer *out, const char *key, const char *text)
{
    add_status_key(out, key);
    buffer_add_json_shown(out, text, strlen(text));
}

static void
add_status_number(struct buffer *out, const char *key, uint64_t number)
{
    add_status_key(out, key);
    buffer_add_u64(out, number);
}

static void
add_io_counters(struct buffer *out, struct io *io)
{
    struct io_counters counters;

    io_counters(io, &counters);
    add_status_key(out, "counters");
    buffer_add_char(out, '{');
    for (unsigned i = 0; i < IO_NUMBERS; i++)
        buffer_addf(out, "\n    \"%s\": %" PRIu64 ",", io_numbers[i].name,
                    io_number_value(&counters, &io_numbers[i]));
    buffer_add_text(out, "\n    \"read_duration_seconds\": ");
    histogram_write_json(&counters.duration, out);
    buffer_add_text(out, ",\n    \"storage_read_duration_seconds\": ");
    histogram_write_json(&counters.storage_duration, out);
    buffer_add_char(out, '}');
}

static void
add_leases(struct buffer *out)
{
    struct lease_counters leases;

    lease_counters(&leases);
    add_status_key(out, "leases");
    buffer_addf(out, "{\"held\": %u, \"most\": %u, \"broken\": %" PRIu64 ", \"refused\": %" PRIu64,
                leases.held, leases.most, leases.broken, leases.refused);
    if (leases.refusal) {
        const char *why = strerror(-leases.refusal);

        buffer_add_text(out, ", \"refusal\": ");
        buffer_add_json_string(out, why, strlen(why));
    }
    buffer_add_char(out, '}');
}

/* Not for users who may not read all of the source: the numbers depend on names in its files. */
static void
add_catalog_status(struct buffer *out, struct catalog *catalog)
{
    struct catalog_counters counters;

    catalog_counters(catalog, &counters);
    add_status_number(out, "checkpoints_read", counters.checkpoints);
    add_status_number(out, "tensors_known", counters.tensors);
    add_status_number(out, "problems", catalog_count_problems(catalog));
    buffer_addf(out,
                ",\n  \"headers\": {\"budget\": %" PRIu64 ", \"in_use\": %" PRIu64
                ", \"peak\": %" PRIu64 ", \"refused\": %" PRIu64 "}",
                counters.budget.limit, counters.budget.used, counters.budget.peak,
                counters.budget.refusals);
}

static void
write_status(void *arg, bool for_owner, struct buffer *out)
{
    const struct mount_parts *parts = arg;
    const struct options *options = parts->options;

    buffer_add_text(out, "{\n  \"version\": \"" FSTFS_VERSION "\"");
    add_status_number(out, "pid", (uint64_t)getpid());
    add_status_number(out, "uptime_seconds", (monotonic_ms() - parts->started_ms) / 1000);
    add_status_text(out, "source", catalog_source(parts->catalog));
    add_status_text(out, "mountpoint", parts->mountpoint);
    add_status_text(out, "view", options->view < 0 ? "all" : view_names[options->view]);
    if (options->shards)
        add_status_number(out, "shards", options->shards);
    if (options->shard_size)
        add_status_number(out, "shard_size", options->shard_size);
    if (for_owner)
        add_catalog_status(out, parts->catalog);
    add_status_key(out, "io");
    io_status(parts->io, out);
    add_io_counters(out, parts->io);
    add_leases(out);
    add_status_key(out, "kernel");
    session_status(parts->session, out);
    add_status_key(out, "sandbox");
    sandbox_status(parts->sandbox, opener_opened(), out);
    buffer_add_text(out, "\n}\n");
}

/* ---- metrics: the Prometheus text format, version 0.0.4 ---- */

static void
add_metric_help(struct buffer *out, const char *name, const char *type, const char *help)
{
    buffer_addf(out, "# HELP fstfs_%s %s\n# TYPE fstfs_%s %s\n", name, help, name, type);
}

static void
add_metric(struct buffer *out, const char *name, const char *type, const char *help, uint64_t value)
{
    add_metric_help(out, name, type, help);
    buffer_addf(out, "fstfs_%s %" PRIu64 "\n", name, value);
}

static void
add_counter(struct buffer *out, const char *name, const char *help, uint64_t value)
{
    add_metric(out, name, "counter", help, value);
}

static void
add_gauge(struct buffer *out, const char *name, const char *help, uint64_t value)
{
    add_metric(out, name, "gauge", help, value);
}

static void
add_fallbacks(struct buffer *out, const enum io_fallback fallbacks[IO_MECHANISMS])
{
    static const struct {
        const char *name;
        bool has_option;
    } mechanisms[IO_MECHANISMS] = {
        [IO_MECHANISM_URING] = {"io_uring", true},
        [IO_MECHANISM_DIRECT] = {"direct", true},
        [IO_MECHANISM_DONTCACHE] = {"dontcache", false},
        [IO_MECHANISM_CACHESTAT] = {"cachestat", false},
    };

    add_metric_help(out, "fallback", "gauge", "1 if a mechanism to read the source is not used.");
    for (unsigned i = 0; i < IO_MECHANISMS; i++) {
        buffer_addf(out, "fstfs_fallback{mechanism=\"%s\",reason=\"refused\"} %d\n",
                    mechanisms[i].name, fallbacks[i] == IO_FALLBACK_REFUSED);
        if (mechanisms[i].has_option)
            buffer_addf(out, "fstfs_fallback{mechanism=\"%s\",reason=\"not_wanted\"} %d\n",
                        mechanisms[i].name, fallbacks[i] == IO_FALLBACK_NOT_WANTED);
    }
}

static void
add_io_metrics(struct io *io, struct buffer *out)
{
    struct io_counters counters;

    io_counters(io, &counters);
    for (unsigned i = 0; i < IO_NUMBERS; i++)
        add_metric(out, io_numbers[i].name, io_numbers[i].type, io_numbers[i].help,
                   io_number_value(&counters, &io_numbers[i]));
    add_metric_help(out, "read_duration_seconds", "histogram", "From a kernel read to its reply.");
    histogram_write_metric(&counters.duration, "fstfs_read_duration_seconds", "", out);
    add_metric_help(out, "storage_read_duration_seconds", "histogram",
                    "Reads of the source, except from its page cache.");
    histogram_write_metric(&counters.storage_duration, "fstfs_storage_read_duration_seconds", "",
                           out);
    add_fallbacks(out, counters.fallbacks);
}

/* See add_catalog_status(). */
static void
add_catalog_metrics(struct buffer *out, const struct mount_parts *parts)
{
    struct catalog_counters catalog;
    uint64_t nodes, sets;

    catalog_counters(parts->catalog, &catalog);
    view_counters(parts->view, &nodes, &sets);
    add_counter(out, "listings_total", "Directories of the source listed.", catalog.listings);
    add_counter(out, "headers_total", "Headers of shards read, of all containers.",
                catalog.headers);
    add_counter(out, "header_bytes_total", "Bytes of headers read.", catalog.header_bytes);
    add_gauge(out, "checkpoints", "Checkpoints in memory.", catalog.checkpoints);
    add_gauge(out, "tensors", "Tensors in memory.", catalog.tensors);
    add_gauge(out, "table_bytes", "Memory of tensor tables, in bytes.", catalog.table_bytes);
    add_gauge(out, "header_budget_bytes", "Limit of the memory for headers and indexes.",
              catalog.budget.limit);
    add_gauge(out, "header_memory_bytes", "Memory for headers and indexes in use.",
              catalog.budget.used);
    add_gauge(out, "header_memory_peak_bytes", "Peak of the memory for headers and indexes.",
              catalog.budget.peak);
    add_counter(out, "header_refusals_total",
                "Times that the memory for headers and indexes was exhausted.",
                catalog.budget.refusals);
    add_gauge(out, "nodes", "Nodes that the kernel holds a lookup count on.", nodes);
    add_gauge(out, "problems", "Lines in .fstfs/problems.", catalog_count_problems(parts->catalog));
}

static void
write_metrics(void *arg, bool for_owner, struct buffer *out)
{
    const struct mount_parts *parts = arg;

    buffer_add_text(out, "# HELP fstfs_build_info The running version.\n"
                         "# TYPE fstfs_build_info gauge\n"
                         "fstfs_build_info{version=\"" FSTFS_VERSION "\"} 1\n");
    add_gauge(out, "start_time_seconds", "When it was mounted, in seconds since 1970.",
              (uint64_t)parts->started);
    add_io_metrics(parts->io, out);
    loads_write_metrics(parts->loads, out);
    if (for_owner)
        add_catalog_metrics(out, parts);
}

static void
write_loads(void *arg, bool for_owner, struct buffer *out)
{
    const struct mount_parts *parts = arg;

    (void)for_owner; /* only the owner may open it */
    loads_write(parts->loads, out);
}

static void
write_problems(void *arg, bool for_owner, struct buffer *out)
{
    const struct mount_parts *parts = arg;

    (void)for_owner; /* only the owner may open it */
    catalog_write_problems(parts->catalog, out);
}

/* Surveys the whole source first, so that the page is complete. */
static void
open_problems(void *arg, bool for_owner, struct buffer *out)
{
    const struct mount_parts *parts = arg;
    bool complete = survey_refresh(parts->survey);

    write_problems(arg, for_owner, out);
    survey_write(parts->survey, complete, out);
}

void
pages_list(struct mount_parts *parts, struct view_page list[PAGES])
{
    /* Private: loads and problems name files that other users may not see. */
    list[0] = (struct view_page){"loads", 0400, write_loads, write_loads, parts};
    list[1] = (struct view_page){"metrics", 0444, write_metrics, write_metrics, parts};
    list[2] = (struct view_page){"problems", 0400, write_problems, open_problems, parts};
    list[3] = (struct view_page){"status", 0444, write_status, write_status, parts};
}
