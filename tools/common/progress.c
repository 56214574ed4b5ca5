/* SPDX-License-Identifier: Apache-2.0 */
#include "common/progress.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/error.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BAR = 24, BAR_LEAST = 8, COLUMNS = 80 };

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

static volatile sig_atomic_t caught, has_no_deadline;

static void
progress_record_signal(int number)
{
    if (!caught && !has_no_deadline)
        alarm(PROGRESS_END_SECONDS);
    caught = number;
}

void
progress_catch_signals(void)
{
    const struct sigaction action = {.sa_handler = progress_record_signal};
    struct sigaction before;
    sigset_t alarms;

    /* It may be inherited as ignored or blocked. */
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    signal(SIGALRM, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &alarms, NULL);
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        if (sigaction(signals[i], NULL, &before) < 0 || before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
}

void
progress_release_signals(void)
{
    const struct sigaction action = {.sa_handler = SIG_DFL};
    struct sigaction before;

    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        if (sigaction(signals[i], NULL, &before) < 0 || before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
}

void
progress_cancel_deadline(void)
{
    has_no_deadline = 1;
    alarm(0);
}

int
progress_signal(void)
{
    return caught;
}

void
progress_begin(struct progress *progress, uint64_t all)
{
    void *shared =
        mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    *progress = (struct progress){
        .shown = isatty(STDERR_FILENO),
        .begin = monotonic_seconds(),
        .all = all,
        .running = shared == MAP_FAILED ? NULL : shared,
    };
}

/* Formats "  0.12 GB/s  3 min left". */
static void
progress_format_remaining(const struct progress *progress, uint64_t done, double share,
                          char text[64])
{
    double elapsed = progress->drawn - progress->begin;
    double rest = share > 0.02 ? elapsed / share - elapsed : -1;
    int length = 0;

    text[0] = '\0';
    if (progress->has_rate && elapsed > 0)
        length = snprintf(text, 64, "  %.2f GB/s", (double)done / elapsed / 1e9);
    if (rest >= 90)
        snprintf(text + length, (size_t)(64 - length), "  %.0f min left", rest / 60);
    else if (rest >= 0)
        snprintf(text + length, (size_t)(64 - length), "  %.0f s left", rest);
}

/* Truncates a text to `most` bytes, and so to at most as many columns. */
static void
progress_truncate_text(char *text, size_t most)
{
    static const char dots[] = "...";

    if (strlen(text) <= most)
        return;
    most -= most < sizeof(dots) ? most : sizeof(dots) - 1;
    while (most > 0 && ((unsigned char)text[most] & 0xC0) == 0x80)
        most--; /* inside a character */
    strcpy(text + most, dots);
}

static size_t
terminal_columns(void)
{
    struct winsize window = {0};

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        return window.ws_col;
    return COLUMNS;
}

/* Draws one line of the terminal's width: shortens the bar first, then the text. */
static void
progress_draw(struct progress *progress)
{
    uint64_t done = progress->finished + (progress->running ? *progress->running : 0);
    double share = progress->all ? (double)done / (double)progress->all : 0;
    char bar[BAR + 1], what[QUOTED_SIZE], rest[64];
    size_t width = terminal_columns(), taken, length;

    share = share > 1 ? 1 : share;
    progress->drawn = monotonic_seconds();
    progress_format_remaining(progress, done, share, rest);
    taken = strlen("[] 100% ") + strlen(rest) + 1; /* leaves the last column free */
    if (taken + BAR_LEAST > width) {
        rest[0] = '\0';
        taken = strlen("[] 100% ") + 1;
    }
    quoted(what, progress->what, strlen(progress->what));
    width = width > taken + BAR_LEAST ? width - taken : BAR_LEAST;
    progress_truncate_text(what, width - BAR_LEAST);
    length = width - strlen(what) > BAR ? BAR : width - strlen(what);
    memset(bar, '-', length);
    memset(bar, '#', (size_t)(share * (double)length));
    bar[length] = '\0';
    fprintf(stderr, "\r[%s] %3.0f%% %s%s\033[K", bar, share * 100, what, rest);
}

void
progress_start(struct progress *progress, const char *what)
{
    snprintf(progress->what, sizeof(progress->what), "%s", what);
    if (progress->running)
        *progress->running = 0;
    if (progress->shown)
        progress_draw(progress);
}

void
progress_finish(struct progress *progress, uint64_t bytes)
{
    progress->finished += bytes;
    if (progress->running)
        *progress->running = 0;
}

void
progress_end(struct progress *progress)
{
    if (progress->shown)
        fputs("\r\033[K", stderr);
    if (progress->running)
        munmap((void *)progress->running, sizeof(uint64_t));
    progress->running = NULL;
}

bool
progress_tick(struct progress *progress)
{
    if (progress->shown && monotonic_seconds() - progress->drawn > 0.1 &&
        !atomic_flag_test_and_set(&progress->is_drawing)) {
        progress_draw(progress);
        atomic_flag_clear(&progress->is_drawing);
    }
    return caught == 0;
}
