/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

static atomic_int most = LOG_LEVEL_INFO;
static atomic_bool in_background;

void
log_set_level(enum log_level level)
{
    atomic_store(&most, (int)level);
}

void
log_to_syslog(const char *name)
{
    openlog(name, LOG_PID, LOG_DAEMON);
    atomic_store(&in_background, true);
}

static const char *
level_name(enum log_level level)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};

    return names[level];
}

static int
level_priority(enum log_level level)
{
    static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};

    return priorities[level];
}

void
log_line(enum log_level level, const char *format, ...)
{
    char line[2048];
    int length, added;
    va_list arguments;

    if ((int)level > atomic_load(&most))
        return;
    length = snprintf(line, sizeof(line), "fstfs: %s: ", level_name(level));
    va_start(arguments, format);
    added = vsnprintf(line + length, sizeof(line) - (size_t)length, format, arguments);
    va_end(arguments);
    if (added < 0)
        return;
    for (char *c = line; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    if (atomic_load(&in_background)) {
        syslog(level_priority(level), "%s", line + length);
        return;
    }
    length = (int)strlen(line);
    if ((size_t)length == sizeof(line) - 1)
        length--;
    line[length++] = '\n';
    /* One write, so that lines of two threads do not mix. There is nobody to
     * tell where standard error fails. */
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        return;
}
