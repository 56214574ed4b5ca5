/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/size.h"
#include "methods.h"

#include <getopt.h>
#include <string.h>

static const char usage[] =
    "usage: fstfs-bench [OPTION...] FILE|CHECKPOINT...\n"
    "\n"
    "Measures how fast your models load, from the bare directory and through fstfs.\n"
    "\n"
    "  FILE         a checkpoint of one file; only this file is read\n"
    "  CHECKPOINT   a directory that contains one checkpoint; DIRECTORY/STEM if it\n"
    "               contains several; or an index file\n"
    "\n"
    "A path on a mount of fstfs is read there and in the source of the mount. For any\n"
    "other path, fstfs-bench mounts the directory temporarily.\n"
    "\n"
    "Methods:\n"
    "  direct       O_DIRECT with io_uring, 32 reads of 1 MiB in flight; on the bare\n"
    "               files this is the storage's best rate\n"
    "  read         read() of 1 MiB, file by file\n"
    "  mmap         mapped files, copied from start to end, as safetensors reads\n"
    "  names        the same, tensor by tensor in name order, as with safe_open's keys\n"
    "with --device=cuda:N:\n"
    "  gpu          all tensors into memory of that GPU with libfstfs. Mounted: through\n"
    "               FUSE, although libfstfs could bypass it. Also reports the rate of\n"
    "               plain copies from pinned memory, the backend used, and why not others\n"
    "with --loaders, if the python3 in PATH has them:\n"
    "  load_file, safe_open, fastsafetensors, runai, transformers, diffusers, fstfs\n"
    "  (the first two load NumPy arrays if torch is not installed)\n"
    "\n"
    "Every method runs cold and then warm, bare and mounted, interleaved with the others,\n"
    "for several rounds. Cold: the files were dropped from the page cache, which is\n"
    "verified, and a temporary mount is new. If files stay cached, fstfs-bench run by root\n"
    "drops the whole page cache, and reports it. Warm: the files have just been read.\n"
    "Ratios are taken within a round. The table has medians, and the range of the rounds.\n"
    "\n"
    "Options:\n"
    "  --loaders        also the Python loaders\n"
    "  --methods=LIST   only these methods, separated by commas\n"
    "  --rounds=N       number of rounds (5)\n"
    "  --device=cuda:N  also load into that GPU\n"
    "  --json           print JSON instead of a table\n"
    "  --svg=FILE       also draw a bar chart\n"
    "  -h, --help       print this help\n"
    "  -V, --version    print the version\n"
    "\n"
    "Exit status: 0; 1 if something failed or nothing could be measured; 2 for a wrong\n"
    "command line; 128 plus the signal number after a signal, with a table of the\n"
    "completed rounds.\n"
    "\n"
    "Examples:\n"
    "  fstfs-bench ~/models/llama\n"
    "  fstfs-bench --loaders --svg=llama.svg /mnt/tensors/shards/llama\n";

enum { ROUNDS_DEFAULT = 5 };

static bool
parse_rounds(const char *value, void *field)
{
    return number_read(value, ROUNDS_MOST, field);
}

/* Every name must be a method that these options make available. */
static void
check_methods(const struct bench_options *options)
{
    for (const char *at = options->methods; at; at = strchr(at, ',')) {
        enum method_kind kind;
        int length;

        at += *at == ',';
        length = (int)strcspn(at, ",");
        kind = method_kind_of(at, (size_t)length);
        if (kind == METHOD_UNKNOWN)
            command_refuse("--methods: unknown method \"%.*s\"; known: %s", length, at,
                           method_names);
        else if (kind == METHOD_LOADER && !options->loaders)
            command_refuse("--methods: %.*s needs --loaders", length, at);
        else if (kind == METHOD_DEVICE && !options->device)
            command_refuse("--methods: gpu needs --device");
    }
}

static void
check_device_name(const char *name)
{
    static const char prefix[] = "cuda:";
    size_t length = sizeof(prefix) - 1;

    if (name && (strncmp(name, prefix, length) != 0 || !name[length] ||
                 strspn(name + length, "0123456789") != strlen(name + length)))
        command_refuse("--device: %s is not a device (expected cuda:N, such as cuda:0)", name);
}

static const struct command_option option_table[] = {
    {"loaders", offsetof(struct bench_options, loaders), NULL, NULL},
    {"methods", offsetof(struct bench_options, methods), "a list of methods", NULL},
    {"rounds", offsetof(struct bench_options, rounds), "a number from 1 to 1000", parse_rounds},
    {"device", offsetof(struct bench_options, device), "cuda:N", NULL},
    {"json", offsetof(struct bench_options, json), NULL, NULL},
    {"svg", offsetof(struct bench_options, svg), "a file", NULL},
    {NULL, 0, NULL, NULL},
};

static const struct command command = {"fstfs-bench", usage, option_table};

void
options_parse(int argc, char **argv, struct bench_options *options)
{
    *options = (struct bench_options){.rounds = ROUNDS_DEFAULT};
    command_options(&command, argc, argv, options);
    options->paths = argv + optind;
    options->path_count = argc - optind;
    if (options->path_count == 0)
        command_refuse("FILE or CHECKPOINT is missing; see fstfs-bench -h");
    check_device_name(options->device);
    check_methods(options);
}
