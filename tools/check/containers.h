/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the headers of torch.save() and GGUF files, and the imports of pickles. Never executes
 * anything from a file.
 */
#ifndef FSTFS_CHECK_CONTAINERS_H
#define FSTFS_CHECK_CONTAINERS_H

#include "archive.h"
#include "base/error.h"
#include "base/extent.h"
#include "findings.h"

#include <stdbool.h>
#include <stdint.h>

struct container_result {
    uint64_t files, tensors, bytes; /* checked */
    bool has_tensors; /* the header is valid; only then the members below are set */
    struct file_identity identity;
    struct archive archive; /* if it was requested, and torch.save() wrote a zip archive */
};

/* How a file was found. */
enum container_use {
    CONTAINER_SHARD, /* of a checkpoint, whose problems the catalog reports */
    CONTAINER_ABSENT, /* the same, but none of its files is a checkpoint */
    CONTAINER_SIDE_FILE,
    CONTAINER_NAMED, /* on the command line */
};

/* Returns whether the name has a suffix of PyTorch or GGUF files: .bin, .pt, .pth, .ckpt, .gguf. */
bool container_has_suffix(const char *name);

/*
 * Checks the header of a file and adds problems to `findings`. -ENOMEM. A file without tensors,
 * such as training_args.bin, is a finding only if the command line names it, or if loaders look for
 * its name and torch.save() did not write it. Imports of its pickle that torch.load() rejects are
 * always a finding. With `wants_archive`, the caller frees the archive of the result
 * (archive_free()).
 */
errint_t container_check(struct findings *findings, const char *path, enum container_use use,
                         bool wants_archive, struct container_result *result);

#endif
