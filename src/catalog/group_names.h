/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of shards and indexes, by the conventions of transformers and diffusers. Stems are as
 * shown: "model" of pytorch_model.bin.
 */
#ifndef FSTFS_CATALOG_GROUP_NAMES_H
#define FSTFS_CATALOG_GROUP_NAMES_H

#include "format/container.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The suffix of a container in a file name, or in the name of an index. */
struct suffix {
    const struct container *container; /* NULL: the name has no suffix of a container */
    const char *text; /* in the name; not NUL-terminated if the name is that of an index */
    size_t length;
};

struct suffix group_file_suffix(const char *file);

/* The length of the part of a stem that is not shown: "pytorch_" of pytorch_model. */
size_t group_hidden_stem_length(const struct container *container, const char *stem, size_t length);

/*
 * Whether `file` is the name of an index in one of the forms that transformers and diffusers read;
 * writes the stem to `stem`, which may be NULL:
 *   STEM.safetensors.index.json
 *   STEM.safetensors.index.VARIANT.json, STEM.safetensors.VARIANT.index.json
 * (the stem of the last two is STEM.VARIANT).
 */
bool group_index_name(const char *file, char stem[256]);

/* The container of the files that an index with this name lists; NULL: it is not the name of an
 * index. */
const struct container *group_index_container(const char *file);

/* The container of a shard, by its suffix; safetensors if it has none, which an index allows. */
const struct container *group_file_container(const char *file);

/* As group_index_name(); also sets the suffix. */
bool group_split_index_name(const char *file, char stem[256], struct suffix *suffix);

/*
 * Writes to `file` the name of an index for `stem`: STEM.safetensors.index.json, or, if the stem is
 * a standard one of the Hugging Face libraries with a variant, such as model.fp16,
 * model.safetensors.index.fp16.json.
 */
void group_name_index(const char *stem, const char *suffix, char file[300]);

/*
 * Whether `file` is STEM-NNNNN-of-MMMMM.safetensors, or STEM-NNNNN-of-MMMMM.VARIANT.safetensors as
 * older diffusers write it (the stem is STEM.VARIANT): N from 1 to M, five to nine digits
 * each.
 */
bool group_numbered_name(const char *file, char stem[256], uint32_t *number, uint32_t *of);

/* Whether `file` has the form of a numbered name, but its numbers are out of range. */
bool group_misnumbered_name(const char *file, uint32_t *number, uint32_t *of);

/* Whether `file` is STEM.safetensors, or has the suffix of another container. */
bool group_single_name(const char *file, char stem[256]);

/* Whether `file` has a numbered name, or else a single one; sets its stem and suffix. */
bool group_split_file_name(const char *file, char stem[256], struct suffix *suffix);

/* Whether a file of this name must keep it: training state (of an optimizer, a scheduler, a random
 * number generator), as transformers and accelerate name it, or weights in the format of Llama and
 * Mistral. Loaders would take the converted file for weights in their own format. */
bool group_is_name_of_other_format(const char *file);

/* Whether loaders look for PyTorch weights under this name, such as pytorch_model.bin or
 * consolidated.00.pth. */
bool group_is_name_of_weights(const char *file);

#endif
