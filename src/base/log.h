/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: standard error in the foreground; in the background a helper process that writes to
 * syslog (facility daemon). Any thread. The caller must quote untrusted text with quoted(); line
 * breaks are written as spaces.
 */
#ifndef FSTFS_BASE_LOG_H
#define FSTFS_BASE_LOG_H

#include <sys/types.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVELS };

/* From now on, a line is lost if standard error takes no more, instead of blocking; but a regular
 * file whose storage hangs still blocks. Call it before other threads are started and a sandbox is
 * entered. */
void log_init(void);
/* Drops all lines from now on. */
void log_disable(void);
/* Sends lines to the process at the other end of this SOCK_SEQPACKET socket from now on. Does not
 * block: a line is lost if the socket is full. */
void log_to_socket(int socket);
/* Run by that process: writes lines from the socket to syslog, as `name` with `pid`, until the
 * other end is closed. Reconnects to syslog as syslog(3) does. */
void log_serve(int socket, const char *name, pid_t pid);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)

#endif
