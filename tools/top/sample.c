/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include "base/clock.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_MOST = 1 << 20 }; /* a status page has some 2000 bytes */

static errint_t
read_page(const char *point, struct buffer *page)
{
    char path[PATH_MAX];
    ssize_t got = 1;
    errint_t error = 0;
    int fd;

    if (snprintf(path, sizeof(path), "%s/.fstfs/status", point) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    while (got != 0 && !error && page->length < PAGE_MOST) {
        buffer_reserve(page, 16384);
        if (buffer_failed(page))
            break;
        got = read(fd, page->data + page->length, page->capacity - page->length - 1);
        if (got > 0)
            page->length += (size_t)got;
        else if (got < 0 && errno != EINTR)
            error = -errno;
    }
    close(fd);
    return buffer_failed(page) ? -ENOMEM : error;
}

static uint64_t
number(const cJSON *object, const char *name)
{
    double value = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return value > 0 ? (uint64_t)value : 0; /* NaN where there is none */
}

static void
take_counters(const cJSON *counters, struct sample *sample)
{
    const cJSON *duration = cJSON_GetObjectItemCaseSensitive(counters, "read_duration_seconds");
    const struct {
        const char *name;
        uint64_t *to;
    } all[] = {
        {"reads_total", &sample->reads},
        {"read_bytes_total", &sample->read_bytes},
        {"cached_bytes_total", &sample->cached_bytes},
        {"read_errors_total", &sample->errors},
        {"stale_reads_total", &sample->stale},
        {"stalls_total", &sample->stalls},
        {"storage_read_bytes_total", &sample->storage_bytes},
        {"prefetched_bytes_total", &sample->prefetched},
        {"prefetched_used_bytes_total", &sample->used},
        {"prefetched_wasted_bytes_total", &sample->wasted},
        {"reads_in_flight", &sample->in_flight},
        {"storage_reads_in_flight", &sample->storage_in_flight},
        {"storage_reads_waiting", &sample->storage_waiting},
        {"buffer_bytes", &sample->memory},
        {"buffer_budget_bytes", &sample->budget},
    };
    double seconds = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(duration, "seconds"));

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        *all[i].to = number(counters, all[i].name);
    sample->read_seconds = seconds > 0 ? seconds : 0;
}

/* What says that it is not on, and why. */
static void
take_without(const cJSON *io, struct buffer *without)
{
    const cJSON *way;

    cJSON_ArrayForEach(way, io)
    {
        const char *why = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(way, "why"));

        if (!cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(way, "on")))
            continue;
        buffer_addf(without, "%s%s", without->length ? "; " : "", way->string);
        if (why)
            buffer_addf(without, ": %s", why);
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
    error = read_page(point, &page);
    sample->at = monotonic_seconds();
    status = error ? NULL : cJSON_ParseWithLength(page.data, page.length);
    buffer_free(&page);
    if (error == -ENOENT || error == -ENOTDIR)
        return reason_set(reason, error, "Gone", "it is not mounted any more");
    if (error == -ENOTCONN || error == -ECONNABORTED)
        return reason_set(reason, error, "Gone",
                          "its daemon is gone; fusermount3 -u takes away what is left");
    if (error)
        return reason_set(reason, error, "Status", ".fstfs/status: %s", strerror(-error));
    if (!status)
        return reason_set(reason, -EBADMSG, "Status", ".fstfs/status is not understood");
    sample->pid = number(status, "pid");
    sample->uptime = number(status, "uptime_seconds");
    sample->problems = number(status, "problems");
    sample->checkpoints = number(status, "checkpoints_read");
    take_counters(cJSON_GetObjectItemCaseSensitive(status, "counters"), sample);
    take_without(cJSON_GetObjectItemCaseSensitive(status, "io"), &sample->without);
    source = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(status, "source"));
    if (source)
        buffer_add_quoted(&sample->source, source, strlen(source), PATH_MAX);
    cJSON_Delete(status);
    return 0;
}

void
sample_free(struct sample *sample)
{
    buffer_free(&sample->source);
    buffer_free(&sample->without);
    *sample = (struct sample){0};
}
