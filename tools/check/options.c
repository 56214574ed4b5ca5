/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "sha256.h"

#include <getopt.h>

static const char usage[] =
    "usage: fstfs-check [OPTION...] PATH...\n"
    "\n"
    "Checks safetensors, PyTorch and GGUF checkpoints, and prints one line for each finding,\n"
    "which begins with the path. It does not change what it checks.\n"
    "\n"
    "  PATH   a safetensors file; the index file of a checkpoint; DIRECTORY/STEM for the\n"
    "         checkpoint of that name; or a directory, to check all checkpoints in it and\n"
    "         its subdirectories, such as a Hugging Face cache\n"
    "\n"
    "It finds: headers that safetensors rejects; files that are too short or too long, and\n"
    "by how much; missing shards, and shard numbers above the total; tensors that are in two\n"
    "shards; indexes that contradict the shards in names or total_size, or whose total_size\n"
    "is not a whole number; unknown dtypes; tensors that are not at a multiple of their\n"
    "element size, which PyTorch cannot map; metadata that differs between shards, or has a\n"
    "format that loaders reject; dangling links; and unfinished downloads. In PyTorch and GGUF\n"
    "files: malformed headers, tensors that safetensors cannot store, and pickles that run\n"
    "code when they are loaded. This reads only headers.\n"
    "\n"
    "Options:\n"
    "  --deep         also read every byte of safetensors files, and compare files in a\n"
    "                 Hugging Face cache with the SHA-256 that the hub has for them\n"
    "  --nan          also find NaN and infinity in floating-point tensors (implies --deep)\n"
    "  --hashes=FILE  also hash each tensor (implies --deep): write the hashes to FILE if it\n"
    "                 does not exist, else compare them. For one PATH; the checkpoint may be\n"
    "                 cut into other shards in between\n"
    "  --all          name every tensor and shard with the same fault, not only three\n"
    "  --json         print one JSON object instead of lines\n"
    "  -h, --help; -V, --version\n"
    "\n"
    "Exit status: 0 if there are no findings; 1 if there are; 2 if something could not be\n"
    "checked, or the command line is invalid; 128 plus the number of the signal that ended\n"
    "it. Findings go to standard output, everything else to standard error.\n"
    "\n"
    "Examples:\n"
    "  fstfs-check ~/models\n"
    "  fstfs-check --deep ~/.cache/huggingface/hub\n"
    "  fstfs-check --hashes=llama.hashes ~/models/llama    # and again after it was moved\n";

static const struct command_option check_options[] = {
    {"deep", offsetof(struct options, deep), NULL, NULL},
    {"nan", offsetof(struct options, nan), NULL, NULL},
    {"hashes", offsetof(struct options, hashes), "a file", NULL},
    {"all", offsetof(struct options, all), NULL, NULL},
    {"json", offsetof(struct options, json), NULL, NULL},
};

static const struct command command = {"fstfs-check", usage, check_options,
                                       sizeof(check_options) / sizeof(check_options[0])};

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
    options->deep = options->deep || options->nan || options->hashes;
    if (options->path_count == 0)
        complain("missing PATH; see fstfs-check --help");
    else if (options->hashes && options->path_count > 1)
        complain("--hashes: found %d PATHs, expected one", options->path_count);
    else if (options->hashes && !sha256_can())
        complain("--hashes is not supported: this fstfs-check was built without libcrypto");
    else
        return OPTIONS_RUN;
    return OPTIONS_WRONG;
}
