/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs-top: shows the activity of a mount.
 */
#include "base/clock.h"
#include "common/command.h"
#include "common/mounts.h"
#include "common/progress.h"
#include "loads.h"
#include "options.h"
#include "report.h"
#include "screen.h"
#include "watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A daemon that does not reply for this long beyond the interval is reported. */
static const double SILENCE_SECONDS = 2;

struct top {
    const struct top_options *options;
    const char *point;
    struct watch watch;
    unsigned seen; /* samples */
    struct sample before; /* the previous sample; its buffers are freed */
    struct buffer text; /* the last report */
    double reported; /* when the last sample, or the lack of one, was reported */
    bool screen;
    bool failed;
};

static bool
find_mount(const char *path, char point[PATH_MAX])
{
    char real[PATH_MAX], name[QUOTED_SIZE];
    struct mountinfo mount;
    bool found;

    quoted(name, path, strlen(path));
    if (!realpath(path, real)) {
        if (errno == ENOTCONN)
            complain("%s: its daemon has died; remove the mount with fusermount3 -u", name);
        else
            complain("%s: %s", name, strerror(errno));
        return false;
    }
    found = mounts_find(real, &mount) && strcmp(mount.type, "fuse.fstfs") == 0;
    if (found)
        snprintf(point, PATH_MAX, "%s", mount.mountpoint);
    else
        complain("%s: not in a mount of fstfs", name);
    mountinfo_free(&mount);
    return found;
}

static bool
top_show(struct top *top)
{
    if (top->screen)
        return screen_draw(&top->text);
    return write_out(stdout, &top->text);
}

/* Reports a new sample; requires the lock of the watch. Returns true after the last report. */
static bool
top_report_sample(struct top *top)
{
    struct report report = {.point = top->point, .users = &top->watch.users};
    bool first = top->seen == 0;

    top->seen = top->watch.sample_count;
    top->reported = monotonic_seconds();
    if (top->watch.error)
        return true;
    if (!first) {
        buffer_free(&top->text);
        report_make(&report, &top->before, &top->watch.sample);
        if (top->options->json)
            report_json(&report, &top->text);
        else if (top->screen)
            report_screen(&report, &top->text);
        else
            report_line(&report, &top->text);
        top->failed = !top_show(top);
    }
    top->before = top->watch.sample;
    return top->failed || (!first && top->options->once);
}

static void
top_report_silence(struct top *top)
{
    double now = monotonic_seconds();

    if (now - top->reported < SILENCE_SECONDS + top->options->interval)
        return;
    top->reported = now;
    screen_end(); /* the report on it is outdated */
    complain("%s: no reply for %.0f s; the daemon is stopped, or waits for the source", top->point,
             now - (top->seen ? top->before.at : now - SILENCE_SECONDS - top->options->interval));
}

static void
top_run(struct top *top)
{
    bool is_done = false;

    while (!is_done && !top->failed && !progress_signal()) {
        if (watch_await(&top->watch, top->seen)) {
            is_done = top_report_sample(top);
            watch_done(&top->watch);
        } else {
            top_report_silence(top);
        }
        if (!is_done && top->screen && screen_is_stale() && top->text.length)
            top->failed = !top_show(top);
    }
}

static int
top_end(struct top *top)
{
    int status = STATUS_DONE;

    if (progress_signal())
        status = 128 + progress_signal();
    else if (top->failed || top->watch.error)
        status = STATUS_FAILED;
    screen_end();
    if (!progress_signal() && top->failed)
        complain("cannot write: %s", strerror(errno));
    else if (!progress_signal() && top->watch.error)
        complain("%s: %s", top->point, top->watch.reason.text);
    buffer_free(&top->text);
    if (!watch_end(&top->watch))
        _exit(status); /* exit() would block, like the thread */
    return status;
}

/* --loads and --svg. */
static int
print_loads(const struct top_options *options, const char *point)
{
    struct buffer page = BUFFER_INIT, text = BUFFER_INIT;
    struct reason reason;
    errint_t error = page_read(point, "loads", &page, &reason);
    int status = STATUS_FAILED;

    if (!error && options->svg)
        error = loads_svg(&page, &text, &reason);
    else if (!error && !options->json)
        error = loads_table(&page, &text, &reason);
    if (error)
        complain("%s: %s", point, reason.text);
    else if (!write_out(stdout, options->json && !options->svg ? &page : &text))
        complain("cannot write: %s", strerror(errno));
    else
        status = STATUS_DONE;
    buffer_free(&page);
    buffer_free(&text);
    return status;
}

int
main(int argc, char **argv)
{
    static char point[PATH_MAX];
    struct top_options options;
    struct top top = {.options = &options, .point = point};

    options_parse(argc, argv, &options);
    if (!find_mount(options.path, point))
        return STATUS_FAILED;
    if (options.loads || options.svg)
        return print_loads(&options, point);
    progress_catch_signals();
    top.screen = !options.json && !options.once && screen_is_supported();
    top.reported = monotonic_seconds();
    if (watch_begin(&top.watch, point, options.interval)) {
        complain("cannot start a thread");
        return STATUS_FAILED;
    }
    top_run(&top);
    return top_end(&top);
}
