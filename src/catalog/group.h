/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoint rules: which files of a directory belong together. Pure functions of names and
 * parsed indexes.
 *
 * A checkpoint is (1) the shards that an index names, else (2) the files
 * STEM-NNNNN-of-MMMMM.safetensors with the same M, else (3) one STEM.safetensors. The suffix may be
 * any of those in format/container.h, in any letter case. Files with different suffixes belong to
 * different checkpoints unless an index names them. If a stem, as shown, exists both as safetensors
 * and in a container that is converted to safetensors, the latter's files are side files.
 */
#ifndef FSTFS_CATALOG_GROUP_H
#define FSTFS_CATALOG_GROUP_H

#include "catalog/catalog.h"
#include "format/index.h"

#include <stddef.h>
#include <stdint.h>

/*
 * Whether `file` is the name of an index in one of the forms that transformers and diffusers read;
 * writes the stem to `stem`, which may be NULL:
 *   STEM.safetensors.index.json
 *   STEM.safetensors.index.VARIANT.json, STEM.safetensors.VARIANT.index.json
 * (the stem of the last two is STEM.VARIANT). Stems are as shown, here and below.
 */
bool group_index_name(const char *file, char stem[256]);

/* The container of the files that an index with this name lists; NULL: it is not the name of an
 * index. */
const struct container *group_index_container(const char *file);

/* The container of a shard, by its suffix; safetensors if it has none, which an index allows. */
const struct container *group_file_container(const char *file);

/* The order of groups: by stem, then by container, then by suffix, of which ".safetensors" is the
 * first. */
int group_compare_names(const struct group *x, const struct group *y);

/* The file that messages about the group name: its index, or else its first member. NULL: it has
 * neither. */
static inline const char *
group_file(const struct group *group)
{
    return group->index ? group->index : group->member_count ? group->members[0] : NULL;
}

/*
 * The name of an index for `stem`: in the first form, or in the second if the stem is a standard
 * one of the Hugging Face libraries with a variant (model.fp16 ->
 * model.safetensors.index.fp16.json).
 */
void group_name_index(const char *stem, const char *suffix, char file[300]);

/*
 * Whether `file` is STEM-NNNNN-of-MMMMM.safetensors, or STEM-NNNNN-of-MMMMM.VARIANT.safetensors as
 * older diffusers write it (the stem is STEM.VARIANT): N from 1 to M, at least five digits each.
 */
bool group_numbered_name(const char *file, char stem[256], uint32_t *number, uint32_t *of);

/* Whether `file` has the form of a numbered name, but its numbers are out of range. */
bool group_misnumbered_name(const char *file, uint32_t *number, uint32_t *of);

/* Whether `file` is STEM.safetensors, or has the suffix of another container. */
bool group_single_name(const char *file, char stem[256]);

/* An index file of the directory. */
struct group_index {
    const char *file;
    struct st_index *index; /* NULL: refused, or `error` */
    errint_t error; /* why it could not be read: the files that it names are not known */
    /* State of listing.c, which group_files() ignores: */
    struct file_identity identity;
    bool is_remote; /* checked as a remote name */
};

struct grouping {
    struct group *groups; /* malloc'ed; sorted by group_compare_names(), then precedence */
    size_t group_count;
    const char **members; /* of the groups; malloc'ed */
    char *stems; /* likewise */
    const char **files; /* neither shards nor indexes; malloc'ed */
    size_t file_count;
};

/*
 * Groups `count` different file names, sorted by strcmp(3). Strings are borrowed from `files`.
 * Missing and ambiguous files are added to `problems`. On -ENOMEM *grouping is empty.
 */
errint_t group_files(const char *const *files, size_t count, const struct group_index *indexes,
                     size_t index_count, struct problem_set *problems, struct grouping *grouping);

/* Adds the problem of a file for which group_misnumbered_name() is true. group_files() does so,
 * except for converted containers: only the content shows whether the file is a checkpoint. */
void group_report_misnumbered(struct problem_set *problems, const char *file, uint32_t number,
                              uint32_t of);

void grouping_free(struct grouping *grouping);

#endif
