/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the tensors in files written by torch.save(): zip archives (PyTorch 1.6 and later) and the
 * older format, a sequence of pickles followed by the storages. No state. Starts threads to read
 * the headers of many storages in parallel. Nothing in the file is executed (see pickle.h).
 *
 * Formats: torch/serialization.py (`_save`, `_legacy_save`) and torch/_utils.py (`_rebuild_*`).
 * Tensors are found in nested dictionaries, lists and tuples. The name of a tensor is its keys,
 * which are strings or integers, and positions, joined with dots. If one entry of the
 * outermost dictionary is a dictionary that contains all tensors ("state_dict", "model", ...),
 * names omit its key; of a checkpoint of PyTorch Lightning, only the tensors of "state_dict" are
 * found. Tensors and storages that are elsewhere, such as in an object, are refused. If the file is
 * a single tensor, its name is TORCH_SINGLE_NAME.
 */
#ifndef FSTFS_FORMAT_TORCH_H
#define FSTFS_FORMAT_TORCH_H

#include "base/buffer.h"
#include "format/st_table.h"

#include <stdbool.h>

#define TORCH_SINGLE_NAME "tensor"

enum { TORCH_REFUSED_NAMED = 3 }; /* how many refused tensors are described in the table */

/* The result of torch_read(). */
struct torch_file {
    struct st_table *table; /* data_start is 0: `begin` and `end` are offsets in the file. Tensors
                             * may overlap (tied weights). The metadata is {"format": "pt"} */
    bool imports_incomplete; /* `imports` may lack some; valid on errors, too */
    bool is_zip; /* a zip archive; otherwise the older format */
    struct reason version; /* why torch.load() refuses the version of the archive; rule NULL: it
                            * does not */
};

/*
 * Reads the open file `fd` of `file_size` bytes. See st_table.h for `admit`.
 * `imports`, unless NULL, receives lines "MODULE.NAME", sorted as torch_imports.h describes: the
 * globals that pickle.load() would import, except those that torch.load(weights_only=True) allows.
 * It is filled on errors, too; check buffer_failed() afterwards. Without it, the version of the
 * archive is not checked.
 *
 * Errors, with a reason:
 * -ENOMSG: not a checkpoint, though it may be a valid file of another kind: not written by
 * torch.save(), a TorchScript archive, or without tensors in dictionaries, lists and tuples.
 * -EBADMSG: seems to be written by torch.save(), but is malformed or not supported.
 * -ENOMEM, -ESTALE (the file changed) and errors of pread(2).
 */
errint_t torch_read(int fd, uint64_t file_size, st_admit *admit, void *arg, struct buffer *imports,
                    struct torch_file *file, struct reason *reason);
void torch_file_free(struct torch_file *file); /* all zero is allowed */

#endif
