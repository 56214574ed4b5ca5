/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "sha256.h"

#include <getopt.h>

static const char usage[] =
    "usage: fstfs-check [OPTION...] PATH...\n"
    "\n"
    "Checks safetensors, PyTorch and GGUF checkpoints, and prints one line for each finding,\n"
    "which begins with the path. It changes no file.\n"
    "\n"
    "  PATH   a safetensors, PyTorch or GGUF file; the index file of a checkpoint;\n"
    "         DIRECTORY/STEM for the checkpoint of that name; or a directory, to check all\n"
    "         checkpoints in it and its subdirectories, such as a Hugging Face cache\n"
    "\n"
    "It finds: headers that safetensors rejects; files that are too short or too long, and\n"
    "by how much; missing shards, and shard numbers above the total; tensors that are in two\n"
    "shards; indexes that contradict the shards in names or total_size, or whose total_size\n"
    "is not a whole number; unknown dtypes; tensors that are not at a multiple of their\n"
    "element size, which PyTorch cannot map; metadata that differs between shards, or has a\n"
    "format that loaders reject; dangling links; and unfinished downloads. In PyTorch and GGUF\n"
    "files: malformed headers, tensors that safetensors cannot store, and pickles that run\n"
    "code when they are loaded. To find all this, it reads only headers.\n"
    "\n"
    "Options:\n"
    "  --deep         also read every byte, compare files in a Hugging Face cache with the\n"
    "                 SHA-256 that the hub has for them, and records of PyTorch's archives\n"
    "                 with their CRC-32\n"
    "  --nan          also find NaN and infinity in floating-point tensors of safetensors\n"
    "                 files (implies --deep)\n"
    "  --hashes=FILE  also hash each tensor of safetensors files (implies --deep): write the\n"
    "                 hashes to FILE if it does not exist, else compare them. Takes one PATH;\n"
    "                 re-cutting its checkpoints does not change the hashes\n"
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

static const struct command_option option_table[] = {
    {"deep", offsetof(struct check_options, deep), NULL, NULL},
    {"nan", offsetof(struct check_options, nan), NULL, NULL},
    {"hashes", offsetof(struct check_options, hashes), "a file", NULL},
    {"all", offsetof(struct check_options, all), NULL, NULL},
    {"json", offsetof(struct check_options, json), NULL, NULL},
    {NULL, 0, NULL, NULL},
};

static const struct command command = {"fstfs-check", usage, option_table};

void
options_parse(int argc, char **argv, struct check_options *options)
{
    *options = (struct check_options){0};
    command_options(&command, argc, argv, options);
    options->paths = argv + optind;
    options->path_count = argc - optind;
    options->deep = options->deep || options->nan || options->hashes;
    if (options->path_count == 0)
        command_refuse("missing PATH; see fstfs-check --help");
    if (options->hashes && options->path_count > 1)
        command_refuse("--hashes: found %d PATHs, expected one", options->path_count);
    if (options->hashes && !sha256_is_supported())
        command_refuse("--hashes is not supported: this fstfs-check was built without libcrypto");
}
