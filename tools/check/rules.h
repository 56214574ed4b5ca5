/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that valid files can break: what PyTorch and loaders reject. */
#ifndef FSTFS_CHECK_RULES_H
#define FSTFS_CHECK_RULES_H

#include "catalog/catalog.h"
#include "findings.h"
#include "format/safetensors.h"

/* Checks the alignment of tensors and the format in the metadata of the file `path`. */
void rules_check_table(struct findings *findings, const char *path, const struct st_table *table);

/* Checks metadata.total_size, which must be there, of the index file `index`. */
void rules_check_total_size(struct findings *findings, const struct checkpoint *checkpoint,
                            const char *index, uint32_t missing_shards);

/* Checks that the header of the merged file would not be too long; otherwise adds a problem to the
 * checkpoint. -ENOMEM. */
errint_t rules_check_merged_header(const struct checkpoint *checkpoint);

#endif
