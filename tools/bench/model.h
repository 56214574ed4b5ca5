/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is measured: a checkpoint, or one safetensors file.
 */
#ifndef FSTFS_BENCH_MODEL_H
#define FSTFS_BENCH_MODEL_H

#include "base/error.h"
#include "plan.h"

#include <limits.h>
#include <stdbool.h>

struct model_tensor {
    uint64_t offset, length;
    size_t file; /* index into files */
};

struct model {
    char *path; /* as it was given */
    char *directory; /* real and absolute: where its files lie */
    char **files; /* paths of its shards, in the order of their names */
    char **names; /* their names */
    uint64_t *sizes;
    size_t file_count;
    struct model_tensor *tensors; /* in the order of their names */
    size_t tensor_count;
    uint64_t bytes; /* of all files */
    bool is_directory; /* the path is its directory, not a name in it */
    bool whole; /* all of a checkpoint, and no other checkpoint beside it */
};

/*
 * Finds out what a path means and reads the headers. It may be
 *   a directory with one checkpoint in it
 *   DIRECTORY/STEM, where a directory has several
 *   the index file of a checkpoint
 *   a safetensors file, which is then all that is read
 * On an error the reason says what was looked for and found. To be freed with
 * model_close() in any case.
 */
errint_t model_open(const char *path, struct model *model, struct reason *reason);
void model_close(struct model *model);

/* What in its directory libfstfs opens as this model: "." for the directory itself, a
 * file or an index. False: there is no such, but other checkpoints beside its shards. */
bool model_entry(const struct model *model, char entry[PATH_MAX]);

enum order { ORDER_FILES, ORDER_NAMES };

/* What to read for all of the model, its files being in `directory` (NULL: where
 * they are): the files from end to end, or tensor by tensor in name order. The plan
 * is empty before. -ENOMEM, -ENAMETOOLONG. */
errint_t model_plan(const struct model *model, const char *directory, enum order order,
                    struct plan *plan);

#endif
