/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoint rules: which files of a directory belong together.
 *
 * Where ".safetensors" stands here, ".sft" may stand, too, in any letter case: files that differ
 * in this suffix belong to different checkpoints, unless an index names them.
 *
 * A checkpoint is (1) the shards that an index names, else (2) the files
 * STEM-NNNNN-of-MMMMM.safetensors of one M, else (3) one STEM.safetensors. These
 * are functions of names and of indexes already read; they touch no storage.
 */
#ifndef FSTFS_CATALOG_GROUP_H
#define FSTFS_CATALOG_GROUP_H

#include "catalog/catalog.h"
#include "format/index.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Whether `file` is named as an index is, and of which stem, in the spellings
 * that transformers and diffusers read:
 *   STEM.safetensors.index.json
 *   STEM.safetensors.index.VARIANT.json, STEM.safetensors.VARIANT.index.json
 * (the stem of the latter two is STEM.VARIANT). `stem` may be NULL.
 */
bool group_index_name(const char *file, char stem[256]);

/* The order of groups: by stem, in which those with the usual suffix come first, then by suffix. */
int group_compare_names(const struct group *x, const struct group *y);

/*
 * The name an index of `stem` has: the first spelling, or the second where
 * the stem is one the Hugging Face libraries know with a variant behind it
 * (model.fp16 -> model.safetensors.index.fp16.json).
 */
void group_name_index(const char *stem, const char *suffix, char file[300]);

/*
 * Whether `file` is STEM-NNNNN-of-MMMMM.safetensors, or the older diffusers
 * spelling STEM-NNNNN-of-MMMMM.VARIANT.safetensors (stem STEM.VARIANT): N from 1
 * to M, at least five digits each.
 */
bool group_numbered_name(const char *file, char stem[256], uint32_t *number, uint32_t *of);

/* Whether `file` is STEM.safetensors with a stem that is not empty. */
bool group_single_name(const char *file, char stem[256]);

/* An index file of the directory and what was read of it. */
struct group_index {
    const char *file;
    struct st_index *index; /* NULL: refused */
};

struct grouping {
    struct group *groups; /* sorted by stem, kind, first member; malloc'ed */
    size_t group_count;
    const char **members; /* what the groups point into; malloc'ed */
    char *stems; /* likewise */
    const char **files; /* what is in no group and no index; malloc'ed */
    size_t file_count;
};

/*
 * Groups `count` file names (sorted by strcmp, each once). Strings are borrowed
 * from `files`. What is missing or ambiguous is said in `problems`, of
 * `directory`. -ENOMEM leaves nothing behind.
 */
errint_t group_files(const char *const *files, size_t count, const struct group_index *indexes,
                     size_t index_count, const char *directory, struct problem_set *problems,
                     struct grouping *grouping);

void grouping_free(struct grouping *grouping);

#endif
