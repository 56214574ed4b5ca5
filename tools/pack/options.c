/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/array.h"
#include "base/error.h"
#include "base/size.h"
#include "format/container.h"

#include <getopt.h>
#include <string.h>

#define SHARDS_MOST 99999
#define STEM_MOST 200

static const char usage[] =
    "usage: fstfs-pack [OPTION...] INPUT... FILE.safetensors\n"
    "       fstfs-pack [--force] [--verify] GGUF-INPUT FILE.gguf\n"
    "       fstfs-pack --max-shard-size=SIZE|--shards=N [OPTION...] INPUT... DIRECTORY\n"
    "\n"
    "Writes a checkpoint as one file, or as shards with their index: the same bytes that a mount\n"
    "shows in merged/ and shards/, without a mount.\n"
    "\n"
    "  INPUT   a directory that contains one checkpoint; DIRECTORY/STEM if it contains\n"
    "          several; an index file; a safetensors or PyTorch file; a .npy file or a tensor\n"
    "          file of a mount, which is one tensor with the file's name; or a directory of\n"
    "          such files. The tensors of all inputs are combined; no two may have one name\n"
    "\n"
    "In each file the tensors whose size is a multiple of 4096 come first, in their order, on\n"
    "page boundaries; the others follow by decreasing element size. The entries of\n"
    "__metadata__ that all inputs agree on are kept.\n"
    "\n"
    "The parts of a GGUF model are merged into one file, as a mount shows it in merged/.\n"
    "\n"
    "The other files of an INPUT that is a checkpoint (config.json, tokenizer, code) are\n"
    "copied into DIRECTORY, except weights, hidden files and subdirectories.\n"
    "\n"
    "Options:\n"
    "  --max-shard-size=SIZE  write shards of at most SIZE of tensors: 512M, 5G, 5GB. A larger\n"
    "                         tensor gets a shard of its own\n"
    "  --shards=N             write N shards\n"
    "  --stem=NAME            name the shards NAME-00001-of-... (the stem of the only INPUT if\n"
    "                         that is a checkpoint, else model)\n"
    "  --pick=GLOB            write only tensors whose name matches; --drop=GLOB: only those\n"
    "                         whose name does not match. Both may be repeated: the last one that\n"
    "                         matches a tensor decides. Tensors that none matches are written if\n"
    "                         the first one is --drop\n"
    "  --tensors-only         do not copy other files into DIRECTORY\n"
    "  --force                replace FILE, or the checkpoint of that name in DIRECTORY and\n"
    "                         other files there that differ; never an INPUT\n"
    "  --verify               read the output back from storage and compare it\n"
    "  -h, --help; -V, --version\n"
    "\n"
    "The output gets its name when all of it is on storage; a new DIRECTORY appears as a whole.\n"
    "Until then, and after a failure, a crash or a full disk, the old files remain. If a run is\n"
    "killed while it replaces them, they may have hidden names .NAME.*.swap. Unfinished files\n"
    "of a killed run (.NAME.*.fstfs-tmp) are removed by the next run. On file systems that can\n"
    "share blocks (XFS, btrfs), aligned parts are shared instead of copied.\n"
    "\n"
    "Exit status: 0 on success; 1 on failure; 2 if the command line is invalid; 128 plus the\n"
    "number of the signal that ended it.\n"
    "\n"
    "Examples:\n"
    "  fstfs-pack ~/models/llama llama.safetensors\n"
    "  fstfs-pack --max-shard-size=5GB --stem=model llama.safetensors ~/models/llama-5gb\n"
    "  fstfs-pack --drop='vision_tower.*' ~/models/llava text.safetensors\n"
    "  fstfs-pack weight.npy bias.npy layer.safetensors\n";

static bool
parse_shards(const char *value, void *field)
{
    return number_read(value, SHARDS_MOST, field);
}

static bool
parse_shard_size(const char *value, void *field)
{
    return size_read(value, field);
}

static bool
parse_stem(const char *value, void *field)
{
    *(const char **)field = value;
    return *value && *value != '.' && strlen(value) <= STEM_MOST && !strchr(value, '/');
}

static bool
add_pattern(struct patterns *patterns, const char *glob, bool drop)
{
    if (!array_add(patterns->all, patterns->count, (struct pattern){glob, drop}))
        command_refuse("out of memory");
    return true;
}

static bool
parse_pick(const char *value, void *field)
{
    return add_pattern(field, value, false);
}

static bool
parse_drop(const char *value, void *field)
{
    return add_pattern(field, value, true);
}

static const struct command_option option_table[] = {
    {"max-shard-size", offsetof(struct pack_options, shard_size), "a size such as 512M, 5G or 5GB",
     parse_shard_size},
    {"shards", offsetof(struct pack_options, shards), "a number from 1 to 99999", parse_shards},
    {"stem", offsetof(struct pack_options, stem), "the beginning of a file name", parse_stem},
    {"pick", offsetof(struct pack_options, patterns), "a pattern", parse_pick},
    {"drop", offsetof(struct pack_options, patterns), "a pattern", parse_drop},
    {"tensors-only", offsetof(struct pack_options, tensors_only), NULL, NULL},
    {"force", offsetof(struct pack_options, force), NULL, NULL},
    {"verify", offsetof(struct pack_options, verify), NULL, NULL},
    {NULL, 0, NULL, NULL},
};

static const struct command command = {"fstfs-pack", usage, option_table};

/* Checks that the arguments are valid together. */
static void
check_arguments(const struct pack_options *options)
{
    size_t length = options->output ? strlen(options->output) : 0, suffix_length = 0;
    const struct container *container =
        length ? container_of_name(options->output, length, &suffix_length) : NULL;
    bool is_file = (container == &container_safetensors || container == &container_gguf) &&
                   length > suffix_length;
    char name[QUOTED_SIZE];

    if (options->input_count < 1)
        command_refuse("missing INPUT or output; see fstfs-pack --help");
    if (options->shards && options->shard_size)
        command_refuse("--shards and --max-shard-size exclude each other");
    if (!options_make_shards(options) && !is_file)
        command_refuse("%s: not the name of a safetensors file (expected *.safetensors or *.sft) "
                       "or of a GGUF file (*.gguf); use --shards or --max-shard-size to write "
                       "shards into a directory",
                       quoted(name, options->output, length));
    if (!options_make_shards(options) && options->stem)
        command_refuse("--stem requires --shards or --max-shard-size");
    if (options_make_shards(options) && is_file)
        complain("warning: %s: --%s writes shards into a directory of this name; without it, "
                 "one file is written",
                 quoted(name, options->output, length),
                 options->shards ? "shards" : "max-shard-size");
}

void
options_parse(int argc, char **argv, struct pack_options *options)
{
    *options = (struct pack_options){0};
    command_options(&command, argc, argv, options);
    options->inputs = argv + optind;
    options->input_count = argc - optind - 1;
    options->output = optind < argc ? argv[argc - 1] : NULL;
    check_arguments(options);
}

void
options_free(struct pack_options *options)
{
    free(options->patterns.all);
}
