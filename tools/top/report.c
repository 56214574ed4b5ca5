/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include "common/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void
set_state(struct report *report)
{
    const uint64_t *increase = report->increase;

    if (increase[READ_ERRORS] > 0) {
        report->state = "errors";
        report->meaning = "reads fail: see .fstfs/problems and the daemon's log";
    } else if (increase[READ_BYTES] == 0 && report->now->counters[READS_IN_FLIGHT] == 0) {
        report->state = "idle";
        report->meaning = "idle: no reads reach the mount";
    } else if (increase[READ_BYTES] == 0) {
        report->state = "stuck";
        report->meaning = "stuck: reads wait for storage, and none completed";
    } else if (increase[STALLS] * 2 > increase[READS]) {
        report->state = "storage";
        report->meaning = "limited by storage: most reads wait for it";
    } else {
        report->state = "reader";
        report->meaning = "limited by the reader: most reads are served from memory";
    }
}

void
report_make(struct report *report, const struct sample *before, const struct sample *now)
{
    static const struct sample none;
    bool same = before->pid == now->pid && before->uptime <= now->uptime;
    const struct sample *from = same ? before : &none;

    report->now = now;
    report->seconds = now->at - before->at;
    for (size_t i = 0; i < GAUGES; i++)
        report->increase[i] =
            now->counters[i] > from->counters[i] ? now->counters[i] - from->counters[i] : 0;
    report->read_seconds = now->read_seconds - from->read_seconds;
    set_state(report);
}

/* ---- text ---- */

static double
percent(uint64_t part, uint64_t whole)
{
    return whole ? 100 * (double)part / (double)whole : 0;
}

/* Formats a number of bytes per second, as units_bytes(). */
static char *
format_rate(char out[UNITS_SIZE], const struct report *report, uint64_t bytes)
{
    return units_bytes(out, report->seconds > 0 ? (double)bytes / report->seconds : 0);
}

static void
add_time(struct buffer *out, uint64_t seconds)
{
    buffer_addf(out, "%" PRIu64 ":%02u:%02u", seconds / 3600, (unsigned)(seconds / 60 % 60),
                (unsigned)(seconds % 60));
}

static void
add_user(struct buffer *out, const struct user *user)
{
    buffer_add_quoted(out, user->name, strlen(user->name), sizeof(user->name));
    buffer_addf(out, " (%ld) ", (long)user->pid);
    for (size_t i = 0; i < user->file_count && i < USER_FILES; i++) {
        buffer_add_text(out, i ? ", " : "");
        buffer_add_quoted(out, user->files[i], strlen(user->files[i]), PATH_MAX);
    }
    if (user->file_count > USER_FILES)
        buffer_addf(out, " and %zu more", user->file_count - USER_FILES);
}

static void
add_prefetched(struct buffer *out, const struct sample *now)
{
    const uint64_t *counters = now->counters;
    char bytes[UNITS_SIZE];

    buffer_addf(out, "%s prefetched, %.1f %% used, %.1f %% wasted",
                units_bytes(bytes, (double)counters[PREFETCHED_BYTES]),
                percent(counters[PREFETCHED_USED], counters[PREFETCHED_BYTES]),
                percent(counters[PREFETCHED_WASTED], counters[PREFETCHED_BYTES]));
}

/* Lines about the time between the samples. */
static void
add_interval(struct buffer *out, const struct report *report)
{
    const uint64_t *counters = report->now->counters, reads = report->increase[READS];
    char read[UNITS_SIZE], storage[UNITS_SIZE];

    buffer_addf(out, "Rate      %s/s to readers, %s/s from storage\n",
                format_rate(read, report, report->increase[READ_BYTES]),
                format_rate(storage, report, report->increase[STORAGE_BYTES]));
    buffer_addf(out,
                "In flight %" PRIu64 " reads, %" PRIu64 " storage reads, %" PRIu64
                " queued for storage\n",
                counters[READS_IN_FLIGHT], counters[STORAGE_IN_FLIGHT], counters[STORAGE_WAITING]);
    buffer_addf(out, "Latency   %.2f ms on average; %.0f %% of reads waited for storage\n",
                reads ? 1000 * report->read_seconds / (double)reads : 0,
                percent(report->increase[STALLS], reads));
}

/* Lines about the time since the mount. */
static void
add_totals(struct buffer *out, const struct sample *now)
{
    const uint64_t *counters = now->counters;
    char bytes[UNITS_SIZE], other[UNITS_SIZE];

    buffer_addf(out, "Total     %s to readers, %s from storage",
                units_bytes(bytes, (double)counters[READ_BYTES]),
                units_bytes(other, (double)counters[STORAGE_BYTES]));
    if (now->has_catalog)
        buffer_addf(out, "; %" PRIu64 " checkpoints opened", now->checkpoints);
    buffer_add_text(out, "\nPrefetch  ");
    add_prefetched(out, now);
    buffer_addf(out, "\nMemory    %s of %s of buffers\n",
                units_bytes(bytes, (double)counters[BUFFER_BYTES]),
                units_bytes(other, (double)counters[BUFFER_BUDGET]));
    buffer_addf(out, "Errors    %" PRIu64 " reads, %" PRIu64 " of them of changed files",
                counters[READ_ERRORS], counters[STALE_READS]);
    if (now->has_catalog)
        buffer_addf(out, "; %" PRIu64 " lines in .fstfs/problems", now->problems);
    buffer_add_char(out, '\n');
    if (now->unavailable.length)
        buffer_addf(out, "Off       %s\n", now->unavailable.data);
}

void
report_screen(const struct report *report, struct buffer *out)
{
    const struct sample *now = report->now;

    buffer_add_text(out, "fstfs     ");
    buffer_add_quoted(out, report->point, strlen(report->point), PATH_MAX);
    buffer_addf(out, " of %s, up ", now->source.length ? now->source.data : "?");
    add_time(out, now->uptime);
    buffer_addf(out, ", process %" PRIu64 "\n", now->pid);
    add_interval(out, report);
    add_totals(out, now);
    buffer_addf(out, "\n=> %s\n\n", report->meaning);
    for (size_t i = 0; i < report->users->count; i++) {
        add_user(out, &report->users->list[i]);
        buffer_add_char(out, '\n');
    }
    if (report->users->left_out)
        buffer_addf(out, "and %zu more processes\n", report->users->left_out);
}

void
report_line(const struct report *report, struct buffer *out)
{
    const struct sample *now = report->now;
    time_t clock = time(NULL);
    struct tm local;
    char text[16] = "", read[UNITS_SIZE], storage[UNITS_SIZE], buffers[UNITS_SIZE];

    if (localtime_r(&clock, &local))
        strftime(text, sizeof(text), "%H:%M:%S", &local);
    buffer_addf(out, "%s  %s/s to readers, %s/s from storage, %.0f %% of reads waited; ", text,
                format_rate(read, report, report->increase[READ_BYTES]),
                format_rate(storage, report, report->increase[STORAGE_BYTES]),
                percent(report->increase[STALLS], report->increase[READS]));
    add_prefetched(out, now);
    buffer_addf(out, "; %s of buffers; %s",
                units_bytes(buffers, (double)now->counters[BUFFER_BYTES]), report->meaning);
    for (size_t i = 0; i < report->users->count; i++) {
        buffer_add_text(out, "; ");
        add_user(out, &report->users->list[i]);
    }
    buffer_add_char(out, '\n');
}

/* ---- JSON ---- */

static void
add_user_json(struct buffer *out, const struct user *user)
{
    buffer_addf(out, "{\"pid\": %ld, \"name\": ", (long)user->pid);
    buffer_add_json_shown(out, user->name, strlen(user->name));
    buffer_addf(out, ", \"file_count\": %zu, \"files\": [", user->file_count);
    for (size_t i = 0; i < user->file_count && i < USER_FILES; i++) {
        buffer_add_text(out, i ? ", " : "");
        buffer_add_json_shown(out, user->files[i], strlen(user->files[i]));
    }
    buffer_add_text(out, "]}");
}

void
report_json(const struct report *report, struct buffer *out)
{
    const struct sample *now = report->now;

    buffer_addf(out, "{\"time\": %lld, \"seconds\": %.3f, \"mountpoint\": ", (long long)time(NULL),
                report->seconds);
    buffer_add_json_shown(out, report->point, strlen(report->point));
    buffer_addf(out, ", \"pid\": %" PRIu64 ", \"uptime_seconds\": %" PRIu64, now->pid, now->uptime);
    for (size_t i = 0; i < COUNTERS; i++)
        buffer_addf(out, ", \"%s\": %" PRIu64, sample_counter_names[i],
                    i < GAUGES ? report->increase[i] : now->counters[i]);
    if (now->has_catalog)
        buffer_addf(out, ", \"problems\": %" PRIu64, now->problems);
    buffer_addf(out, ", \"state\": \"%s\", \"meaning\": \"%s\", \"users\": [", report->state,
                report->meaning);
    for (size_t i = 0; i < report->users->count; i++) {
        buffer_add_text(out, i ? ", " : "");
        add_user_json(out, &report->users->list[i]);
    }
    buffer_addf(out, "], \"users_omitted\": %zu}\n", report->users->left_out);
}
