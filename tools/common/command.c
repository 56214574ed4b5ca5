/* SPDX-License-Identifier: Apache-2.0 */
#include "common/command.h"

#include <errno.h>
#include <getopt.h>
#include <string.h>

/* Values of getopt_long() for command->options[0] and the following. */
enum { FIRST_OPTION = 256 };

void
complain(const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "%s: ", program_invocation_short_name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

bool
write_out(FILE *file, const struct buffer *text)
{
    return !buffer_failed(text) && fwrite(text->data, 1, text->length, file) == text->length &&
           fflush(file) == 0;
}

/* Stores an option's value, optarg. `last_word` is the last argument that getopt used. */
static void
command_store_option(const struct command *command, const struct command_option *option,
                     const char *last_word, void *options)
{
    void *field = (char *)options + option->field;

    if (!option->expected)
        *(bool *)field = true;
    else if (optarg == last_word && strncmp(optarg, "--", 2) == 0)
        command_refuse("--%s: missing value (found the option %s, expected %s); see %s --help",
                       option->name, optarg, option->expected, command->name);
    else if (!option->parse)
        *(const char **)field = optarg;
    else if (!option->parse(optarg, field))
        command_refuse("--%s: invalid value (found %s, expected %s)", option->name, optarg,
                       option->expected);
}

static _Noreturn void
exit_after_output(void)
{
    if (fflush(stdout) == 0)
        exit(STATUS_DONE);
    complain("standard output: %s", strerror(errno));
    exit(STATUS_FAILED);
}

void
command_options(const struct command *command, int argc, char **argv, void *options)
{
    struct option all[COMMAND_OPTIONS_MOST + 3] = {{"help", no_argument, NULL, 'h'},
                                                   {"version", no_argument, NULL, 'V'}};
    int option;

    for (unsigned i = 0; command->options[i].name; i++)
        all[i + 2] = (struct option){
            command->options[i].name,
            command->options[i].expected ? required_argument : no_argument,
            NULL,
            FIRST_OPTION + (int)i,
        };
    while ((option = getopt_long(argc, argv, "hV", all, NULL)) != -1) {
        if (option == 'h') {
            fputs(command->usage, stdout);
            exit_after_output();
        }
        if (option == 'V') {
            printf("%s " FSTFS_VERSION "\n", command->name);
            exit_after_output();
        }
        if (option == '?') /* getopt_long() has printed what is wrong */
            exit(STATUS_USAGE);
        command_store_option(command, &command->options[option - FIRST_OPTION], argv[optind - 1],
                             options);
    }
}
