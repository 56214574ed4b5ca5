/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/loads.h"

#include "base/clock.h"
#include "fuse/load_metrics.h"
#include "fuse/load_timeline.h"
#include "fuse/run_delay.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A read that begins after a longer time without reads is extended by its thread's run delay. */
#define QUIET_NS UINT64_C(1000000)

#define LOAD_PAUSE_NS (LOAD_PAUSE_SECONDS * UINT64_C(1000000000))

/* Guarded by loads->lock. */
struct load {
    struct load *older; /* in the list: the load that began before this one */
    bool is_listed, has_ended;
    bool is_named; /* `command` was looked up */
    unsigned references; /* of the list, of each open file and of each read in flight */
    struct family *family; /* of the checkpoint; a reference */
    enum view_kind view;
    pid_t group; /* process group; 0: not visible to the daemon */
    char command[COMMAND_SIZE];
    time_t date; /* of the first read */
    uint64_t begun; /* monotonic_ns() of the first read */
    uint64_t changed; /* monotonic_ns() when a read last began or ended */
    unsigned in_flight;
    uint64_t starts; /* sum of `started` of the reads in flight, modulo 2^64 */
    uint64_t opens; /* files opened while it ran, and files opened earlier that it has read */
    uint64_t reads, bytes, cached_bytes, stalls, errors;
    uint64_t busy; /* nanoseconds with a read in flight */
    uint64_t duration, waited; /* sums over all reads, in nanoseconds */
    struct load_timeline timeline;
    struct io_family_counters before; /* of the family, when the load began */
    struct io_family_counters after; /* valid if has_ended or has_snapshot */
    bool has_snapshot; /* `after` was set when the load became idle */
};

struct loads {
    pthread_mutex_t lock; /* guards the rest, except constants */
    struct io *io; /* constant */
    void (*command)(pid_t thread, char name[COMMAND_SIZE]); /* constant */
    struct load *newest;
    unsigned count; /* on the list */
    unsigned running; /* of these: load_end() was not called */
    struct load_metrics metrics;
};

struct loads *
loads_new(struct io *io, bool are_names_public,
          void (*command)(pid_t thread, char name[COMMAND_SIZE]))
{
    struct loads *loads = calloc(1, sizeof(*loads));

    if (!loads)
        return NULL;
    pthread_mutex_init(&loads->lock, NULL);
    loads->io = io;
    loads->command = command;
    load_metrics_init(&loads->metrics, are_names_public);
    return loads;
}

/* ---- with the lock held ---- */

static void
load_unref(struct load *load)
{
    if (--load->references > 0)
        return;
    family_unref(load->family);
    free(load);
}

/* Records that reads were in flight from `start` to `now`. */
static void
load_add_busy(struct load *load, uint64_t start, uint64_t now)
{
    load->busy += now - start;
    load_timeline_add_busy(&load->timeline, start - load->begun, now - load->begun);
}

/* Must be called before the number of reads in flight changes. */
static void
load_advance(struct load *load, uint64_t now)
{
    if (load->in_flight > 0)
        load_add_busy(load, load->changed, now);
    load->changed = now;
}

/* Returns the state of a load at `now`. Reads in flight are counted up to then, as waiting for
 * storage: what they wait for is not known until they end. */
static struct load
load_at(const struct load *load, uint64_t now)
{
    struct load state = *load;
    uint64_t pending = load->in_flight * now - load->starts;

    if (load->in_flight == 0)
        return state;
    load_advance(&state, now);
    state.duration += pending;
    state.waited += pending;
    return state;
}

/* Fills in the three parts of a load's time, in nanoseconds; see loads.h. */
static void
load_split_time(const struct load *load, uint64_t parts[LOAD_PARTS])
{
    double share = load->duration ? (double)load->waited / (double)load->duration : 0;

    parts[LOAD_STORAGE] = (uint64_t)((double)load->busy * share);
    parts[LOAD_DAEMON] = load->busy - parts[LOAD_STORAGE];
    parts[LOAD_READER] = load->changed - load->begun - load->busy;
}

static bool
load_is_over(const struct load *load, uint64_t now)
{
    return load->has_ended || (load->in_flight == 0 && now - load->changed >= LOAD_PAUSE_NS);
}

static void
load_end(struct loads *loads, struct load *load, uint64_t now)
{
    const struct load state = load_at(load, now);
    uint64_t parts[LOAD_PARTS];

    load_split_time(&state, parts);
    if (!load->has_snapshot)
        io_family_counters(loads->io, load->family, &load->after);
    load->has_ended = true;
    loads->running--;
    load_metrics_add(&loads->metrics, load->family->name, parts);
}

/* Ends the loads that are over, before later reads change the counters of their checkpoints. */
static void
loads_end_over(struct loads *loads, uint64_t now)
{
    for (struct load *load = loads->newest; load; load = load->older)
        if (!load->has_ended && load_is_over(load, now))
            load_end(loads, load, now);
}

static void
loads_remove_oldest(struct loads *loads, uint64_t now)
{
    struct load **at = &loads->newest, *oldest = loads->newest;

    for (; oldest->older; oldest = oldest->older)
        at = &oldest->older;
    *at = NULL;
    loads->count--;
    if (!oldest->has_ended)
        load_end(loads, oldest, now);
    load_unref(oldest);
}

/* Takes a snapshot of the checkpoint's counters for an idle load, so that later reads by other
 * loads are not counted for it. Its next read discards the snapshot. */
static void
load_take_snapshot(struct loads *loads, struct load *load)
{
    io_family_counters(loads->io, load->family, &load->after);
    load->has_snapshot = true;
}

/* Takes snapshots for the idle loads of a family, before another load of it begins. */
static void
loads_take_idle_snapshots(struct loads *loads, const struct family *family)
{
    for (struct load *load = loads->newest; load; load = load->older)
        if (load->family == family && !load->has_ended && !load->has_snapshot &&
            load->in_flight == 0)
            load_take_snapshot(loads, load);
}

static void
load_begin(struct loads *loads, struct load *load, uint64_t now)
{
    if (loads->newest && loads->count == LOADS_MOST)
        loads_remove_oldest(loads, now);
    loads_take_idle_snapshots(loads, load->family);
    load->is_listed = true;
    load->references++;
    load->date = time(NULL);
    load->begun = load->changed = now;
    io_family_counters(loads->io, load->family, &load->before);
    load->older = loads->newest;
    loads->newest = load;
    loads->count++;
    loads->running++;
}

/* Finds the running load of this checkpoint, view and process group in the list. Returns a new
 * reference; NULL: there is none. */
static struct load *
loads_find(const struct loads *loads, const struct family *family, enum view_kind view, pid_t group,
           uint64_t now)
{
    for (struct load *load = loads->newest; load; load = load->older)
        if (load->family == family && load->view == view && load->group == group &&
            !load_is_over(load, now)) {
            load->references++;
            return load;
        }
    return NULL;
}

/* Returns a load with one reference, which is not in the list. */
static struct load *
load_new(struct family *family, enum view_kind view, pid_t group)
{
    struct load *load = calloc(1, sizeof(*load));

    if (!load)
        return NULL;
    load->references = 1;
    load->family = family_ref(family);
    load->view = view;
    load->group = group;
    return load;
}

/* Returns the load that a read belongs to if the file's last load was `load`: that one, begun if
 * this is its first read, or another one if it has ended. Counts the file in `opens` of a load that
 * it joins or begins. Takes over the reference to `load` and returns one to the result. */
static struct load *
load_current(struct loads *loads, struct load *load, uint64_t now)
{
    struct load *other;

    if (load->is_listed && !load_is_over(load, now))
        return load;
    loads_end_over(loads, now);
    other = loads_find(loads, load->family, load->view, load->group, now);
    if (!other && !load->is_listed) {
        load_begin(loads, load, now);
        load->opens++;
        return load;
    }
    if (!other) {
        other = load_new(load->family, load->view, load->group);
        if (!other)
            return load;
        load_begin(loads, other, now);
    }
    other->opens++;
    load_unref(load);
    return other;
}

/* Extends a read to the past by the run delay of its thread, at most to the end of the load's last
 * read. Only if no other read is in flight: otherwise that time is already counted as busy. */
static void
load_add_delay(struct load *load, struct load_read *read, uint64_t delay)
{
    uint64_t idle = read->started - load->changed;

    if (load->in_flight > 0)
        return;
    delay = delay < idle ? delay : idle;
    read->started -= delay;
    load_add_busy(load, read->started, read->started + delay);
}

/* ---- files and reads ---- */

static struct family *
family_of_list(const struct extent_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->extents[i].backing)
            return list->extents[i].backing->family;
    return NULL;
}

struct load *
loads_open(struct loads *loads, const struct extent_list *list, enum view_kind view, pid_t thread)
{
    struct family *family = family_of_list(list);
    pid_t group = thread > 0 ? getpgid(thread) : 0;
    struct load *load;

    if (!family)
        return NULL;
    group = group > 0 ? group : 0;
    pthread_mutex_lock(&loads->lock);
    load = loads_find(loads, family, view, group, monotonic_ns());
    if (load)
        load->opens++;
    pthread_mutex_unlock(&loads->lock);
    return load ? load : load_new(family, view, group);
}

void
loads_close(struct loads *loads, struct load *load)
{
    if (!load)
        return;
    pthread_mutex_lock(&loads->lock);
    load_unref(load);
    pthread_mutex_unlock(&loads->lock);
}

/* Looks up the name of the reading program. Done once per load and without the lock, because the
 * lookup may send a request to a helper process. */
static void
load_name(struct loads *loads, struct load *load, pid_t thread)
{
    char command[COMMAND_SIZE];

    loads->command(thread, command);
    pthread_mutex_lock(&loads->lock);
    memcpy(load->command, command, sizeof(command));
    pthread_mutex_unlock(&loads->lock);
}

struct load_read
loads_begin_read(struct loads *loads, struct load **load, pid_t thread)
{
    struct load_read read = {0};
    uint64_t now, delay = 0;
    bool is_late, is_named;

    pthread_mutex_lock(&loads->lock);
    if (!*load) {
        pthread_mutex_unlock(&loads->lock);
        return read;
    }
    is_late = (*load)->in_flight == 0 && monotonic_ns() - (*load)->changed > QUIET_NS;
    if (is_late) {
        pthread_mutex_unlock(&loads->lock);
        delay = run_delay_increase();
        pthread_mutex_lock(&loads->lock);
    }
    now = read.started = monotonic_ns();
    read.load = *load = load_current(loads, *load, now);
    read.load->references++;
    load_add_delay(read.load, &read, delay);
    load_advance(read.load, now);
    read.load->in_flight++;
    read.load->starts += read.started;
    read.load->has_snapshot = false;
    is_named = read.load->is_named || thread <= 0;
    read.load->is_named = true;
    pthread_mutex_unlock(&loads->lock);
    if (!is_named)
        load_name(loads, read.load, thread);
    return read;
}

void
loads_end_read(struct loads *loads, const struct load_read *read, const struct io_answer *answer,
               uint64_t bytes)
{
    struct load *load = read->load;
    uint64_t now;

    if (!load)
        return;
    pthread_mutex_lock(&loads->lock);
    now = monotonic_ns();
    load_advance(load, now);
    load->in_flight--;
    load->starts -= read->started;
    if (load->in_flight == 0 && loads->running > 1)
        load_take_snapshot(loads, load); /* another load may be of the same checkpoint */
    load->reads++;
    load->stalls += answer->waited > 0;
    load->duration += now - read->started;
    load->waited += answer->waited;
    if (answer->result == 0) {
        load->bytes += bytes;
        load->cached_bytes += answer->cached_bytes;
        load_timeline_add_bytes(&load->timeline, now - load->begun, bytes);
    } else {
        load->errors++;
    }
    load_unref(load);
    pthread_mutex_unlock(&loads->lock);
}

/* ---- the page ---- */

static void
add_seconds_field(struct buffer *out, const char *name, uint64_t nanoseconds)
{
    buffer_addf(out, ", \"%s\": %.6f", name, (double)nanoseconds / 1e9);
}

static void
add_number_field(struct buffer *out, const char *name, uint64_t number)
{
    buffer_addf(out, ", \"%s\": %" PRIu64, name, number);
}

static void
add_ratio_field(struct buffer *out, const char *name, uint64_t part, uint64_t whole)
{
    buffer_addf(out, ", \"%s\": ", name);
    if (whole)
        buffer_addf(out, "%.3f", (double)part / (double)whole);
    else
        buffer_add_text(out, "null");
}

/* Returns the order in which tensors were read: the one that at least 3 of 4 steps from one tensor
 * of a file to the next follow, or "random"; "unknown" if there are fewer than four steps. */
static const char *
order_of_reads(const struct io_family_counters *before, const struct io_family_counters *after)
{
    uint64_t all = after->pieces_started - before->pieces_started;
    uint64_t in_file = after->started_in_file_order - before->started_in_file_order;
    uint64_t by_name = after->started_by_name - before->started_by_name;

    if (all < 4) /* too few steps to judge by */
        return "unknown";
    if (in_file >= by_name && in_file * 4 >= all * 3)
        return "file";
    return by_name * 4 >= all * 3 ? "name" : "random";
}

static void
add_bottleneck(struct buffer *out, const uint64_t parts[LOAD_PARTS])
{
    static const struct {
        const char *who, *what;
    } verdicts[LOAD_PARTS] = {
        [LOAD_STORAGE] = {"storage", "reads were waiting for it"},
        [LOAD_DAEMON] = {"fstfs", "reads were waiting for its processor time or memory"},
        [LOAD_READER] = {"the reader", "no read was waiting"},
    };
    enum load_part longest = LOAD_READER;
    uint64_t all = 0;

    for (enum load_part part = 0; part < LOAD_PARTS; part++) {
        all += parts[part];
        if (parts[part] > parts[longest])
            longest = part;
    }
    buffer_addf(out, ", \"bottleneck\": \"%s\", \"verdict\": \"%s: %u %% of the time %s\"",
                load_part_names[longest], verdicts[longest].who,
                all ? (unsigned)((double)parts[longest] * 100 / (double)all + 0.5) : 0,
                verdicts[longest].what);
}

/* Appends what was read of the checkpoint's files during the load, by this load or others. */
static void
add_storage_fields(struct buffer *out, const struct load *load,
                   const struct io_family_counters *after)
{
    static const char *const names[FAMILY_COUNTERS] = {
        [FAMILY_STORAGE] = "storage_bytes",
        [FAMILY_PAGE_CACHE] = "page_cache_bytes",
        [FAMILY_PREFETCHED] = "prefetched_bytes",
        [FAMILY_PREFETCHED_USED] = "prefetched_used_bytes",
        [FAMILY_PREFETCHED_WASTED] = "prefetched_wasted_bytes",
    };
    uint64_t bytes[FAMILY_COUNTERS], prefetched, hits;

    for (int i = 0; i < FAMILY_COUNTERS; i++) {
        bytes[i] = after->bytes[i] - load->before.bytes[i];
        add_number_field(out, names[i], bytes[i]);
    }
    /* Bytes that an earlier load prefetched may have been used. */
    prefetched = bytes[FAMILY_PREFETCHED];
    hits = bytes[FAMILY_PREFETCHED_USED];
    add_ratio_field(out, "prefetch_hit_ratio", hits < prefetched ? hits : prefetched, prefetched);
    add_ratio_field(out, "read_ratio", bytes[FAMILY_STORAGE], load->bytes);
    buffer_addf(out, ", \"order\": \"%s\"", order_of_reads(&load->before, after));
}

static void
load_write(const struct load *load, struct loads *loads, uint64_t now, struct buffer *out)
{
    uint64_t parts[LOAD_PARTS];
    struct io_family_counters after = load->after;
    const struct family *family = load->family;

    load_split_time(load, parts);
    if (!load->has_ended && !load->has_snapshot)
        io_family_counters(loads->io, load->family, &after);
    buffer_add_text(out, "{\"checkpoint\": ");
    buffer_add_json_shown(out, family->name, strlen(family->name));
    buffer_addf(out, ", \"view\": \"%s\", \"command\": ", view_names[load->view]);
    buffer_add_json_shown(out, load->command, strlen(load->command));
    add_number_field(out, "process_group", (uint64_t)load->group);
    add_number_field(out, "start", (uint64_t)load->date);
    buffer_addf(out, ", \"running\": %s", load_is_over(load, now) ? "false" : "true");
    add_seconds_field(out, "seconds", load->changed - load->begun);
    add_seconds_field(out, "storage_seconds", parts[LOAD_STORAGE]);
    add_seconds_field(out, "daemon_seconds", parts[LOAD_DAEMON]);
    add_seconds_field(out, "reader_seconds", parts[LOAD_READER]);
    add_number_field(out, "bytes", load->bytes);
    add_number_field(out, "opens", load->opens);
    add_number_field(out, "reads", load->reads);
    add_number_field(out, "stalls", load->stalls);
    add_number_field(out, "errors", load->errors);
    add_number_field(out, "cached_bytes", load->cached_bytes);
    add_storage_fields(out, load, &after);
    load_timeline_write(&load->timeline, load->changed - load->begun, out);
    add_bottleneck(out, parts);
    buffer_add_text(out, "}\n");
}

void
loads_write(struct loads *loads, struct buffer *out)
{
    const struct load *list[LOADS_MOST];
    uint64_t now;
    unsigned count = 0;

    pthread_mutex_lock(&loads->lock);
    now = monotonic_ns();
    loads_end_over(loads, now);
    for (const struct load *load = loads->newest; load; load = load->older)
        list[count++] = load;
    while (count > 0) {
        const struct load state = load_at(list[--count], now);

        load_write(&state, loads, now, out);
    }
    pthread_mutex_unlock(&loads->lock);
}

void
loads_write_metrics(struct loads *loads, struct buffer *out)
{
    pthread_mutex_lock(&loads->lock);
    loads_end_over(loads, monotonic_ns());
    load_metrics_write(&loads->metrics, out);
    pthread_mutex_unlock(&loads->lock);
}

void
loads_free(struct loads *loads)
{
    if (!loads)
        return;
    while (loads->newest) {
        struct load *older = loads->newest->older;

        load_unref(loads->newest);
        loads->newest = older;
    }
    load_metrics_free(&loads->metrics);
    pthread_mutex_destroy(&loads->lock);
    free(loads);
}
