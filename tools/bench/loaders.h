/* SPDX-License-Identifier: Apache-2.0 */
/* The Python loaders: loaders.py, run by the python3 in PATH. */
#ifndef FSTFS_BENCH_LOADERS_H
#define FSTFS_BENCH_LOADERS_H

#include "methods.h"

/* Appends the loaders to the methods; `missing` says why one is unavailable. -EINTR after a
 * signal; other errors if python3 does not run. */
errint_t loaders_list(struct method methods[METHODS_MOST], unsigned *count, struct reason *reason);

/*
 * Loads a model once, with its files in `directory`. Errors as in children_run().
 * `*has_sum`: whether result->sum is the readers' checksum of the model's tensors.
 */
errint_t loader_run(const char *name, const struct model *model, const char *directory,
                    struct progress *progress, struct reader_result *result, bool *has_sum,
                    struct reason *reason);

#endif
