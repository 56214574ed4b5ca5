/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines and messages of the tools beside fstfs.
 */
#ifndef FSTFS_COMMON_COMMAND_H
#define FSTFS_COMMON_COMMAND_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* OPTIONS_DONE: --help or --version was printed. OPTIONS_WRONG: the command line is invalid, and
 * the reason was printed to standard error. */
enum options_result { OPTIONS_RUN, OPTIONS_DONE, OPTIONS_WRONG };

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
    const struct command_option *options; /* without --help and --version */
    unsigned option_count; /* at most COMMAND_OPTIONS_MOST */
};

enum { COMMAND_OPTIONS_MOST = 16 };

/* Parses all options into the struct `options`. `optind` is then the first other argument. */
enum options_result command_options(const struct command *command, int argc, char **argv,
                                    void *options);

/* Prints one line to standard error, after the program's name. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Writes and flushes the text. Returns false if that fails, or if the buffer has failed. */
bool write_out(FILE *file, const struct buffer *text);

#endif
