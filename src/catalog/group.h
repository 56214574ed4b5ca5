/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoint rules: which files of a directory belong together. The functions depend only on
 * names and parsed indexes, and do not access the source.
 *
 * Files of one stem form checkpoints, in this order of precedence:
 *   (1) the shards that an index names, if one of them exists;
 *   (2) a complete set STEM-NNNNN-of-MMMMM.safetensors with the same M;
 *   (3) one STEM.safetensors;
 *   (4) an incomplete set.
 * The suffix may be any of those in format/container.h, in any letter case. Files with different
 * suffixes belong to different checkpoints unless an index names them. If a stem, as shown, exists
 * both as safetensors and in a container that is converted to safetensors, the latter's files
 * belong to no checkpoint, and are returned in grouping.files.
 *
 * A loader given a directory takes all files with one suffix (vLLM, SGLang), or those with certain
 * names (transformers). Neither may find other weights in the mount than in the source. So files
 * are converted only if they are one checkpoint, and the directory has no other file, and no link,
 * that is named like one, nor a safetensors index. Otherwise they are unchanged
 * (group->is_unchanged). So is a set of safetensors shards without an index that transformers
 * reads, beside PyTorch files of its stem: transformers prefers those to the set, but not to a
 * merged file.
 */
#ifndef FSTFS_CATALOG_GROUP_H
#define FSTFS_CATALOG_GROUP_H

#include "catalog/catalog.h"
#include "catalog/group_names.h"
#include "format/index.h"

#include <stddef.h>
#include <stdint.h>

/* The order of groups: by stem, then by container, then by suffix, of which ".safetensors" is the
 * first. */
int group_compare_names(const struct group *x, const struct group *y);

/* The index in `groups`, sorted as above, of the first with this stem or a greater one. */
size_t group_first_of_stem(const struct group *groups, size_t count, const char *stem);

/* The file that messages about the group name: its index, or else its first member. NULL: it has
 * neither. */
static inline const char *
group_file(const struct group *group)
{
    return group->index ? group->index : group->member_count ? group->members[0] : NULL;
}

/* An index file of the directory. */
struct group_index {
    const char *file; /* if not among the files: a link that leads to no file or is not followed */
    struct st_index *index; /* NULL: not read, not valid, or removed since the directory was read */
    /* 0: none. -EBADMSG: the index was read, but is not valid or names no files. Any other error:
     * it could not be read, so the files that it names are not known. */
    errint_t error;
    /* State of listing.c, which group_files() ignores: */
    struct file_identity identity;
    bool is_checked_as_link; /* a remote name, or not among the files: not checked by stat(2) */
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
 * Groups `count` distinct file names, sorted by strcmp(3). File names are borrowed from `files` and
 * `indexes`. Adds a problem for each missing or ambiguous file, except of converted containers,
 * where only the content shows whether the files are a checkpoint. On -ENOMEM *grouping is empty.
 *
 * `is_unknown[i]`: it is not known whether files[i] exists and is a regular file. NULL: all are
 * known. Unknown files count as missing members, but give their group the precedence that it would
 * have if they existed. A group with no other member and no index is left out.
 *
 * `converts`: whether files may be converted, as far as names that are not in `files` decide.
 */
errint_t group_files(const char *const *files, size_t count, const bool *is_unknown,
                     const struct group_index *indexes, size_t index_count, bool converts,
                     struct problem_set *problems, struct grouping *grouping);

/* Adds the problem of a file for which group_misnumbered_name() is true. group_files() does so,
 * except for converted containers: only the content shows whether the file is a checkpoint. */
void group_report_misnumbered(struct problem_set *problems, const char *file, uint32_t number,
                              uint32_t of);

void grouping_free(struct grouping *grouping);

#endif
