/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/array.h"
#include "base/error.h"
#include "base/size.h"
#include "format/safetensors.h"

#include <getopt.h>
#include <string.h>

#define SHARDS_MOST 99999
#define STEM_MOST 200

static const char usage[] =
    "usage: fstfs-pack [OPTION...] INPUT... FILE.safetensors\n"
    "       fstfs-pack --max-shard-size=SIZE|--shards=N [OPTION...] INPUT... DIRECTORY\n"
    "\n"
    "Writes the files that a mount shows as real files, without a mount: a checkpoint as one\n"
    "file, or as shards with their index, with the same bytes.\n"
    "\n"
    "  INPUT   a directory that contains one checkpoint; DIRECTORY/STEM if it contains\n"
    "          several; an index file; a safetensors file; a .npy file or a tensor file of a\n"
    "          mount, which is one tensor with the file's name; or a directory of such files.\n"
    "          The tensors of all inputs are combined; none may be in two of them\n"
    "\n"
    "In each file the tensors whose size is a multiple of 4096 come first, in their order, on\n"
    "page boundaries; the others follow by decreasing element size. The entries of\n"
    "__metadata__ that all inputs agree on are kept.\n"
    "\n"
    "The other files of an INPUT that is a checkpoint (config.json, tokenizer, code) are\n"
    "copied into DIRECTORY, except weights, hidden files and subdirectories.\n"
    "\n"
    "Options:\n"
    "  --max-shard-size=SIZE  write shards of at most SIZE of tensors: 512M, 5G, 5GB\n"
    "  --shards=N             write N shards\n"
    "  --stem=NAME            name the shards NAME-00001-of-... (the stem of the only INPUT if\n"
    "                         that is a checkpoint, else model)\n"
    "  --pick=GLOB            take only tensors whose name matches; --drop=GLOB: take all\n"
    "                         others. Both may be repeated: the last one that matches a tensor\n"
    "                         decides, and for tensors that none matches, the first one\n"
    "  --tensors-only         do not copy other files into DIRECTORY\n"
    "  --force                replace FILE, or the checkpoint of that name in DIRECTORY and\n"
    "                         other files there that differ; never an INPUT\n"
    "  --verify               read the output back from storage and compare it\n"
    "  -h, --help; -V, --version\n"
    "\n"
    "The output gets its name when all of it is on storage, a new DIRECTORY as a whole.\n"
    "Until then, and after a failure, a crash or a full disk, the old files remain; hidden\n"
    "files .NAME.*.tmp of a killed run are removed by the next run. On file systems that can\n"
    "share blocks (XFS, btrfs), aligned parts are shared instead of copied.\n"
    "\n"
    "Exit status: 0; 1 on failure; 2 if the command line is invalid; 128 plus the number of\n"
    "the signal that ended it.\n"
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
    struct pattern *all = array_room(patterns->all, patterns->count, sizeof(*all));

    if (!all) {
        complain("out of memory");
        return false;
    }
    patterns->all = all;
    all[patterns->count++] = (struct pattern){glob, drop};
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

static const struct command_option pack_options[] = {
    {"max-shard-size", offsetof(struct options, shard_size), "a size such as 512M, 5G or 5GB",
     parse_shard_size},
    {"shards", offsetof(struct options, shards), "a number from 1 to 99999", parse_shards},
    {"stem", offsetof(struct options, stem), "the beginning of a file name", parse_stem},
    {"pick", offsetof(struct options, patterns), "a pattern", parse_pick},
    {"drop", offsetof(struct options, patterns), "a pattern", parse_drop},
    {"tensors-only", offsetof(struct options, tensors_only), NULL, NULL},
    {"force", offsetof(struct options, force), NULL, NULL},
    {"verify", offsetof(struct options, verify), NULL, NULL},
};

static const struct command command = {"fstfs-pack", usage, pack_options,
                                       sizeof(pack_options) / sizeof(pack_options[0])};

/* Checks that the arguments are valid together. */
static bool
check_arguments(const struct options *options)
{
    size_t length = options->output ? strlen(options->output) : 0;
    bool is_file = length > 0 && st_suffix_length(options->output, length) > 0 &&
                   length > st_suffix_length(options->output, length);
    char name[QUOTED_SIZE];

    if (options->input_count < 1)
        complain("missing INPUT or output; see fstfs-pack --help");
    else if (options->shards && options->shard_size)
        complain("--shards and --max-shard-size exclude each other");
    else if (!options_make_shards(options) && !is_file)
        complain("%s: not the name of a safetensors file (expected *.safetensors or *.sft); use "
                 "--shards or --max-shard-size to write shards into a directory",
                 quoted(name, options->output, length));
    else if (!options_make_shards(options) && options->stem)
        complain("--stem requires --shards or --max-shard-size");
    else {
        if (options_make_shards(options) && is_file)
            complain("warning: %s: --%s writes shards into a directory of this name; without it, "
                     "one file is written",
                     quoted(name, options->output, length),
                     options->shards ? "shards" : "max-shard-size");
        return true;
    }
    return false;
}

enum options_result
options_parse(int argc, char **argv, struct options *options)
{
    enum options_result result;

    *options = (struct options){0};
    result = command_options(&command, argc, argv, options);
    if (result != OPTIONS_RUN)
        return result;
    options->inputs = argv + optind;
    options->input_count = argc - optind - 1;
    options->output = optind < argc ? argv[argc - 1] : NULL;
    return check_arguments(options) ? OPTIONS_RUN : OPTIONS_WRONG;
}

void
options_free(struct options *options)
{
    free(options->patterns.all);
}
