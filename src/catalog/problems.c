/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/problems.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"

#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits how many problems are logged per hour: a million invalid files must not fill the journal.
 */
enum { LOGGED_PER_HOUR = 1000 };
enum { NAMED_DEFAULT = 3 }; /* see problem_watch.named */

#define HOUR_MS UINT64_C(3600000)

/* Which problems were logged. A problem that persists is found again and again, but logged once. */
struct problem_log {
    uint64_t hour_started; /* monotonic_ms() */
    unsigned logged_this_hour;
    bool is_full; /* and that was logged, this hour */
    uint64_t hashes[LOGGED_PER_HOUR]; /* of the lines last logged; 0: none */
    unsigned next; /* in hashes[]: the oldest one */
};

enum log_action { LOG_NOTHING, LOG_PROBLEM, LOG_THAT_IT_IS_FULL };

struct problems {
    pthread_mutex_t lock; /* guards `log`, and the lines of all sets */
    struct problem_log log;
    struct problem_watch watch; /* constant */
};

struct problem_set {
    struct problems *problems;
    atomic_uint references;
    char **lines;
    size_t count;
    void *tree; /* of the lines, see tsearch(3) */
    char directory[];
};

struct problems *
problems_new(const struct problem_watch *watch)
{
    struct problems *problems = calloc(1, sizeof(*problems));

    if (problems) {
        pthread_mutex_init(&problems->lock, NULL);
        problems->watch = *watch;
    }
    return problems;
}

void
problems_free(struct problems *problems)
{
    if (!problems)
        return;
    pthread_mutex_destroy(&problems->lock);
    free(problems);
}

struct problem_set *
problem_set_new(struct problems *problems, const char *directory)
{
    struct problem_set *set = calloc(1, sizeof(*set) + strlen(directory) + 1);

    if (!set)
        return NULL;
    set->problems = problems;
    strcpy(set->directory, directory);
    atomic_init(&set->references, 1);
    return set;
}

struct problem_set *
problem_set_ref(struct problem_set *set)
{
    if (set)
        atomic_fetch_add(&set->references, 1);
    return set;
}

void
problem_set_unref(struct problem_set *set)
{
    if (!set || atomic_fetch_sub(&set->references, 1) > 1)
        return;
    tdestroy(set->tree, free);
    free(set->lines);
    free(set);
}

const char *
problem_set_directory(const struct problem_set *set)
{
    return set->directory;
}

size_t
problem_set_count(const struct problem_set *set)
{
    size_t count = 0;

    if (set) {
        pthread_mutex_lock(&set->problems->lock);
        count = set->count;
        pthread_mutex_unlock(&set->problems->lock);
    }
    return count;
}

size_t
problem_set_named_max(const struct problem_set *set)
{
    return set && set->problems->watch.named ? set->problems->watch.named : NAMED_DEFAULT;
}

static char *
make_line(const char *directory, const char *name, const char *text)
{
    struct buffer line = BUFFER_INIT;

    buffer_add_quoted(&line, directory, strlen(directory), SIZE_MAX);
    if (name && *directory)
        buffer_add_char(&line, '/');
    if (name)
        buffer_add_quoted(&line, name, strlen(name), SIZE_MAX);
    else if (!*directory)
        buffer_add_char(&line, '.');
    buffer_add_text(&line, ": ");
    buffer_add_text(&line, text);
    if (buffer_failed(&line)) {
        buffer_free(&line);
        return NULL;
    }
    return line.data;
}

/* Decides what to log about a problem, and records it as logged. The lock is held. */
static enum log_action
problem_log_add(struct problem_log *log, const char *line)
{
    uint64_t hash = hash64(line, strlen(line), 0) | 1, now = monotonic_ms(); /* never 0 */

    for (unsigned i = 0; i < LOGGED_PER_HOUR; i++)
        if (log->hashes[i] == hash)
            return LOG_NOTHING;
    if (log->logged_this_hour == 0 || now - log->hour_started >= HOUR_MS) {
        log->hour_started = now;
        log->logged_this_hour = 0;
        log->is_full = false;
    }
    if (log->is_full)
        return LOG_NOTHING;
    if (log->logged_this_hour == LOGGED_PER_HOUR) {
        log->is_full = true;
        return LOG_THAT_IT_IS_FULL;
    }
    log->logged_this_hour++;
    log->hashes[log->next] = hash;
    log->next = (log->next + 1) % LOGGED_PER_HOUR;
    return LOG_PROBLEM;
}

static int
compare_lines(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Adds `line`, which the set then owns. Returns false, and leaves it to the caller, if the set
 * contains it or memory is short. */
static bool
problem_set_append(struct problem_set *set, char *line)
{
    char *const *found = tsearch(line, &set->tree, compare_lines);

    if (!found || *found != line)
        return false;
    if (!array_add(set->lines, set->count, line)) {
        tdelete(line, &set->tree, compare_lines);
        return false;
    }
    return true;
}

void
problem_set_add(struct problem_set *set, const char *name, const char *format, ...)
{
    const struct problem_watch *watch;
    va_list arguments;
    enum log_action action = LOG_NOTHING;
    bool added;
    char text[1024], *line;

    if (!set)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    watch = &set->problems->watch;
    if (watch->report)
        watch->report(watch->arg, set->directory, name, text);
    line = make_line(set->directory, name, text);
    if (!line)
        return;
    pthread_mutex_lock(&set->problems->lock);
    added = problem_set_append(set, line);
    if (added && !watch->report)
        action = problem_log_add(&set->problems->log, line);
    pthread_mutex_unlock(&set->problems->lock);
    if (action == LOG_PROBLEM)
        log_warning("%s", line);
    else if (action == LOG_THAT_IT_IS_FULL)
        log_warning("%d problems were logged within an hour; until it is over, further ones are "
                    "listed in .fstfs/problems but not logged",
                    LOGGED_PER_HOUR);
    if (!added)
        free(line);
}

void
problems_write(struct problems *problems, struct problem_set *const *sets, size_t set_count,
               struct buffer *out)
{
    char **all;
    size_t most = 0, count = 0;

    pthread_mutex_lock(&problems->lock);
    for (size_t i = 0; i < set_count; i++)
        most += sets[i]->count;
    all = malloc((most + 1) * sizeof(*all));
    if (!all) {
        out->failed = true;
        pthread_mutex_unlock(&problems->lock);
        return;
    }
    for (size_t i = 0; i < set_count; i++)
        for (size_t k = 0; k < sets[i]->count; k++)
            all[count++] = sets[i]->lines[k];
    qsort(all, count, sizeof(*all), text_compare_strings);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && strcmp(all[i], all[i - 1]) == 0)
            continue;
        buffer_add_text(out, all[i]);
        buffer_add_char(out, '\n');
    }
    pthread_mutex_unlock(&problems->lock);
    free(all);
}
