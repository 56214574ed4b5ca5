/* SPDX-License-Identifier: Apache-2.0 */
#include "screen.h"

#include "common/command.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The alternate screen, without cursor and line wrap. */
static const char enter[] = "\033[?1049h\033[?25l\033[?7l";
static const char leave[] = "\033[?7h\033[?25h\033[?1049l";

static bool is_active; /* on the alternate screen */
static struct winsize drawn; /* the size when the screen was drawn */
static volatile sig_atomic_t stop; /* SIGTSTP was caught */

static void
record_stop(int number)
{
    (void)number;
    stop = 1;
}

bool
screen_is_supported(void)
{
    const char *kind = getenv("TERM");

    return isatty(STDOUT_FILENO) && kind && *kind && strcmp(kind, "dumb") != 0;
}

static void
screen_begin(void)
{
    struct sigaction action = {.sa_handler = record_stop};

    sigaction(SIGTSTP, &action, NULL);
    fputs(enter, stdout);
    is_active = true;
}

void
screen_end(void)
{
    if (!is_active)
        return;
    fputs(leave, stdout);
    fflush(stdout);
    is_active = false;
}

static struct winsize
terminal_size(void)
{
    struct winsize size = {0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_col == 0 || size.ws_row == 0)
        size = (struct winsize){.ws_col = 80, .ws_row = 24};
    return size;
}

/* Returns the number of bytes in the line's first `width` characters. */
static size_t
prefix_bytes(const char *line, size_t length, unsigned width)
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

    if (!is_active)
        screen_begin();
    drawn = terminal_size();
    buffer_add_text(&out, "\033[H");
    for (unsigned row = 0; line < end && row < drawn.ws_row; row++) {
        const char *next = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((next ? next : end) - line);

        buffer_add_text(&out, row ? "\n" : "");
        buffer_add(&out, line, prefix_bytes(line, length, drawn.ws_col));
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
    struct winsize now = terminal_size();

    if (stop) {
        stop = 0;
        screen_end();
        raise(SIGSTOP); /* returns after SIGCONT */
        return true;
    }
    return is_active && (now.ws_col != drawn.ws_col || now.ws_row != drawn.ws_row);
}
