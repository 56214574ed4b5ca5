/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/pages.h"

#include "fuse/session.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* ---- status: one JSON object ---- */

static void
add_key(struct buffer *out, const char *key)
{
    buffer_addf(out, ",\n  \"%s\": ", key);
}

static void
add_text(struct buffer *out, const char *key, const char *text)
{
    add_key(out, key);
    buffer_add_json_string(out, text, strlen(text));
}

static void
add_number(struct buffer *out, const char *key, uint64_t number)
{
    add_key(out, key);
    buffer_add_u64(out, number);
}

static void
write_status(void *arg, struct buffer *out)
{
    const struct pages *pages = arg;
    const struct options *options = pages->options;
    struct catalog_counters catalog;

    catalog_counters(pages->catalog, &catalog);
    buffer_add_text(out, "{\n  \"version\": \"" FSTFS_VERSION "\"");
    add_number(out, "pid", (uint64_t)getpid());
    add_number(out, "uptime_seconds", (uint64_t)(time(NULL) - pages->started));
    add_text(out, "source", catalog_source(pages->catalog));
    add_text(out, "mountpoint", pages->mountpoint);
    add_text(out, "view", options->view < 0 ? "all" : view_names[options->view]);
    if (options->shards)
        add_number(out, "shards", options->shards);
    if (options->shard_size)
        add_number(out, "shard_size", options->shard_size);
    add_number(out, "checkpoints_read", catalog.checkpoints);
    add_number(out, "tensors_known", catalog.tensors);
    add_number(out, "problems", problems_count(catalog_problems(pages->catalog)));
    add_key(out, "io");
    io_status(pages->io, out);
    add_key(out, "kernel");
    session_status(pages->session, out);
    buffer_add_text(out, "\n}\n");
}

/* ---- metrics: the Prometheus text format, version 0.0.4 ---- */

static void
add_metric(struct buffer *out, const char *name, const char *type, const char *help, uint64_t value)
{
    buffer_addf(out, "# HELP fstfs_%s %s\n# TYPE fstfs_%s %s\nfstfs_%s %" PRIu64 "\n", name, help,
                name, type, name, value);
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
add_io_metrics(struct io *io, struct buffer *out)
{
    struct io_counters counters;

    io_counters(io, &counters);
    add_counter(out, "reads_total", "Reads of the kernel answered.", counters.reads);
    add_counter(out, "read_bytes_total", "Bytes handed to the kernel.", counters.bytes);
    add_counter(out, "read_errors_total", "Reads answered with an error.", counters.errors);
    add_counter(out, "stale_reads_total", "Reads of files that changed after they were opened.",
                counters.stale);
    add_counter(out, "storage_reads_total", "Reads of the source.", counters.storage_reads);
    add_counter(out, "storage_read_bytes_total", "Bytes read from the source.",
                counters.storage_bytes);
    add_counter(out, "stalls_total", "Reads that had to wait for the source.", counters.stalls);
    add_counter(out, "page_cache_read_bytes_total",
                "Of the bytes read from the source: from its page cache.",
                counters.page_cache_bytes);
    add_counter(out, "prefetched_bytes_total", "Bytes read before anybody asked for them.",
                counters.prefetched_bytes);
    add_counter(out, "prefetched_used_bytes_total", "Of these: asked for since.",
                counters.prefetched_used);
    add_counter(out, "prefetched_wasted_bytes_total", "Of these: let go unasked.",
                counters.prefetched_wasted);
    add_counter(out, "storage_retries_total", "Reads of the source done over.", counters.retries);
    add_gauge(out, "buffer_bytes", "Memory of buffers in use.", counters.memory);
    add_gauge(out, "buffer_budget_bytes", "Most memory that buffers take.", counters.memory_budget);
    add_gauge(out, "open_descriptors", "Files of the source open now.", counters.descriptors);
    add_gauge(out, "reads_in_flight", "Reads not yet answered.", counters.in_flight);
}

static void
write_metrics(void *arg, struct buffer *out)
{
    const struct pages *pages = arg;
    struct catalog_counters catalog;
    uint64_t nodes, sets;

    catalog_counters(pages->catalog, &catalog);
    view_counters(pages->view, &nodes, &sets);
    buffer_add_text(out, "# HELP fstfs_build_info The version that runs.\n"
                         "# TYPE fstfs_build_info gauge\n"
                         "fstfs_build_info{version=\"" FSTFS_VERSION "\"} 1\n");
    add_gauge(out, "start_time_seconds", "When it was mounted, in seconds since 1970.",
              (uint64_t)pages->started);
    add_io_metrics(pages->io, out);
    add_counter(out, "listings_total", "Directories of the source listed.", catalog.listings);
    add_counter(out, "headers_total", "Safetensors headers read.", catalog.headers);
    add_counter(out, "header_bytes_total", "Bytes of headers read.", catalog.header_bytes);
    add_gauge(out, "checkpoints", "Checkpoints whose headers are held.", catalog.checkpoints);
    add_gauge(out, "tensors", "Tensors known.", catalog.tensors);
    add_gauge(out, "table_bytes", "Memory of the tables of tensors, in bytes.",
              catalog.table_bytes);
    add_gauge(out, "nodes", "Files and directories the kernel holds.", nodes);
    add_gauge(out, "problems", "Lines in .fstfs/problems.",
              problems_count(catalog_problems(pages->catalog)));
}

static void
write_problems(void *arg, struct buffer *out)
{
    const struct pages *pages = arg;

    problems_write(catalog_problems(pages->catalog), out);
}

void
pages_list(struct pages *pages, struct view_page list[PAGES])
{
    list[0] = (struct view_page){"metrics", 0444, write_metrics, pages};
    /* It tells names of files that not everybody may see. */
    list[1] = (struct view_page){"problems", 0400, write_problems, pages};
    list[2] = (struct view_page){"status", 0444, write_status, pages};
}
