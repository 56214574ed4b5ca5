/* SPDX-License-Identifier: Apache-2.0 */
#include "common/progress.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BAR = 24 };

static volatile sig_atomic_t caught;

static void
catch_signal(int number)
{
    caught = number;
}

void
progress_catch_signals(void)
{
    struct sigaction action = {.sa_handler = catch_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

int
progress_signal(void)
{
    return caught;
}

static double
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void
progress_begin(struct progress *progress, uint64_t all)
{
    void *shared =
        mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    *progress = (struct progress){
        .shown = isatty(STDERR_FILENO),
        .begin = now(),
        .all = all,
        .running = shared == MAP_FAILED ? NULL : shared,
    };
}

/* "about 3 min left", from how long it took so far. */
static void
say_rest(char text[40], double elapsed, double share)
{
    double rest = share > 0.02 ? elapsed / share - elapsed : -1;

    text[0] = '\0';
    if (rest >= 90)
        snprintf(text, 40, "about %.0f min left", rest / 60);
    else if (rest >= 0)
        snprintf(text, 40, "about %.0f s left", rest);
}

static void
draw(struct progress *progress)
{
    uint64_t done = progress->finished + (progress->running ? *progress->running : 0);
    double share = progress->all ? (double)done / (double)progress->all : 0;
    struct winsize window = {0};
    char bar[BAR + 1], rate[24] = "", rest[40], line[256];
    int filled, width = 80;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        width = window.ws_col;
    share = share > 1 ? 1 : share;
    filled = (int)(share * BAR);
    memset(bar, '-', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = '\0';
    progress->drawn = now();
    say_rest(rest, progress->drawn - progress->begin, share);
    if (progress->has_rate && progress->drawn > progress->begin)
        snprintf(rate, sizeof(rate), "  %.2f GB/s",
                 (double)done / (progress->drawn - progress->begin) / 1e9);
    snprintf(line, sizeof(line), "[%s] %3.0f%% %s%s  %s", bar, share * 100, progress->what, rate,
             rest);
    fprintf(stderr, "\r%.*s\033[K", width - 1, line);
}

void
progress_start(struct progress *progress, const char *what)
{
    snprintf(progress->what, sizeof(progress->what), "%s", what);
    if (progress->running)
        *progress->running = 0;
    if (progress->shown)
        draw(progress);
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
progress_tick(void *arg)
{
    struct progress *progress = arg;

    if (progress->shown && now() - progress->drawn > 0.1)
        draw(progress);
    return caught == 0;
}
