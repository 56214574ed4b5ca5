/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are one tensor: .npy, and the tensor files of a mount, whose extended
 * attributes say what they are.
 */
#ifndef FSTFS_PACK_TENSOR_FILE_H
#define FSTFS_PACK_TENSOR_FILE_H

#include "format/safetensors.h"

#include <stdbool.h>

/*
 * A table with the one tensor of the open file, which is called `name` and has
 * `size` bytes; freed with st_table_free(). -ENODATA: the file is neither; -EBADMSG
 * and the reason: it is one that cannot be packed. Also -errno of reading it.
 */
errint_t tensor_file_read(int fd, const char *name, uint64_t size, struct st_table **table,
                          struct reason *reason);

#endif
