/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <getopt.h>
#include <stdlib.h>

static const char usage[] =
    "usage: fstfs-top [OPTION...] MOUNTPOINT\n"
    "\n"
    "Shows the activity of an fstfs mount while a model is loaded: throughput to readers and\n"
    "from storage, reads in flight, prefetching and how much of it is used, memory, errors,\n"
    "the programs that have files open, and what limits the throughput.\n"
    "On a terminal it redraws one screen every second until ^C; otherwise it prints a line\n"
    "each time.\n"
    "\n"
    "  MOUNTPOINT   the mount point, or any path in the mount\n"
    "\n"
    "Options:\n"
    "  --interval=SECONDS  time between two samples, 0.1 to 3600 (1)\n"
    "  --once              print one report, over one interval, and exit\n"
    "  --json              print each report as a JSON object on one line\n"
    "  --loads             print a table of the last loads, and what limited each; with --json\n"
    "                      the lines of .fstfs/loads\n"
    "  --svg               print the last load as an SVG image: its rate over time, and what the\n"
    "                      time was spent on\n"
    "  -h, --help; -V, --version\n"
    "\n"
    "A load is a burst of reads of one checkpoint by one process group. Only the mounting user,\n"
    "and with allow_other also root, may read the loads. Only root sees the open files of other\n"
    "users. Processes in another mount namespace, such as containers, are not shown.\n"
    "\n"
    "Exit status: 0; 1 if there is no mount, or if it was unmounted; 2 if the command line is\n"
    "invalid; 128 plus the number of the signal that ended it, such as ^C.\n"
    "\n"
    "Examples:\n"
    "  fstfs-top /mnt/tensors\n"
    "  fstfs-top --loads /mnt/tensors\n"
    "  fstfs-top --json --interval=10 /mnt/tensors >>load.jsonl\n";

static bool
parse_interval(const char *value, void *field)
{
    double *seconds = field;
    char *end;

    *seconds = strtod(value, &end);
    return end != value && !*end && *seconds >= 0.1 && *seconds <= 3600;
}

static const struct command_option option_table[] = {
    {"interval", offsetof(struct top_options, interval), "seconds from 0.1 to 3600",
     parse_interval},
    {"once", offsetof(struct top_options, once), NULL, NULL},
    {"json", offsetof(struct top_options, json), NULL, NULL},
    {"loads", offsetof(struct top_options, loads), NULL, NULL},
    {"svg", offsetof(struct top_options, svg), NULL, NULL},
    {NULL, 0, NULL, NULL},
};

static const struct command command = {"fstfs-top", usage, option_table};

void
options_parse(int argc, char **argv, struct top_options *options)
{
    *options = (struct top_options){.interval = 1};
    command_options(&command, argc, argv, options);
    if (argc - optind != 1)
        command_refuse("found %d arguments, expected one MOUNTPOINT; see fstfs-top --help",
                       argc - optind);
    options->path = argv[optind];
}
