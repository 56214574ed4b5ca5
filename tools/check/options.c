/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "common/say.h"
#include "sha256.h"

#include <stdio.h>

static const char usage[] =
    "usage: fstfs-check [OPTION...] PATH...\n"
    "\n"
    "Says whether safetensors files and checkpoints are sound, and why not: one line for\n"
    "each finding, the path first. Nothing is written to what is checked.\n"
    "\n"
    "  PATH   a safetensors file; the index file of a checkpoint; DIRECTORY/STEM for the\n"
    "         checkpoint of that name; or a directory: all checkpoints in it and below, as\n"
    "         a tree of models or a Hugging Face cache\n"
    "\n"
    "Looked for are: headers that safetensors would refuse, files that are too short or too\n"
    "long, and by how much; shards that are missing, and numbers beyond their total; tensors\n"
    "that stand in two shards; an index that says otherwise than the shards, in names or\n"
    "total_size, or whose total_size is no whole number; dtypes that nobody knows; tensors\n"
    "that do not begin at a multiple of their element, which PyTorch cannot map; metadata\n"
    "that shards disagree on, or of a format that loaders refuse; links that lead nowhere,\n"
    "and downloads that were not finished. This reads headers only.\n"
    "\n"
    "Options:\n"
    "  --deep         read every byte too; of files in a Hugging Face cache, compare the\n"
    "                 SHA-256 with the one that the hub gave them\n"
    "  --nan          also find NaN and infinity in tensors of floating point (--deep)\n"
    "  --hashes=FILE  also hash each tensor (--deep): if FILE is not there, write the hashes\n"
    "                 to it; else compare. Of one PATH; shards may be cut anew in between\n"
    "  --all          name every tensor and shard of many with the same fault, not three\n"
    "  --json         print one JSON object, and no lines\n"
    "  -h, --help; -V, --version\n"
    "\n"
    "Exit status: 0 when all is sound; 1 when there are findings; 2 when something could not\n"
    "be looked at, or the command line is wrong; 128 and the signal's number when one ended\n"
    "it. Findings go to standard output, all else to standard error.\n"
    "\n"
    "Examples:\n"
    "  fstfs-check ~/models\n"
    "  fstfs-check --deep ~/.cache/huggingface/hub\n"
    "  fstfs-check --hashes=llama.hashes ~/models/llama    # and again after it was moved\n";

enum { OPTION_DEEP = 256, OPTION_NAN, OPTION_HASHES, OPTION_ALL, OPTION_JSON };

static const struct option names[] = {
    {"deep", no_argument, NULL, OPTION_DEEP},           {"nan", no_argument, NULL, OPTION_NAN},
    {"hashes", required_argument, NULL, OPTION_HASHES}, {"all", no_argument, NULL, OPTION_ALL},
    {"json", no_argument, NULL, OPTION_JSON},
};

static bool
take(int option, void *arg)
{
    struct options *options = arg;

    switch (option) {
    case OPTION_DEEP:
        options->deep = true;
        break;
    case OPTION_NAN:
        options->nan = options->deep = true;
        break;
    case OPTION_HASHES:
        options->hashes = optarg;
        options->deep = true;
        break;
    case OPTION_ALL:
        options->all = true;
        break;
    case OPTION_JSON:
        options->json = true;
        break;
    }
    return true;
}

static const struct command command = {
    "fstfs-check", usage, names, sizeof(names) / sizeof(names[0]), take,
};

enum options_result
options_parse(int argc, char **argv, struct options *options)
{
    enum options_result result;

    *options = (struct options){0};
    result = command_options(&command, argc, argv, options);
    if (result != OPTIONS_RUN)
        return result;
    options->paths = argv + optind;
    options->path_count = argc - optind;
    if (options->path_count == 0) {
        complain("a PATH is wanted; fstfs-check -h says more");
        return OPTIONS_WRONG;
    }
    if (options->hashes && options->path_count > 1) {
        complain("--hashes is of one PATH");
        return OPTIONS_WRONG;
    }
    if (options->hashes && !sha256_can()) {
        complain("--hashes: this fstfs-check was built without libcrypto, which hashes");
        return OPTIONS_WRONG;
    }
    return OPTIONS_RUN;
}
