/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include "base/clock.h"
#include "base/file.h"
#include "common/json.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

const char *const sample_counter_names[COUNTERS] = {
    [READS] = "reads",
    [READ_BYTES] = "read_bytes",
    [CACHED_BYTES] = "cached_bytes",
    [STORAGE_BYTES] = "storage_read_bytes",
    [STALLS] = "stalls",
    [READ_ERRORS] = "read_errors",
    [STALE_READS] = "stale_reads",
    [PREFETCHED_BYTES] = "prefetched_bytes",
    [PREFETCHED_USED] = "prefetched_used_bytes",
    [PREFETCHED_WASTED] = "prefetched_wasted_bytes",
    [READS_IN_FLIGHT] = "reads_in_flight",
    [STORAGE_IN_FLIGHT] = "storage_reads_in_flight",
    [STORAGE_WAITING] = "storage_reads_waiting",
    [BUFFER_BYTES] = "buffer_bytes",
    [BUFFER_BUDGET] = "buffer_budget_bytes",
};

errint_t
page_read(const char *point, const char *name, struct buffer *page, struct reason *reason)
{
    char path[PATH_MAX], what[64];
    errint_t error;

    if (snprintf(path, sizeof(path), "%s/.fstfs/%s", point, name) >= (int)sizeof(path))
        return reason_errno(reason, -ENAMETOOLONG, ".fstfs");
    error = file_read_text(path, page);
    if (error == -ENOENT || error == -ENOTDIR)
        return reason_set(reason, error, "Gone", "not mounted any more");
    if (error == -ENOTCONN || error == -ECONNABORTED)
        return reason_set(reason, error, "Gone",
                          "its daemon has died; remove the mount with fusermount3 -u");
    snprintf(what, sizeof(what), ".fstfs/%s", name);
    return error ? reason_errno(reason, error, what) : 0;
}

static void
take_counters(const cJSON *counters, struct sample *sample)
{
    const cJSON *duration = cJSON_GetObjectItemCaseSensitive(counters, "read_duration_seconds");
    char name[64];

    for (size_t i = 0; i < COUNTERS; i++) {
        snprintf(name, sizeof(name), "%s%s", sample_counter_names[i], i < GAUGES ? "_total" : "");
        sample->counters[i] = (uint64_t)json_number(counters, name);
    }
    sample->read_seconds = json_number(duration, "seconds");
}

/* Lists the I/O methods that are off, and the reasons. */
static void
list_unavailable(const cJSON *io, struct buffer *unavailable)
{
    const cJSON *method;

    cJSON_ArrayForEach(method, io)
    {
        const char *why = json_text(method, "why");

        if (!cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(method, "on")))
            continue;
        buffer_addf(unavailable, "%s%s", unavailable->length ? "; " : "", method->string);
        if (*why)
            buffer_addf(unavailable, ": %s", why);
    }
}

errint_t
sample_take(const char *point, struct sample *sample, struct reason *reason)
{
    struct buffer page = BUFFER_INIT;
    const char *source;
    cJSON *status;
    errint_t error;

    *sample = (struct sample){0};
    error = page_read(point, "status", &page, reason);
    sample->at = monotonic_seconds();
    status = error ? NULL : cJSON_ParseWithLength(page.data, page.length);
    buffer_free(&page);
    if (error)
        return error;
    if (!status)
        return reason_set(reason, -EBADMSG, "Status", ".fstfs/status is invalid (expected JSON)");
    sample->pid = (uint64_t)json_number(status, "pid");
    sample->uptime = (uint64_t)json_number(status, "uptime_seconds");
    sample->has_catalog = cJSON_HasObjectItem(status, "problems");
    sample->problems = (uint64_t)json_number(status, "problems");
    sample->checkpoints = (uint64_t)json_number(status, "checkpoints_read");
    take_counters(cJSON_GetObjectItemCaseSensitive(status, "counters"), sample);
    list_unavailable(cJSON_GetObjectItemCaseSensitive(status, "io"), &sample->unavailable);
    source = json_text(status, "source");
    buffer_add_quoted(&sample->source, source, strlen(source), PATH_MAX);
    cJSON_Delete(status);
    return 0;
}

void
sample_free(struct sample *sample)
{
    buffer_free(&sample->source);
    buffer_free(&sample->unavailable);
    *sample = (struct sample){0};
}
