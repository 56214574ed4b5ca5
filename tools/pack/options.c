/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "base/array.h"
#include "base/error.h"
#include "base/size.h"
#include "common/say.h"
#include "format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARDS_MOST = 99999, STEM_MOST = 200 };

static const char usage[] =
    "usage: fstfs-pack [OPTION...] INPUT... FILE.safetensors\n"
    "       fstfs-pack --max-shard-size=SIZE|--shards=N [OPTION...] INPUT... DIRECTORY\n"
    "\n"
    "Makes real files of what the views of a mount show: one file of a checkpoint, or shards\n"
    "of it with their index; byte for byte the same, with no mount.\n"
    "\n"
    "  INPUT   a directory with one checkpoint; DIRECTORY/STEM where there are several; an\n"
    "          index file; a safetensors file; a .npy file, or a tensor file of a mount, which\n"
    "          is one tensor named as the file; or a directory of such files. What several\n"
    "          have is put together; no tensor may be in two\n"
    "\n"
    "In each file tensors whose size is a multiple of 4096 come first, in the order they were\n"
    "in, and begin on pages; the rest follow by falling element size. Of __metadata__ is kept\n"
    "what the inputs agree on.\n"
    "\n"
    "Into a DIRECTORY go also the other files of an INPUT that is a checkpoint (config.json,\n"
    "tokenizer, code), but none that holds weights, is hidden or is in a directory below.\n"
    "\n"
    "Options:\n"
    "  --max-shard-size=SIZE  cut into shards of at most SIZE of tensors: 512M, 5G, 5GB\n"
    "  --shards=N             cut into N shards\n"
    "  --stem=NAME            name the shards NAME-00001-of-... (as the one checkpoint that is "
    "the\n"
    "                         INPUT, else model)\n"
    "  --pick=GLOB            take only tensors that match; --drop=GLOB: take the others. Both "
    "can\n"
    "                         be given again and again: of several that match the last says,\n"
    "                         and where none does, the first\n"
    "  --tensors-only         copy no other files into DIRECTORY\n"
    "  --force                replace the FILE, or the checkpoint of that name in DIRECTORY and\n"
    "                         other files there that differ; never an INPUT\n"
    "  --verify               when it is written, read it back and compare all of it\n"
    "  -h, --help; -V, --version\n"
    "\n"
    "The output gets its name when all of it is written and on storage, a DIRECTORY all at\n"
    "once. Until then, and after any failure, a crash or a full disk, there is what was there\n"
    "before; a hidden .NAME.*.tmp that a kill left is removed by the next run. Where the file\n"
    "system can share blocks (XFS, btrfs), what lies right for it is shared and not copied.\n"
    "\n"
    "Exit status: 0; 1 when it could not be done; 2 for a wrong command line; 128 and the\n"
    "signal's number when one ended it.\n"
    "\n"
    "Examples:\n"
    "  fstfs-pack ~/models/llama llama.safetensors\n"
    "  fstfs-pack --max-shard-size=5GB --stem=model llama.safetensors ~/models/llama-5gb\n"
    "  fstfs-pack --drop='vision_tower.*' ~/models/llava text.safetensors\n"
    "  fstfs-pack weight.npy bias.npy layer.safetensors\n";

enum {
    OPTION_SIZE = 256,
    OPTION_SHARDS,
    OPTION_STEM,
    OPTION_PICK,
    OPTION_DROP,
    OPTION_TENSORS_ONLY,
    OPTION_FORCE,
    OPTION_VERIFY
};

static const struct option names[] = {
    {"max-shard-size", required_argument, NULL, OPTION_SIZE},
    {"shards", required_argument, NULL, OPTION_SHARDS},
    {"stem", required_argument, NULL, OPTION_STEM},
    {"pick", required_argument, NULL, OPTION_PICK},
    {"drop", required_argument, NULL, OPTION_DROP},
    {"tensors-only", no_argument, NULL, OPTION_TENSORS_ONLY},
    {"force", no_argument, NULL, OPTION_FORCE},
    {"verify", no_argument, NULL, OPTION_VERIFY},
};

static bool
read_shards(const char *text, uint32_t *shards)
{
    if (number_read(text, SHARDS_MOST, shards))
        return true;
    complain("--shards wants a number from 1 to %d, not %s", SHARDS_MOST, text);
    return false;
}

static bool
read_shard_size(const char *text, uint64_t *size)
{
    if (size_read(text, size))
        return true;
    complain("--max-shard-size wants a size as 512M, 5G or 5GB, not %s", text);
    return false;
}

static bool
read_stem(const char *text, const char **stem)
{
    if (*text && *text != '.' && strlen(text) <= STEM_MOST && !strchr(text, '/')) {
        *stem = text;
        return true;
    }
    complain("--stem wants the beginning of a file's name, not %s", text);
    return false;
}

static bool
add_pattern(struct options *options, const char *glob, bool drop)
{
    struct pattern *patterns =
        array_room(options->patterns, options->pattern_count, sizeof(*patterns));

    if (!patterns) {
        complain("no memory");
        return false;
    }
    options->patterns = patterns;
    patterns[options->pattern_count++] = (struct pattern){glob, drop};
    return true;
}

static bool
take(int option, void *arg)
{
    struct options *options = arg;

    switch (option) {
    case OPTION_SIZE:
        return read_shard_size(optarg, &options->shard_size);
    case OPTION_SHARDS:
        return read_shards(optarg, &options->shards);
    case OPTION_STEM:
        return read_stem(optarg, &options->stem);
    case OPTION_PICK:
    case OPTION_DROP:
        return add_pattern(options, optarg, option == OPTION_DROP);
    case OPTION_TENSORS_ONLY:
        options->copies_files = false;
        break;
    case OPTION_FORCE:
        options->force = true;
        break;
    case OPTION_VERIFY:
        options->verify = true;
        break;
    }
    return true;
}

/* Shards in a directory that is named as a file are right for some, and a slip of others. */
static bool
warn_of_name(const struct options *options, bool is_file)
{
    char name[QUOTED_SIZE];

    if (is_file)
        complain("warning: %s: --%s makes shards in a directory of this name; without it, one "
                 "file is made",
                 quoted(name, options->output, strlen(options->output)),
                 options->shards ? "shards" : "max-shard-size");
    return true;
}

/* Whether the arguments make sense together. */
static bool
check(const struct options *options)
{
    size_t length = options->output ? strlen(options->output) : 0;
    size_t suffix = length ? st_suffix_length(options->output, length) : 0;
    bool is_file = suffix > 0 && length > suffix;

    if (options->input_count < 1)
        complain("an INPUT and an OUTPUT are wanted; fstfs-pack -h says more");
    else if (options->shards && options->shard_size)
        complain("--shards and --max-shard-size exclude each other");
    else if (options->shards || options->shard_size)
        return warn_of_name(options, is_file);
    else if (!is_file)
        complain("%s: one file is named *.safetensors or *.sft; for shards in a directory say "
                 "--shards or "
                 "--max-shard-size",
                 options->output);
    else if (options->stem)
        complain("--stem is for shards");
    else
        return true;
    return false;
}

static const struct command command = {
    "fstfs-pack", usage, names, sizeof(names) / sizeof(names[0]), take,
};

enum options_result
options_parse(int argc, char **argv, struct options *options)
{
    enum options_result result;

    *options = (struct options){.copies_files = true};
    result = command_options(&command, argc, argv, options);
    if (result != OPTIONS_RUN)
        return result;
    options->inputs = argv + optind;
    options->input_count = argc - optind - 1;
    options->output = optind < argc ? argv[argc - 1] : NULL;
    if (!check(options))
        return OPTIONS_WRONG;
    options->copies_files &= options->shards || options->shard_size;
    return OPTIONS_RUN;
}

void
options_free(struct options *options)
{
    free(options->patterns);
}
