/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "common/say.h"

#include <stdlib.h>

static const char usage[] =
    "usage: fstfs-top [OPTION...] MOUNTPOINT\n"
    "\n"
    "Shows what a mount of fstfs is doing while a model is loaded: the rate now, what the\n"
    "storage gives for it, how many reads wait for it, what is read ahead and whether it is\n"
    "used, memory, errors, which programs have which files open, and what all that means.\n"
    "On a terminal it is one screen, drawn anew each second, until ^C; else a line each time.\n"
    "\n"
    "  MOUNTPOINT   where it is mounted; any path on the mount will do\n"
    "\n"
    "Options:\n"
    "  --interval=SECONDS  from one look to the next, 0.1 to 3600 (1)\n"
    "  --once              one answer, over one interval, and exit\n"
    "  --json              each answer is one JSON object on a line\n"
    "  -h, --help; -V, --version\n"
    "\n"
    "What others have open only root sees. Processes with a mount namespace of their own, as\n"
    "in containers, are not shown.\n"
    "\n"
    "Exit status: 0; 1 when there is no mount, or it went away; 2 for a wrong command line;\n"
    "128 and the signal's number when one ended it, as ^C does.\n"
    "\n"
    "Examples:\n"
    "  fstfs-top /mnt/tensors\n"
    "  fstfs-top --json --interval=10 /mnt/tensors >>load.jsonl\n";

enum { OPTION_INTERVAL = 256, OPTION_ONCE, OPTION_JSON };

static const struct option names[] = {
    {"interval", required_argument, NULL, OPTION_INTERVAL},
    {"once", no_argument, NULL, OPTION_ONCE},
    {"json", no_argument, NULL, OPTION_JSON},
};

static bool
read_interval(const char *text, double *seconds)
{
    char *end;

    *seconds = strtod(text, &end);
    if (end != text && !*end && *seconds >= 0.1 && *seconds <= 3600)
        return true;
    complain("--interval wants seconds from 0.1 to 3600, not %s", text);
    return false;
}

static bool
take(int option, void *arg)
{
    struct options *options = arg;

    switch (option) {
    case OPTION_INTERVAL:
        return read_interval(optarg, &options->interval);
    case OPTION_ONCE:
        options->once = true;
        break;
    case OPTION_JSON:
        options->json = true;
        break;
    }
    return true;
}

static const struct command command = {
    "fstfs-top", usage, names, sizeof(names) / sizeof(names[0]), take,
};

enum options_result
options_parse(int argc, char **argv, struct options *options)
{
    enum options_result result;

    *options = (struct options){.interval = 1};
    result = command_options(&command, argc, argv, options);
    if (result != OPTIONS_RUN)
        return result;
    if (argc - optind != 1) {
        complain("one MOUNTPOINT is wanted; fstfs-top -h says more");
        return OPTIONS_WRONG;
    }
    options->path = argv[optind];
    return OPTIONS_RUN;
}
