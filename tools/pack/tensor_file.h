/* SPDX-License-Identifier: Apache-2.0 */
/* Files that contain one tensor: .npy files, and the files that a mount has in tensors/ and npy/,
 * whose xattrs have dtype and shape. */
#ifndef FSTFS_PACK_TENSOR_FILE_H
#define FSTFS_PACK_TENSOR_FILE_H

#include "format/safetensors.h"

#include <stdbool.h>

/*
 * Creates a table of the one tensor in an open file called `name` of `size` bytes; free it with
 * st_table_free(). -ENODATA: the file is neither. -EBADMSG: it cannot be packed, and `reason` is
 * set. Other errors are those of reading it.
 */
errint_t tensor_file_read(int fd, const char *name, uint64_t size, struct st_table **table,
                          struct reason *reason);

#endif
