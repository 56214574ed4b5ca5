/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python loaders: loaders.py, piped to the python3 in PATH.
 */
#ifndef FSTFS_BENCH_LOADERS_H
#define FSTFS_BENCH_LOADERS_H

#include "model.h"
#include "readers.h"

enum { LOADERS_MOST = 8 };

struct loader {
    char name[32];
    char title[48]; /* and what it loads into, where that is not torch's */
    char package[64]; /* and its version */
    char missing[200]; /* why it cannot be had; "" when it can */
};

/* Asks which loaders there are. -ENOENT where there is no python3. */
errint_t loaders_list(struct loader loaders[LOADERS_MOST], unsigned *count,
                      const struct watch *watch, struct reason *reason);

/*
 * Loads a model once in a process of its own, from `directory` (NULL: where it
 * lies). Errors as child_wait(). `*has_sum`: whether result->sum is that of the
 * model's tensors as readers sum them up.
 */
errint_t loader_run(const char *name, const struct model *model, const char *directory,
                    const struct watch *watch, struct reader_result *result, bool *has_sum,
                    struct reason *reason);

#endif
