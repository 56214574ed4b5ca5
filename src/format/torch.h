/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the tensors in files written by torch.save(): zip archives (PyTorch 1.6 and later) and the
 * older stream of pickles that is followed by the storages. No threads, no state; nothing of the
 * file is executed (see pickle.h).
 *
 * Formats: torch/serialization.py (`_save`, `_legacy_save`) and torch/_utils.py (`_rebuild_*`). The
 * tensors are those in nested dictionaries, whose keys, strings and whole numbers, are joined with
 * dots. If exactly one entry of the outermost dictionary is a dictionary with all the tensors
 * ("state_dict", "model", ...), its key is left out. A file that is one tensor has the name
 * TORCH_SINGLE_NAME.
 */
#ifndef FSTFS_FORMAT_TORCH_H
#define FSTFS_FORMAT_TORCH_H

#include "base/buffer.h"
#include "format/st_table.h"

#include <stdbool.h>

#define TORCH_SINGLE_NAME "tensor"

/* What torch_read() found. */
struct torch_file {
    struct st_table *table; /* data_start is 0: tensors are at their offsets in the file. They may
                             * overlap (tied weights). Its metadata is {"format": "pt"} */
    uint32_t refused_count; /* tensors that the table lacks */
    char refused[512]; /* the first of them, and why; one line */
};

/*
 * Reads the open file `fd` of `file_size` bytes. `admit` is called before `bytes` more of memory
 * are used, see torch_source.h; an error of it, with its reason, ends the read. `imports`, unless
 * NULL, gets sorted lines "MODULE.NAME": globals that pickle.load() of the file would import, other
 * than those that torch.load(weights_only=True) allows; it is filled even if there are no tensors.
 *
 * -ENOMSG with a reason: it is no checkpoint, but may well be a sound file of another kind: not
 * written by torch.save(), a TorchScript archive, without tensors.
 * -EBADMSG with a reason: it was written by torch.save(), or claims so, and cannot be read.
 * -ENOMEM, -ESTALE and errors of pread(2), with a reason.
 */
errint_t torch_read(int fd, uint64_t file_size,
                    errint_t (*admit)(void *arg, uint64_t bytes, struct reason *reason), void *arg,
                    struct buffer *imports, struct torch_file *file, struct reason *reason);
void torch_file_free(struct torch_file *file); /* all zero is allowed */

#endif
