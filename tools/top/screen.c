/* SPDX-License-Identifier: Apache-2.0 */
#include "screen.h"

#include "common/command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The other screen, without cursor and without lines that go on in the next. */
static const char enter[] = "\033[?1049h\033[?25l\033[?7l";
static const char leave[] = "\033[?7h\033[?25h\033[?1049l";

static bool taken;
static struct winsize drawn;
static volatile sig_atomic_t stop;

static void
catch_stop(int number)
{
    (void)number;
    stop = 1;
}

bool
screen_can(void)
{
    const char *kind = getenv("TERM");

    return isatty(STDOUT_FILENO) && kind && *kind && strcmp(kind, "dumb") != 0;
}

static void
take(void)
{
    struct sigaction action = {.sa_handler = catch_stop};

    sigaction(SIGTSTP, &action, NULL);
    fputs(enter, stdout);
    taken = true;
}

void
screen_end(void)
{
    if (!taken)
        return;
    fputs(leave, stdout);
    fflush(stdout);
    taken = false;
}

static struct winsize
size_now(void)
{
    struct winsize size = {0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0 || size.ws_row == 0)
        size = (struct winsize){.ws_col = 80, .ws_row = 24};
    return size;
}

/* Bytes of the line's first `width` characters. */
static size_t
cut(const char *line, size_t length, unsigned width)
{
    size_t i = 0;

    for (; i < length; i++) {
        if (((unsigned char)line[i] & 0xc0) != 0x80 && width-- == 0)
            break;
    }
    return i;
}

bool
screen_draw(const struct buffer *text)
{
    struct buffer out = BUFFER_INIT;
    const char *line = text->data, *end = text->data + text->length;
    bool done;

    if (!taken)
        take();
    drawn = size_now();
    buffer_add_text(&out, "\033[H");
    for (unsigned row = 0; line < end && row < drawn.ws_row; row++) {
        const char *next = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((next ? next : end) - line);

        buffer_add_text(&out, row ? "\n" : "");
        buffer_add(&out, line, cut(line, length, drawn.ws_col));
        buffer_add_text(&out, "\033[K");
        line += length + 1;
    }
    buffer_add_text(&out, "\033[J");
    done = !buffer_failed(text) && write_out(stdout, &out);
    buffer_free(&out);
    return done;
}

bool
screen_is_stale(void)
{
    struct winsize now = size_now();

    if (stop) {
        stop = 0;
        screen_end();
        raise(SIGSTOP); /* and here it goes on */
        return true;
    }
    return taken && (now.ws_col != drawn.ws_col || now.ws_row != drawn.ws_row);
}
