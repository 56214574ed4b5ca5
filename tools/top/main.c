/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs-top: what a mount is doing while somebody waits for a model.
 */
#include "answer.h"
#include "base/clock.h"
#include "common/command.h"
#include "common/mounts.h"
#include "common/progress.h"
#include "options.h"
#include "screen.h"
#include "watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, WRONG = 2 };

/* Seconds without an answer that are worth a word. */
static const double SILENCE = 2;

struct top {
    const struct options *options;
    const char *point;
    struct watch watch;
    unsigned turns; /* that were looked at */
    struct sample before; /* the one before; its buffers are not ours */
    struct buffer text; /* what was shown last */
    double told; /* when the last answer came, or its absence was said */
    bool screen;
    bool failed;
};

static bool
find_mount(const char *path, char point[PATH_MAX])
{
    char real[PATH_MAX], name[QUOTED_SIZE];
    struct mount_entry *entry;
    bool found;

    quoted(name, path, strlen(path));
    if (!realpath(path, real)) {
        if (errno == ENOTCONN)
            complain("%s: its daemon is gone; fusermount3 -u takes away what is left", name);
        else
            complain("%s: %s", name, strerror(errno));
        return false;
    }
    entry = malloc(sizeof(*entry));
    found = entry && mounts_find(real, entry) && strcmp(entry->type, "fuse.fstfs") == 0;
    if (found)
        strcpy(point, entry->point);
    else
        complain("%s: not on a mount of fstfs", name);
    free(entry);
    return found;
}

static bool
show(struct top *top)
{
    if (top->screen)
        return screen_draw(&top->text);
    return write_out(stdout, &top->text);
}

/* A turn came, and the watch is held. True: that was all. */
static bool
take_turn(struct top *top)
{
    struct answer answer = {.point = top->point, .users = &top->watch.users};
    bool first = top->turns == 0;

    top->turns = top->watch.turns;
    top->told = monotonic_seconds();
    if (top->watch.error)
        return true;
    if (!first) {
        buffer_free(&top->text);
        answer_make(&answer, &top->before, &top->watch.sample);
        if (top->options->json)
            answer_json(&answer, &top->text);
        else if (top->screen)
            answer_screen(&answer, &top->text);
        else
            answer_line(&answer, &top->text);
        top->failed = !show(top);
    }
    top->before = top->watch.sample;
    return top->failed || (!first && top->options->once);
}

static void
say_silence(struct top *top)
{
    double now = monotonic_seconds();

    if (now - top->told < SILENCE + top->options->interval)
        return;
    top->told = now;
    screen_end(); /* what it shows would pass for what is now */
    complain("%s: no answer for %.0f s: the daemon is stopped, or waits for the source", top->point,
             now - (top->turns ? top->before.at : now - SILENCE - top->options->interval));
}

static void
run(struct top *top)
{
    bool over = false;

    while (!over && !top->failed && !progress_signal()) {
        if (watch_await(&top->watch, top->turns)) {
            over = take_turn(top);
            watch_done(&top->watch);
        } else {
            say_silence(top);
        }
        if (!over && top->screen && screen_is_stale() && top->text.length)
            top->failed = !show(top);
    }
}

static int
end(struct top *top)
{
    int status = DONE;

    if (progress_signal())
        status = 128 + progress_signal();
    else if (top->failed || top->watch.error)
        status = FAILED;
    screen_end();
    if (!progress_signal() && top->failed)
        complain("cannot write: %s", strerror(errno));
    else if (!progress_signal() && top->watch.error)
        complain("%s: %s", top->point, top->watch.reason.text);
    buffer_free(&top->text);
    if (!watch_end(&top->watch))
        _exit(status); /* what holds the thread up would hold up exit() too */
    return status;
}

int
main(int argc, char **argv)
{
    static char point[PATH_MAX];
    struct options options;
    struct top top = {.options = &options, .point = point};

    switch (options_parse(argc, argv, &options)) {
    case OPTIONS_RUN:
        break;
    case OPTIONS_DONE:
        return DONE;
    default:
        return WRONG;
    }
    if (!find_mount(options.path, point))
        return FAILED;
    progress_catch_signals();
    top.screen = !options.json && !options.once && screen_can();
    top.told = monotonic_seconds();
    if (watch_begin(&top.watch, point, options.interval)) {
        complain("no thread can be made");
        return FAILED;
    }
    run(&top);
    return end(&top);
}
