/* SPDX-License-Identifier: Apache-2.0 */
/* What pickle.load() would import for a file of torch.save(), as security scanners list it. */
#ifndef FSTFS_FORMAT_TORCH_IMPORTS_H
#define FSTFS_FORMAT_TORCH_IMPORTS_H

#include "base/buffer.h"
#include "format/pickle.h"

#include <stdbool.h>
#include <stddef.h>

enum { TORCH_IMPORTS_MAX = 1000 }; /* most imports that are listed */

/* The imports of all pickles of a file. All zero is an empty list. */
struct torch_imports {
    struct torch_import *list; /* sorted, each once; malloc'ed */
    size_t count;
    bool is_incomplete; /* there are more, or a pickle could not be read to its end */
};

/* Adds the globals of a pickle that torch.load(weights_only=True) does not allow. -ENOMEM with a
 * reason. */
errint_t torch_imports_add(struct torch_imports *imports, const struct pickle *pickle,
                           struct reason *reason);

/* Appends lines "MODULE.NAME": those of modules that run programs, evaluate code or access files
 * and networks come first; both parts are sorted. */
void torch_imports_write(const struct torch_imports *imports, struct buffer *out);
void torch_imports_free(struct torch_imports *imports);

#endif
