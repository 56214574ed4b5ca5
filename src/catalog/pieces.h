/* SPDX-License-Identifier: Apache-2.0 */
/* What the prefetcher may know of a shard: where its tensors lie, and which
 * comes after which by name. */
#ifndef FSTFS_CATALOG_PIECES_H
#define FSTFS_CATALOG_PIECES_H

#include "base/extent.h"
#include "catalog/header_budget.h"
#include "format/safetensors.h"

/* NULL where there are no tensors with data, or no memory: reads are right without it, only
 * slower. The last layout_unref() gives its bytes (layout->charge) back to the budget; the
 * caller has charged them. */
struct layout *pieces_of_table(const struct st_table *table, struct header_budget *budget);

#endif
