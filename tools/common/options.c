/* SPDX-License-Identifier: Apache-2.0 */
#include "common/options.h"

#include "common/say.h"

#include <stdio.h>
#include <string.h>

/* Whether the option took the next word as its value, and that is an option. `index` is the
 * option's place in `all`. */
static bool
took_an_option(const struct command *command, const struct option *all, int index,
               const char *last_word)
{
    if (all[index].has_arg != required_argument || optarg != last_word ||
        strncmp(optarg, "--", 2) != 0)
        return false;
    complain("--%s needs a value (%s -h says which), found: %s", all[index].name, command->name,
             optarg);
    return true;
}

enum options_result
command_options(const struct command *command, int argc, char **argv, void *arg)
{
    struct option all[COMMAND_OPTIONS_MOST + 3] = {{"help", no_argument, NULL, 'h'},
                                                   {"version", no_argument, NULL, 'V'}};
    int option, index = 0;

    memcpy(all + 2, command->options, command->option_count * sizeof(*all));
    while ((option = getopt_long(argc, argv, "hV", all, &index)) != -1) {
        if (option == 'h') {
            fputs(command->usage, stdout);
            return OPTIONS_DONE;
        }
        if (option == 'V') {
            printf("%s " FSTFS_VERSION "\n", command->name);
            return OPTIONS_DONE;
        }
        /* Of '?' getopt has said what is wrong. */
        if (option == '?' || took_an_option(command, all, index, argv[optind - 1]) ||
            !command->take(option, arg))
            return OPTIONS_WRONG;
    }
    return OPTIONS_RUN;
}
