/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what PyTorch and loaders reject although the format allows it. */
#ifndef FSTFS_CHECK_RULES_H
#define FSTFS_CHECK_RULES_H

#include "catalog/catalog.h"
#include "findings.h"
#include "format/safetensors.h"

/* Checks the alignment of tensors and the format in the metadata of the file `path`; of a GGUF
 * file, whether keys and names are UTF-8. */
void rules_check_table(struct findings *findings, const char *path, const struct st_table *table);

/* Checks metadata.total_size of the index file `index`, which must have it. */
void rules_check_total_size(struct findings *findings, const struct checkpoint *checkpoint,
                            const char *index, uint32_t missing_shards);

/* Adds a problem to the checkpoint if the header of its merged file would be too long. -ENOMEM. */
errint_t rules_check_merged_header(const struct checkpoint *checkpoint);

#endif
