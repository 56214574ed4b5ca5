/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/shutdown.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
enum { SIGNALS = COUNT_OF(signals) };
/* The interval at which the liveness of helpers is checked: if threads of a dead helper hang, its
 * socket stays open. */
enum { LIVENESS_MS = 1000 };

static struct sigaction previous_actions[SIGNALS]; /* libfuse's */
/* A pipe; a byte in it wakes the thread. */
static int wake_ends[2] = {-1, -1};

static struct {
    pthread_mutex_t lock; /* guards stopping */
    pthread_cond_t stopped;
    bool stopping;
    pthread_t thread;
    pthread_t server; /* the thread that serves: signals end its session */
    bool started;
    struct shutdown_calls calls;
    bool died[SHUTDOWN_HELPERS];
} watch;

static void
wake_watcher(void)
{
    char byte = 0;

    if (write(wake_ends[1], &byte, 1) < 0)
        return; /* the pipe is full, so the thread will wake */
}

static void
on_signal(int number)
{
    int error = errno;

    for (unsigned i = 0; i < SIGNALS; i++)
        if (signals[i] == number)
            previous_actions[i].sa_handler(number);
    wake_watcher();
    errno = error;
}

/* `flags`: SA_RESTART or 0. */
static void
set_signal_handlers(int flags)
{
    struct sigaction action;

    for (unsigned i = 0; i < SIGNALS; i++) {
        if (previous_actions[i].sa_handler == SIG_IGN || previous_actions[i].sa_handler == SIG_DFL)
            continue; /* not caught by libfuse: was ignored, as by nohup(1) */
        action = previous_actions[i];
        action.sa_handler = on_signal;
        action.sa_flags |= flags;
        sigaction(signals[i], &action, NULL);
    }
}

errint_t
shutdown_catch_signals(void)
{
    if (pipe2(wake_ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    for (unsigned i = 0; i < SIGNALS; i++)
        sigaction(signals[i], NULL, &previous_actions[i]);
    set_signal_handlers(SA_RESTART);
    return 0;
}

void
shutdown_interrupt_calls(void)
{
    set_signal_handlers(0);
}

void
shutdown_release_signals(void)
{
    for (unsigned i = 0; i < SIGNALS; i++)
        sigaction(signals[i], &previous_actions[i], NULL);
    close(wake_ends[0]);
    close(wake_ends[1]);
}

/* Waits for shutdown_stop(); returns false on a timeout. */
static bool
await_stop(void)
{
    uint64_t until = monotonic_ns() + SHUTDOWN_MS * UINT64_C(1000000);
    bool stopping;

    pthread_mutex_lock(&watch.lock);
    while (!watch.stopping && condition_wait(&watch.stopped, &watch.lock, until))
        continue;
    stopping = watch.stopping;
    pthread_mutex_unlock(&watch.lock);
    return stopping;
}

/* Reports each death once; returns whether one of them ends the daemon. */
static bool
report_dead_helpers(const struct pollfd *sockets)
{
    bool ends = false;

    for (unsigned i = 0; i < SHUTDOWN_HELPERS; i++) {
        if (sockets[i].fd < 0 || (!sockets[i].revents && !helper_has_died(watch.calls.helpers[i])))
            continue;
        watch.died[i] = true;
        ends |= watch.calls.helper_died(watch.calls.arg, i);
    }
    return ends;
}

/* Waits for a signal, for shutdown_stop(), for the end of the connection or of the process of
 * --pid, or for the death of a helper that ends the daemon. */
static void
await_end(void)
{
    enum { WAKE, CONNECTION, PROCESS, HELPERS, POLLED = HELPERS + SHUTDOWN_HELPERS };
    struct pollfd polled[POLLED] = {
        [WAKE] = {.fd = wake_ends[0], .events = POLLIN},
        [CONNECTION] = {.fd = watch.calls.connection},
        [PROCESS] = {.fd = watch.calls.process, .events = POLLIN},
    };

    do {
        for (unsigned i = 0; i < SHUTDOWN_HELPERS; i++)
            polled[HELPERS + i] =
                (struct pollfd){.fd = watch.died[i] ? -1 : watch.calls.helpers[i]->socket};
        while (poll(polled, POLLED, LIVENESS_MS) < 0)
            continue;
        if (polled[WAKE].revents || polled[CONNECTION].revents)
            return;
    } while (!polled[PROCESS].revents && !report_dead_helpers(polled + HELPERS));
    /* NOLINTNEXTLINE(bugprone-bad-signal-to-kill-thread,cert-pos44-c): it has a handler */
    pthread_kill(watch.server, SIGTERM); /* if it is ignored, force() ends the daemon */
}

static void *
watch_until_end(void *arg)
{
    bool stopping;

    (void)arg;
    await_end();
    pthread_mutex_lock(&watch.lock);
    stopping = watch.stopping;
    pthread_mutex_unlock(&watch.lock);
    if (stopping)
        return NULL;
    watch.calls.begin(watch.calls.arg);
    if (!await_stop())
        watch.calls.force(watch.calls.arg);
    return NULL;
}

errint_t
shutdown_start(const struct shutdown_calls *calls)
{
    errint_t error;

    pthread_mutex_init(&watch.lock, NULL);
    condition_init(&watch.stopped);
    watch.calls = *calls;
    watch.server = pthread_self();
    error = thread_start(&watch.thread, watch_until_end, NULL);
    watch.started = error == 0;
    return error;
}

void
shutdown_stop(void)
{
    if (!watch.started)
        return;
    pthread_mutex_lock(&watch.lock);
    watch.stopping = true;
    pthread_cond_signal(&watch.stopped);
    pthread_mutex_unlock(&watch.lock);
    wake_watcher();
    pthread_join(watch.thread, NULL);
    watch.started = false;
}
