/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: standard error while fstfs runs in the foreground, syslog (facility
 * daemon) once it is in the background. Any thread. Text from outside must be
 * quoted() by the caller; a line break that slips through is written as a space.
 */
#ifndef FSTFS_BASE_LOG_H
#define FSTFS_BASE_LOG_H

enum log_level {
    LOG_LEVEL_NONE = -1,
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARNING,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG
};

/* Lines above `level` are dropped, all of them at LOG_LEVEL_NONE; LOG_LEVEL_INFO until set. */
void log_set_level(enum log_level level);
/* From now on to syslog, as `name`. */
void log_to_syslog(const char *name);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
