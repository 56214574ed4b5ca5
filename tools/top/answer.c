/* SPDX-License-Identifier: Apache-2.0 */
#include "answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Counters only rise; what others subtracted meanwhile must not wrap. */
static uint64_t
rise(uint64_t before, uint64_t now)
{
    return now > before ? now - before : 0;
}

/* More than every other read had to wait. */
static bool
waits_for_storage(const struct answer *answer)
{
    return answer->stalls * 2 > answer->reads;
}

static void
judge(struct answer *answer)
{
    if (answer->errors > 0) {
        answer->state = "errors";
        answer->meaning = "reads fail: .fstfs/problems and the daemon's log say why";
    } else if (answer->bytes == 0 && answer->now->in_flight == 0) {
        answer->state = "idle";
        answer->meaning = "idle: no program asks for bytes that it has not yet";
    } else if (answer->bytes == 0) {
        answer->state = "stuck";
        answer->meaning = "reads wait for the storage, and none was answered";
    } else if (waits_for_storage(answer)) {
        answer->state = "storage";
        answer->meaning = "the storage sets the pace: most reads wait for it";
    } else {
        answer->state = "reader";
        answer->meaning = "the reader sets the pace: most of what it asks for is there already";
    }
}

void
answer_make(struct answer *answer, const struct sample *before, const struct sample *now)
{
    static const struct sample none;
    bool same = before->pid == now->pid && before->uptime <= now->uptime;
    const struct sample *from = same ? before : &none;

    answer->now = now;
    answer->seconds = now->at - before->at;
    answer->bytes = rise(from->read_bytes, now->read_bytes);
    answer->cached = rise(from->cached_bytes, now->cached_bytes);
    answer->reads = rise(from->reads, now->reads);
    answer->storage = rise(from->storage_bytes, now->storage_bytes);
    answer->stalls = rise(from->stalls, now->stalls);
    answer->errors = rise(from->errors, now->errors);
    answer->stale = rise(from->stale, now->stale);
    answer->prefetched = rise(from->prefetched, now->prefetched);
    answer->used = rise(from->used, now->used);
    answer->wasted = rise(from->wasted, now->wasted);
    answer->read_seconds = now->read_seconds - from->read_seconds;
    judge(answer);
}

/* ---- for people ---- */

static double
percent(uint64_t part, uint64_t whole)
{
    return whole ? 100 * (double)part / (double)whole : 0;
}

/* "1.23 GB", in units of a thousand as storage is sold. */
static void
add_bytes(struct buffer *out, double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    unsigned unit = 0;

    for (; bytes >= 999.5 && unit < 5; unit++)
        bytes /= 1000;
    buffer_addf(out,
                unit == 0 || bytes >= 99.95 ? "%.0f %s"
                : bytes >= 9.995            ? "%.1f %s"
                                            : "%.2f %s",
                bytes, units[unit]);
}

static void
add_rate(struct buffer *out, const struct answer *answer, uint64_t bytes)
{
    add_bytes(out, answer->seconds > 0 ? (double)bytes / answer->seconds : 0);
    buffer_add_text(out, "/s");
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
add_ahead(struct buffer *out, const struct sample *now)
{
    add_bytes(out, (double)now->prefetched);
    buffer_addf(out, " read ahead, %.1f %% used, %.1f %% wasted",
                percent(now->used, now->prefetched), percent(now->wasted, now->prefetched));
}

static void
add_now(struct buffer *out, const struct answer *answer)
{
    const struct sample *now = answer->now;

    buffer_add_text(out, "Now       ");
    add_rate(out, answer, answer->bytes);
    buffer_add_text(out, " to readers, ");
    add_rate(out, answer, answer->storage);
    buffer_addf(out,
                " from storage\nQueue     %" PRIu64 " reads asked, %" PRIu64
                " at the storage, %" PRIu64 " waiting for it\n",
                now->in_flight, now->storage_in_flight, now->storage_waiting);
    buffer_addf(out, "Answers   %.2f ms on average; %.0f %% of reads waited for the storage\n",
                answer->reads ? 1000 * answer->read_seconds / (double)answer->reads : 0,
                percent(answer->stalls, answer->reads));
}

static void
add_since(struct buffer *out, const struct sample *now)
{
    buffer_add_text(out, "In all    ");
    add_bytes(out, (double)now->read_bytes);
    buffer_add_text(out, " to readers, ");
    add_bytes(out, (double)now->storage_bytes);
    buffer_addf(out, " from storage; %" PRIu64 " checkpoints looked into\nAhead     ",
                now->checkpoints);
    add_ahead(out, now);
    buffer_add_text(out, "\nMemory    ");
    add_bytes(out, (double)now->memory);
    buffer_add_text(out, " of ");
    add_bytes(out, (double)now->budget);
    buffer_addf(out,
                " of buffers\nErrors    %" PRIu64 " reads, %" PRIu64
                " of them of changed files; %" PRIu64 " lines in .fstfs/problems\n",
                now->errors, now->stale, now->problems);
    if (now->without.length)
        buffer_addf(out, "Without   %s\n", now->without.data);
}

void
answer_screen(const struct answer *answer, struct buffer *out)
{
    const struct sample *now = answer->now;

    buffer_add_text(out, "fstfs     ");
    buffer_add_quoted(out, answer->point, strlen(answer->point), PATH_MAX);
    buffer_addf(out, " shows %s, up ", now->source.length ? now->source.data : "?");
    add_time(out, now->uptime);
    buffer_addf(out, ", process %" PRIu64 "\n", now->pid);
    add_now(out, answer);
    add_since(out, now);
    buffer_addf(out, "\n=> %s\n\n", answer->meaning);
    for (size_t i = 0; i < answer->users->count; i++) {
        add_user(out, &answer->users->list[i]);
        buffer_add_char(out, '\n');
    }
    if (answer->users->left_out)
        buffer_addf(out, "and %zu more processes\n", answer->users->left_out);
}

void
answer_line(const struct answer *answer, struct buffer *out)
{
    const struct sample *now = answer->now;
    time_t clock = time(NULL);
    struct tm local;
    char text[16] = "";

    if (localtime_r(&clock, &local))
        strftime(text, sizeof(text), "%H:%M:%S", &local);
    buffer_addf(out, "%s  ", text);
    add_rate(out, answer, answer->bytes);
    buffer_add_text(out, " to readers, ");
    add_rate(out, answer, answer->storage);
    buffer_addf(out, " from storage, %.0f %% of reads waited; ",
                percent(answer->stalls, answer->reads));
    add_ahead(out, now);
    buffer_add_text(out, "; ");
    add_bytes(out, (double)now->memory);
    buffer_addf(out, " of buffers; %s", answer->meaning);
    for (size_t i = 0; i < answer->users->count; i++) {
        buffer_add_text(out, "; ");
        add_user(out, &answer->users->list[i]);
    }
    buffer_add_char(out, '\n');
}

/* ---- for programs ---- */

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
answer_json(const struct answer *answer, struct buffer *out)
{
    const struct sample *now = answer->now;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"pid", now->pid},
        {"uptime_seconds", now->uptime},
        {"reads", answer->reads},
        {"read_bytes", answer->bytes},
        {"cached_bytes", answer->cached},
        {"storage_read_bytes", answer->storage},
        {"stalls", answer->stalls},
        {"read_errors", answer->errors},
        {"stale_reads", answer->stale},
        {"prefetched_bytes", answer->prefetched},
        {"prefetched_used_bytes", answer->used},
        {"prefetched_wasted_bytes", answer->wasted},
        {"reads_in_flight", now->in_flight},
        {"storage_reads_in_flight", now->storage_in_flight},
        {"storage_reads_waiting", now->storage_waiting},
        {"buffer_bytes", now->memory},
        {"buffer_budget_bytes", now->budget},
        {"problems", now->problems},
    };

    buffer_addf(out, "{\"time\": %lld, \"seconds\": %.3f, \"mountpoint\": ", (long long)time(NULL),
                answer->seconds);
    buffer_add_json_shown(out, answer->point, strlen(answer->point));
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        buffer_addf(out, ", \"%s\": %" PRIu64, numbers[i].name, numbers[i].value);
    buffer_addf(out, ", \"state\": \"%s\", \"meaning\": \"%s\", \"users\": [", answer->state,
                answer->meaning);
    for (size_t i = 0; i < answer->users->count; i++) {
        buffer_add_text(out, i ? ", " : "");
        add_user_json(out, &answer->users->list[i]);
    }
    buffer_addf(out, "], \"users_left_out\": %zu}\n", answer->users->left_out);
}
