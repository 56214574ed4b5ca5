/* SPDX-License-Identifier: Apache-2.0 */
/* The model that is measured: a checkpoint, or one safetensors file. */
#ifndef FSTFS_BENCH_MODEL_H
#define FSTFS_BENCH_MODEL_H

#include "base/error.h"
#include "readers.h"

#include <limits.h>

struct model_tensor {
    uint64_t offset, length;
    size_t file; /* index into files */
};

struct model {
    char *path; /* as given on the command line */
    char *directory; /* of its files; absolute, without symbolic links */
    char **files; /* paths of its shards, sorted by name */
    char **names; /* names of these files */
    uint64_t *sizes; /* bytes */
    size_t file_count;
    struct model_tensor *tensors; /* sorted by name */
    size_t tensor_count;
    uint64_t bytes; /* of all files */
    bool is_directory; /* the path is its directory */
    bool whole; /* the only checkpoint of its directory, all of it */
    char *shown; /* if mounts show other files instead of its own: their stem or name; or NULL */
};

/*
 * Finds the model that a path means (see find_checkpoint() in common/find.h) and reads its headers.
 * Call model_close() in any case.
 */
errint_t model_open(const char *path, struct model *model, struct reason *reason);
void model_close(struct model *model);

/* The name in the model's directory that libfstfs opens as this model: a file, an index or ".".
 * False: there is none, because other checkpoints are in the directory. */
bool model_entry(const struct model *model, char entry[PATH_MAX]);

enum order { ORDER_FILES, ORDER_NAMES };

/* Adds everything of the model to an empty plan, with its files in `directory`: whole files, or
 * tensors sorted by name. -ENOMEM. */
errint_t model_plan(const struct model *model, const char *directory, enum order order,
                    struct plan *plan);

#endif
