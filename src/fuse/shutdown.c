/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/shutdown.h"

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
enum { SIGNALS = sizeof(signals) / sizeof(signals[0]) };
/* How often helpers are looked at whose threads keep their socket open. */
enum { LIVES_MS = 1000 };

static struct sigaction before[SIGNALS]; /* libfuse's, or what was there before it */
/* A byte: a signal has come, or the thread is to end. */
static int wake_ends[2] = {-1, -1};

static struct {
    pthread_mutex_t lock; /* guards stopping */
    pthread_cond_t stopped;
    bool stopping;
    pthread_t thread;
    pthread_t server; /* the thread that serves: signals end its session */
    bool started;
    struct shutdown_calls calls;
    bool ended[SHUTDOWN_HELPERS];
} watch;

static void
wake(void)
{
    char byte = 0;

    if (write(wake_ends[1], &byte, 1) < 0)
        return; /* full: it is awake */
}

static void
on_signal(int number)
{
    int error = errno;

    for (unsigned i = 0; i < SIGNALS; i++)
        if (signals[i] == number)
            before[i].sa_handler(number);
    wake();
    errno = error;
}

errint_t
shutdown_catch_signals(void)
{
    struct sigaction action;

    if (pipe2(wake_ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    for (unsigned i = 0; i < SIGNALS; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (before[i].sa_handler == SIG_IGN || before[i].sa_handler == SIG_DFL)
            continue; /* libfuse leaves alone what is ignored, as by nohup(1) */
        action = before[i];
        action.sa_handler = on_signal;
        sigaction(signals[i], &action, NULL);
    }
    return 0;
}

void
shutdown_release_signals(void)
{
    for (unsigned i = 0; i < SIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
    close(wake_ends[0]);
    close(wake_ends[1]);
}

/* Waits for shutdown_stop(); false: it did not come in time. */
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

/* Whether a helper's end ends the daemon. A helper that has ended is not looked at again. */
static bool
report_ended_helpers(const struct pollfd *sockets)
{
    bool ends = false;

    for (unsigned i = 0; i < SHUTDOWN_HELPERS; i++) {
        if (sockets[i].fd < 0 || (!sockets[i].revents && !helper_has_died(watch.calls.helpers[i])))
            continue;
        watch.ended[i] = true;
        ends |= watch.calls.helper_ended(watch.calls.arg, i);
    }
    return ends;
}

/* Waits for a signal, for shutdown_stop() or for the end of a helper that ends the daemon. */
static void
await_end(void)
{
    struct pollfd polled[1 + SHUTDOWN_HELPERS] = {{.fd = wake_ends[0], .events = POLLIN}};

    do {
        for (unsigned i = 0; i < SHUTDOWN_HELPERS; i++)
            polled[1 + i] =
                (struct pollfd){.fd = watch.ended[i] ? -1 : watch.calls.helpers[i]->socket};
        while (poll(polled, 1 + SHUTDOWN_HELPERS, LIVES_MS) < 0)
            continue;
        if (polled[0].revents)
            return;
    } while (!report_ended_helpers(polled + 1));
    /* NOLINTNEXTLINE(bugprone-bad-signal-to-kill-thread,cert-pos44-c): it has a handler */
    pthread_kill(watch.server, SIGTERM); /* where it is ignored, force() ends the daemon */
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
    wake();
    pthread_join(watch.thread, NULL);
    watch.started = false;
}
