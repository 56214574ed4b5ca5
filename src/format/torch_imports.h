/* SPDX-License-Identifier: Apache-2.0 */
/* What pickle.load() would import for a file of torch.save(), as security scanners list it. */
#ifndef FSTFS_FORMAT_TORCH_IMPORTS_H
#define FSTFS_FORMAT_TORCH_IMPORTS_H

#include "base/buffer.h"
#include "format/pickle.h"

/* Appends lines "MODULE.NAME", sorted and each once: the globals of the pickle that
 * torch.load(weights_only=True) does not allow. -ENOMEM with a reason. */
errint_t torch_list_imports(const struct pickle *pickle, struct buffer *imports,
                            struct reason *reason);

#endif
