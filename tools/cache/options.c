/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/array.h"
#include "base/size.h"
#include "common/command.h"

#include <getopt.h>

static const char usage[] =
    "usage: fstfs-cache [OPTION...] PATH...\n"
    "\n"
    "Shows how much of one or more checkpoints is in the page cache, reads them into it, keeps\n"
    "them there, or evicts them.\n"
    "\n"
    "  PATH   a file; a directory, for all files in it and its subdirectories, except hidden\n"
    "         ones; or the index file of a checkpoint, for its shards; on a mount of fstfs or\n"
    "         anywhere else\n"
    "\n"
    "Options:\n"
    "  --warm           read into the page cache what is not in it\n"
    "  --keep           warm, and lock the pages in memory until SIGINT, SIGTERM or SIGHUP\n"
    "  --evict          write dirty pages to storage, and evict the pages from the page cache\n"
    "  --tensors=GLOB   only the pages of tensors whose full name matches; may be repeated.\n"
    "                   Takes safetensors, PyTorch and GGUF files, and tensor files of a mount\n"
    "  --memory=SIZE    warm or keep the first SIZE bytes only: 512M, 40G, 40GB. Without it, or\n"
    "                   with --keep, nothing is read if there is not enough memory\n"
    "  --json           print one JSON object\n"
    "  -h, --help; -V, --version\n"
    "\n"
    "It prints a line for each PATH that is a file and for each directory that has files: how\n"
    "many of its bytes the kernel reports as cached, measured after --warm, --keep or --evict.\n"
    "The number is \"unknown\" if the kernel does not reveal it to this user, or if a file\n"
    "cannot be opened.\n"
    "\n"
    "Each file has its own pages. Those of a file on a mount are used by programs that read\n"
    "this file through the mount: warm merged/llama for those that read merged/llama. They\n"
    "are not those of the source, which libfstfs and programs without a mount read: warm the\n"
    "files of the source for these.\n"
    "\n"
    "Exit status: 0; 1 if something could not be shown, warmed, kept or evicted, or if a\n"
    "GLOB matches no tensor; 2 if the command line is invalid; 128 plus the number of the\n"
    "signal that ended it, except that a signal ends --keep with 0 (or 1, as above) once the\n"
    "pages are locked.\n"
    "\n"
    "Examples:\n"
    "  fstfs-cache /mnt/tensors/merged/llama\n"
    "  fstfs-cache --warm /mnt/tensors/shards/llama\n"
    "  fstfs-cache --keep --tensors='model.layers.[0-7].*' /mnt/tensors/merged/llama\n"
    "  fstfs-cache --evict ~/models/llama/*.safetensors\n";

static bool
parse_glob(const char *value, void *field)
{
    struct globs *globs = field;

    if (!array_add(globs->all, globs->count, value))
        command_refuse("out of memory");
    return true;
}

static bool
parse_memory(const char *value, void *field)
{
    return size_read(value, field);
}

static const struct command_option option_table[] = {
    {"warm", offsetof(struct cache_options, warm), NULL, NULL},
    {"keep", offsetof(struct cache_options, keep), NULL, NULL},
    {"evict", offsetof(struct cache_options, evict), NULL, NULL},
    {"tensors", offsetof(struct cache_options, globs), "a pattern", parse_glob},
    {"memory", offsetof(struct cache_options, memory), "a size such as 512M, 40G or 40GB",
     parse_memory},
    {"json", offsetof(struct cache_options, json), NULL, NULL},
    {NULL, 0, NULL, NULL},
};

static const struct command command = {"fstfs-cache", usage, option_table};

void
options_parse(int argc, char **argv, struct cache_options *options)
{
    *options = (struct cache_options){0};
    command_options(&command, argc, argv, options);
    options->paths = argv + optind;
    options->path_count = argc - optind;
    if (options->path_count == 0)
        command_refuse("missing PATH; see fstfs-cache --help");
    if (options->warm + options->keep + options->evict > 1)
        command_refuse("--warm, --keep and --evict exclude each other");
    if (options->memory && !options->warm && !options->keep)
        command_refuse("--memory requires --warm or --keep");
}

void
options_free(struct cache_options *options)
{
    free(options->globs.all);
}
