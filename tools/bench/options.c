/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/size.h"
#include "common/say.h"
#include "ways.h"

#include <stdio.h>
#include <string.h>

enum { ROUNDS = 5, ROUNDS_MOST = 1000 };

static const char usage[] =
    "usage: fstfs-bench [OPTION...] FILE|CHECKPOINT...\n"
    "\n"
    "Reads your models in the ways that loaders read them, from the bare directory and\n"
    "through fstfs, and says how fast each was.\n"
    "\n"
    "  FILE         a safetensors file, which is then all that is read\n"
    "  CHECKPOINT   a directory with one checkpoint in it; DIRECTORY/STEM where there\n"
    "               are several; or an index file\n"
    "\n"
    "A path on a mount of fstfs is read there and in its source. For others it mounts\n"
    "their directory for itself, in a private place, and unmounts again.\n"
    "\n"
    "Ways:\n"
    "  direct       O_DIRECT with io_uring, 32 reads of 1 MiB under way: on the bare\n"
    "               files this is the storage's best, which the others are held to\n"
    "  read         read() of 1 MiB, file by file\n"
    "  mmap         a mapping copied from end to end, as safetensors reads\n"
    "  names        the same tensor by tensor in name order, as safe_open's keys come\n"
    "with --device=cuda:N:\n"
    "  gpu          all tensors into memory of that GPU, by libfstfs; mounted: through the\n"
    "               mount, though it could go past it. Beside it: bare copies from pinned\n"
    "               memory, by which of its rungs libfstfs read, and why not by others\n"
    "with --loaders, where the python3 in PATH has them:\n"
    "  load_file, safe_open, fastsafetensors, runai, transformers, diffusers\n"
    "  (the first two into NumPy's arrays where there is no torch)\n"
    "\n"
    "Each is run cold and then warm, bare and mounted, all of them in turn, in several\n"
    "rounds. Cold: the files were dropped from the page cache, and it was looked that\n"
    "they are gone; a mount of its own is a fresh one. Where that does not do, root\n"
    "drops the whole page cache; it is said when that was done. Warm: read a moment ago.\n"
    "Ratios are taken within a round; medians are shown, and the range of the rounds.\n"
    "\n"
    "Options:\n"
    "  --loaders      the Python loaders too\n"
    "  --ways=LIST    only these ways, with commas between\n"
    "  --rounds=N     rounds (5)\n"
    "  --device=cuda:N  load into that GPU too\n"
    "  --json         print JSON and no table\n"
    "  --svg=FILE     draw a bar chart too, with the model, processor and storage\n"
    "  -h, --help; -V, --version\n"
    "\n"
    "Exit status: 0; 1 when something failed, or nothing could be measured; 2 for a\n"
    "wrong command line; 128 and the signal's number when one ended it, after a table\n"
    "of the rounds so far.\n"
    "\n"
    "Examples:\n"
    "  fstfs-bench ~/models/llama\n"
    "  fstfs-bench --loaders --svg=llama.svg /mnt/tensors/shards/llama\n";

enum { OPTION_LOADERS = 256, OPTION_WAYS, OPTION_ROUNDS, OPTION_DEVICE, OPTION_JSON, OPTION_SVG };

static const struct option names[] = {
    {"loaders", no_argument, NULL, OPTION_LOADERS},
    {"ways", required_argument, NULL, OPTION_WAYS},
    {"rounds", required_argument, NULL, OPTION_ROUNDS},
    {"device", required_argument, NULL, OPTION_DEVICE},
    {"json", no_argument, NULL, OPTION_JSON},
    {"svg", required_argument, NULL, OPTION_SVG},
};

static bool
read_rounds(const char *text, unsigned *rounds)
{
    if (number_read(text, ROUNDS_MOST, rounds))
        return true;
    complain("--rounds wants a number from 1 to %d, not %s", ROUNDS_MOST, text);
    return false;
}

/* Each name must be one of a way that can be had with these options. */
static bool
check_ways(const struct options *options)
{
    for (const char *at = options->ways; at; at = strchr(at, ',')) {
        int length;
        enum way_kind kind;

        at += *at == ',';
        length = (int)strcspn(at, ",");
        kind = way_kind_of(at, (size_t)length);
        if (kind == WAY_NONE)
            complain("--ways: there is no way \"%.*s\"; there are %s", length, at, ways_names);
        else if (kind == WAY_LOADER && !options->loaders)
            complain("--ways: %.*s is a loader, which wants --loaders too", length, at);
        else if (kind == WAY_DEVICE && !options->device)
            complain("--ways: gpu wants --device too");
        else
            continue;
        return false;
    }
    return true;
}

static bool
check_device(const char *name)
{
    static const char prefix[] = "cuda:";
    size_t length = sizeof(prefix) - 1;

    if (!name || (strncmp(name, prefix, length) == 0 && name[length] &&
                  strspn(name + length, "0123456789") == strlen(name + length)))
        return true;
    complain("--device wants cuda:N, as cuda:0, not %s", name);
    return false;
}

static bool
take(int option, void *arg)
{
    struct options *options = arg;

    switch (option) {
    case OPTION_LOADERS:
        options->loaders = true;
        break;
    case OPTION_WAYS:
        options->ways = optarg;
        break;
    case OPTION_ROUNDS:
        return read_rounds(optarg, &options->rounds);
    case OPTION_DEVICE:
        options->device = optarg;
        break;
    case OPTION_JSON:
        options->json = true;
        break;
    case OPTION_SVG:
        options->svg = optarg;
        break;
    }
    return true;
}

static const struct command command = {
    "fstfs-bench", usage, names, sizeof(names) / sizeof(names[0]), take,
};

enum options_result
options_parse(int argc, char **argv, struct options *options)
{
    enum options_result result;

    *options = (struct options){.rounds = ROUNDS};
    result = command_options(&command, argc, argv, options);
    if (result != OPTIONS_RUN)
        return result;
    options->paths = argv + optind;
    options->path_count = argc - optind;
    if (options->path_count == 0) {
        complain("a FILE or CHECKPOINT is wanted; fstfs-bench -h says more");
        return OPTIONS_WRONG;
    }
    return check_device(options->device) && check_ways(options) ? OPTIONS_RUN : OPTIONS_WRONG;
}
