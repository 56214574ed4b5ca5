/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks files of torch.save() and GGUF files: their headers, and what loading a pickle would
 * import. Nothing of a file is executed.
 */
#ifndef FSTFS_CHECK_CONTAINERS_H
#define FSTFS_CHECK_CONTAINERS_H

#include "tree.h"

/* Whether the name ends as those of PyTorch's and GGUF files do: .bin, .pt, .pth, .ckpt, .gguf. */
bool container_has_name(const char *name);

/*
 * Checks the file. What is wrong with it is in tree->findings; -ENOMEM. A file that holds no
 * tensors, such as training_args.bin, is a finding if it `is_named` on the command line; what its
 * pickle would import always is.
 */
errint_t container_check(struct tree *tree, const char *path, bool is_named);

#endif
