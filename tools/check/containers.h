/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the headers of torch.save() and GGUF files, and the imports of pickles. Nothing of a file
 * is executed.
 */
#ifndef FSTFS_CHECK_CONTAINERS_H
#define FSTFS_CHECK_CONTAINERS_H

#include "base/error.h"
#include "findings.h"

#include <stdint.h>

struct container_totals {
    uint64_t files, tensors, bytes;
};

/* Returns whether the name ends like those of PyTorch and GGUF files: .bin, .pt, .pth, .ckpt,
 * .gguf. */
bool container_has_name(const char *name);

/*
 * Checks a file, adds problems to `findings`, and adds it to `totals`. -ENOMEM. A file without
 * tensors, such as training_args.bin, is a finding only if it `is_named` on the command line;
 * imports of its pickle always are.
 */
errint_t container_check(struct findings *findings, const char *path, bool is_named,
                         struct container_totals *totals);

#endif
