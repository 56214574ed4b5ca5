/* SPDX-License-Identifier: Apache-2.0 */
#include "common/progress.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BAR = 24, BAR_LEAST = 8, COLUMNS = 80 };

enum { WAKE_SIGNAL = SIGURG }; /* interrupts a call of the main thread; is ignored by default */

static struct {
    pthread_t main_thread;
    sigset_t awaited;
    atomic_int caught; /* the last signal, or 0 */
    pthread_mutex_t lock;
    bool has_no_deadline;
    sem_t is_ready; /* the thread waits for signals */
} signals = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void
unblock_signal(int number)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, number);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void
ignore_wake_signal(int number)
{
    (void)number;
}

/* A thread that never waits for storage. While an interrupted call still waits for a FUSE server,
 * its thread neither runs a signal handler nor takes SIGALRM. */
static void *
await_signals(void *arg)
{
    int number;

    (void)arg;
    unblock_signal(SIGALRM);
    sem_post(&signals.is_ready);
    while (sigwait(&signals.awaited, &number) == 0) {
        pthread_mutex_lock(&signals.lock);
        if (!signals.caught && !signals.has_no_deadline)
            alarm(PROGRESS_END_SECONDS);
        signals.caught = number;
        pthread_mutex_unlock(&signals.lock);
        pthread_kill(signals.main_thread, WAKE_SIGNAL);
    }
    return NULL;
}

/* Those that end a program, except the ignored ones: if blocked, they would be caught. */
static void
find_ending_signals(sigset_t *set)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action;

    sigemptyset(set);
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(set, numbers[i]);
}

void
progress_catch_signals(void)
{
    const struct sigaction wake = {.sa_handler = ignore_wake_signal};
    pthread_t thread;

    /* They may be inherited as ignored or blocked. */
    signal(SIGALRM, SIG_DFL);
    sigaction(WAKE_SIGNAL, &wake, NULL);
    unblock_signal(WAKE_SIGNAL);
    signals.main_thread = pthread_self();
    find_ending_signals(&signals.awaited);
    pthread_sigmask(SIG_BLOCK, &signals.awaited, NULL);
    sem_init(&signals.is_ready, 0, 0);
    if (thread_start(&thread, await_signals, NULL)) {
        pthread_sigmask(SIG_UNBLOCK, &signals.awaited, NULL);
        return;
    }
    pthread_detach(thread);
    /* So that it holds no lock of the allocator, which a sanitizer does not release in the child,
     * when the caller forks. From now on it allocates nothing. */
    while (sem_wait(&signals.is_ready) < 0)
        continue;
}

void
progress_release_signals(void)
{
    sigset_t set;

    signal(WAKE_SIGNAL, SIG_DFL);
    find_ending_signals(&set);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

void
progress_cancel_deadline(void)
{
    pthread_mutex_lock(&signals.lock);
    signals.has_no_deadline = true;
    alarm(0);
    pthread_mutex_unlock(&signals.lock);
}

int
progress_signal(void)
{
    return signals.caught;
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
    return signals.caught == 0;
}
