/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines and messages of the tools: of all programs except fstfs. */
#ifndef FSTFS_COMMON_COMMAND_H
#define FSTFS_COMMON_COMMAND_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* Exit statuses. */
enum { STATUS_DONE = 0, STATUS_FAILED = 1, STATUS_USAGE = 2 /* invalid command line */ };

/*
 * One long option of a program, stored at the offset `field` of its options struct.
 * Without `expected` it is a flag and sets a bool there. With it, it takes a value: `parse`
 * stores it, and returns false if it is not what `expected` describes; if `parse` is NULL, the
 * text is stored in a const char *.
 */
struct command_option {
    const char *name;
    size_t field;
    const char *expected;
    bool (*parse)(const char *value, void *field);
};

struct command {
    const char *name, *usage;
    /* Without --help and --version; at most COMMAND_OPTIONS_MOST, then one whose name is NULL. */
    const struct command_option *options;
};

enum { COMMAND_OPTIONS_MOST = 16 };

/* Parses all options into the struct `options`, and sets `optind` to the first other argument.
 * Exits after --help, --version or an invalid option. */
void command_options(const struct command *command, int argc, char **argv, void *options);

/* Prints a line to standard error, prefixed with the program's name. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints what is wrong with the command line, and exits with STATUS_USAGE. */
#define command_refuse(...) (complain(__VA_ARGS__), exit(STATUS_USAGE))

/* Writes and flushes the text. Returns false if that fails, or if the buffer has failed. */
bool write_out(FILE *file, const struct buffer *text);

#endif
