/* SPDX-License-Identifier: Apache-2.0 */
#include "common/options.h"

#include <stdio.h>
#include <string.h>

enum options_result
command_options(const struct command *command, int argc, char **argv, void *arg)
{
    struct option all[COMMAND_OPTIONS_MOST + 3] = {{"help", no_argument, NULL, 'h'},
                                                   {"version", no_argument, NULL, 'V'}};
    int option;

    memcpy(all + 2, command->options, command->option_count * sizeof(*all));
    while ((option = getopt_long(argc, argv, "hV", all, NULL)) != -1) {
        if (option == 'h') {
            fputs(command->usage, stdout);
            return OPTIONS_DONE;
        }
        if (option == 'V') {
            printf("%s " FSTFS_VERSION "\n", command->name);
            return OPTIONS_DONE;
        }
        if (option == '?' || !command->take(option, arg)) /* of '?' getopt has said what is wrong */
            return OPTIONS_WRONG;
    }
    return OPTIONS_RUN;
}
