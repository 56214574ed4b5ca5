/* SPDX-License-Identifier: Apache-2.0 */
#include "inputs.h"

#include "base/array.h"
#include "base/file.h"
#include "base/text.h"
#include "client/mount.h"
#include "common/glob.h"
#include "format/gguf.h"
#include "tensor_file.h"
#include "view/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Prefixes the reason with a path. */
static errint_t
reason_add_path(const char *path, errint_t error, struct reason *reason)
{
    char name[QUOTED_SIZE], text[sizeof(reason->text)];

    strcpy(text, reason->text);
    return reason_set(reason, error, reason->rule, "%s: %s", quoted(name, path, strlen(path)),
                      text);
}

/* ---- shards ---- */

static bool
add_shard(struct inputs *inputs, struct shard *shard)
{
    return array_add(inputs->checkpoint.shards, inputs->checkpoint.shard_count, shard);
}

/* Creates and adds a shard. Takes ownership of `table` and of a reference to `backing`, even on an
 * error. */
static errint_t
add_own_shard(struct inputs *inputs, const char *name, struct backing *backing,
              struct st_table *table, struct reason *reason)
{
    struct shard *shard = calloc(1, sizeof(*shard) + strlen(name) + 1);

    if (!shard || !array_add(inputs->own, inputs->own_count, shard)) {
        free(shard);
        st_table_free(table);
        backing_unref(backing);
        return reason_no_memory(reason);
    }
    shard->name = strcpy((char *)(shard + 1), name);
    shard->backing = backing;
    shard->table = table;
    return add_shard(inputs, shard) ? 0 : reason_no_memory(reason);
}

/* ---- --pick and --drop ---- */

/* The last pattern that matches decides. If none matches, the first pattern does: after --pick the
 * tensor is excluded, after --drop it is included. */
static errint_t
patterns_include(const struct pack_options *options, const char *name, size_t length,
                 bool *included)
{
    errint_t error = 0;

    *included = options->patterns.count == 0 || options->patterns.all[0].drop;
    for (size_t i = 0; !error && i < options->patterns.count; i++) {
        bool matches = false;

        error = glob_match(options->patterns.all[i].glob, name, length, &matches);
        if (matches)
            *included = !options->patterns.all[i].drop;
    }
    return error;
}

/* Copies the table with the included tensors only; text and shapes are shared with `table`. */
static struct st_table *
filter_table(const struct pack_options *options, const struct st_table *table)
{
    struct st_table *filtered = malloc(sizeof(*filtered) + table->count * sizeof(struct st_tensor));
    struct st_tensor *tensors;

    if (!filtered)
        return NULL;
    tensors = (struct st_tensor *)(filtered + 1);
    *filtered = *table;
    filtered->tensors = tensors;
    filtered->count = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];
        bool included;

        if (patterns_include(options, table->text + tensor->name, tensor->name_length, &included)) {
            free(filtered);
            return NULL;
        }
        if (included)
            tensors[filtered->count++] = *tensor;
    }
    return filtered;
}

static errint_t
take_input_shard(const struct pack_options *options, struct inputs *inputs, struct shard *shard,
                 struct reason *reason)
{
    struct st_table *table;

    if (options->patterns.count == 0)
        return add_shard(inputs, shard) ? 0 : reason_no_memory(reason);
    table = filter_table(options, shard->table);
    if (!table)
        return reason_no_memory(reason);
    inputs->excluded += shard->table->count - table->count;
    /* A shard without tensors is used for its metadata, as it is without --pick and --drop. */
    if (table->count == 0 && shard->table->count > 0) {
        st_table_free(table);
        return 0;
    }
    return add_own_shard(inputs, shard->name, backing_ref(shard->backing), table, reason);
}

/* ---- checkpoints ---- */

/* Adds the index of a checkpoint to the sources, and its side files to those to be copied. */
static errint_t
take_other_files(const struct pack_options *options, struct inputs *inputs,
                 const struct found *found, const char *path, struct reason *reason)
{
    errint_t error = 0;

    if (found->one_file)
        return 0;
    if (found->group->index &&
        sources_add_in(&inputs->sources, found->directory, found->group->index))
        error = reason_no_memory(reason);
    if (!error && options_make_shards(options) && !options->tensors_only)
        error = side_add(&inputs->side, found, path, reason);
    return error;
}

/* Whether the input is one of several parts of a GGUF model. Its header was read, but the header of
 * another part may have been refused. */
static bool
input_is_gguf_part(const struct found *found)
{
    const struct checkpoint *checkpoint = found->checkpoint;

    for (uint32_t i = 0; found->one_file && i < checkpoint->shard_count; i++) {
        if (strcmp(checkpoint->shards[i]->name, found->name) == 0)
            return gguf_is_part(checkpoint->shards[i]->table->gguf);
    }
    return false;
}

/* Checks that the output can contain the tensors of this checkpoint, and sets its container. GGUF
 * models are only merged or copied, because safetensors cannot represent their key-values. */
static errint_t
set_container(const struct pack_options *options, struct inputs *inputs, const struct found *found,
              struct reason *reason)
{
    const struct checkpoint *checkpoint = found->checkpoint;
    bool is_gguf_file =
        !options_make_shards(options) &&
        container_of_name(options->output, strlen(options->output), NULL) == &container_gguf;

    if (checkpoint->container != &container_gguf)
        return is_gguf_file ? reason_set(reason, -EINVAL, "Gguf",
                                         "only a GGUF model can be written to a file named *.gguf")
                            : 0;
    if (options->input_count > 1 || options->patterns.count || options_make_shards(options))
        return reason_set(reason, -EINVAL, "Gguf",
                          "a GGUF model is written as one file, alone and whole: without --shards, "
                          "--max-shard-size, --pick, --drop or other INPUTs");
    if (!is_gguf_file)
        return reason_set(reason, -EINVAL, "Gguf",
                          "a GGUF model is written to a file named *.gguf");
    if (input_is_gguf_part(found))
        return reason_set(reason, -EINVAL, "Gguf",
                          "one of several parts of a model; name the model: DIRECTORY/%.200s",
                          checkpoint->stem);
    inputs->checkpoint.container = &container_gguf;
    return 0;
}

static errint_t
take_input_checkpoint(const struct pack_options *options, struct inputs *inputs,
                      struct found *found, const char *path, struct reason *reason)
{
    const struct checkpoint *checkpoint;
    errint_t error = find_read_headers(found, reason);

    if (!error)
        error = set_container(options, inputs, found, reason);
    if (error)
        return error;
    checkpoint = found->checkpoint;
    for (uint32_t i = 0; !error && i < checkpoint->shard_count; i++) {
        struct shard *shard = checkpoint->shards[i];

        if (found->one_file && strcmp(shard->name, found->name) != 0)
            continue;
        error = sources_add_in(&inputs->sources, found->directory, shard->name)
                    ? reason_no_memory(reason)
                    : take_input_shard(options, inputs, shard, reason);
    }
    if (!error)
        error = take_other_files(options, inputs, found, path, reason);
    if (!error && options->input_count == 1 && options->patterns.count == 0 && !found->one_file) {
        inputs->checkpoint.index_metadata = checkpoint->index_metadata;
        inputs->checkpoint.index_metadata_length = checkpoint->index_metadata_length;
        inputs->checkpoint.index_identity = checkpoint->index_identity;
    }
    if (!error && !found->one_file && !inputs->stem[0])
        snprintf(inputs->stem, sizeof(inputs->stem), "%s", checkpoint->stem);
    return error;
}

/* ---- tensor files ---- */

static errint_t
take_tensor_table(const struct pack_options *options, struct inputs *inputs, const char *name,
                  struct backing *backing, struct st_table *table, struct reason *reason)
{
    const struct st_tensor *tensor = &table->tensors[0];
    bool included;
    errint_t error =
        patterns_include(options, table->text + tensor->name, tensor->name_length, &included);

    if (!error && included)
        return add_own_shard(inputs, name, backing, table, reason);
    inputs->excluded++;
    st_table_free(table);
    backing_unref(backing);
    return error ? reason_no_memory(reason) : 0;
}

/* -ENODATA: the file is not a tensor file. */
static errint_t
take_tensor_file(const struct pack_options *options, struct inputs *inputs, const char *path,
                 struct reason *reason)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    const char *name = basename(path);
    struct file_identity identity;
    struct backing *backing;
    struct st_table *table;
    char *real;
    errint_t error;

    if (fd < 0)
        return reason_errno(reason, -errno, NULL);
    error = file_identity_from_fd(&identity, fd);
    if (error)
        reason_errno(reason, error, NULL);
    else if (!S_ISREG(identity.mode))
        error = -ENODATA;
    else
        error = tensor_file_read(fd, name, identity.size, &table, reason);
    close(fd);
    if (error)
        return error;
    if (sources_add(&inputs->sources, path)) {
        st_table_free(table);
        return reason_no_memory(reason);
    }
    real = realpath(path, NULL);
    backing = real ? backing_new(AT_FDCWD, real, &identity) : NULL;
    free(real);
    if (!backing) {
        /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): table is set if error is 0 */
        st_table_free(table);
        return reason_no_memory(reason);
    }
    return take_tensor_table(options, inputs, name, backing, table, reason);
}

/* Adds all files of a directory that contains no checkpoint. */
static errint_t
take_tensor_files(const struct pack_options *options, struct inputs *inputs,
                  const struct found *found, struct reason *reason)
{
    const struct listing *listing = found->listing;
    errint_t error = find_check_lost(found, reason);

    if (error)
        return error;
    for (uint32_t i = 0; i < listing->file_count; i++) {
        char *path = path_join(found->directory, listing->files[i]);

        if (!path)
            return reason_no_memory(reason);
        error = take_tensor_file(options, inputs, path, reason);
        free(path);
        if (error == -ENODATA)
            reason_fill(
                reason, "None",
                "neither a .npy file nor a tensor file of a mount (the directory contains no "
                "checkpoint)");
        if (error)
            return reason_add_path(listing->files[i], error, reason);
    }
    return 0;
}

/* Refuses a directory of a mount that lacks tensors of its checkpoint. */
static errint_t
check_tensor_directory(const char *path, uint64_t count, struct reason *reason)
{
    struct mount_origin origin = {0};
    errint_t error;
    int fd;

    if (!mount_is_fstfs(path))
        return 0;
    fd = mount_open(path);
    if (fd < 0)
        return reason_errno(reason, fd, "cannot open it");
    error = mount_read_origin(fd, &origin);
    close(fd);
    if (error)
        return error == -ENODATA ? 0 : reason_errno(reason, error, "cannot read its xattrs");
    if (origin.unsound)
        error = reason_set(reason, -EBADMSG, "Incomplete", "%s", origin.unsound);
    else if (origin.tensors != count)
        error = reason_set(reason, -EBADMSG, "Incomplete",
                           "found %" PRIu64 " tensor files, expected %" PRIu64
                           "; use the checkpoint's directory in shards/",
                           count, origin.tensors);
    mount_origin_free(&origin);
    return error;
}

static errint_t
take_input(const struct pack_options *options, struct inputs *inputs, const char *path,
           struct reason *reason)
{
    /* The reason contains the relevant problems. */
    const struct catalog_options catalog_options = {.problems = {find_ignore_problem, NULL, 0}};
    struct found *found = &inputs->found[inputs->found_count];
    struct stat st;
    errint_t error;

    if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        error = take_tensor_file(options, inputs, path, reason);
        if (error != -ENODATA)
            return error;
    }
    error = find_checkpoint(path, &catalog_options, found, reason);
    inputs->found_count++;
    if (!error)
        return take_input_checkpoint(options, inputs, found, path, reason);
    if (error != -ENOENT || !found->is_directory || !found->listing ||
        found->listing->file_count == 0)
        return error;
    error = take_tensor_files(options, inputs, found, reason);
    return error ? error : check_tensor_directory(path, found->listing->file_count, reason);
}

/* ---- combining ---- */

static errint_t
refuse_duplicate(const struct inputs *inputs, const struct named_tensor *a,
                 const struct named_tensor *b, struct reason *reason)
{
    const char *first = inputs->checkpoint.shards[a->ref.shard]->name;
    const char *second = inputs->checkpoint.shards[b->ref.shard]->name;
    char name[QUOTED_SIZE], one[QUOTED_SIZE], two[QUOTED_SIZE];

    return reason_set(reason, -EEXIST, "DuplicateTensorName",
                      "tensor %.150s is in both %.120s and %.120s",
                      quoted(name, a->name, a->length), quoted(one, first, strlen(first)),
                      quoted(two, second, strlen(second)));
}

/* Sorts all tensors by name. */
static errint_t
sort_input_tensors(struct inputs *inputs, struct reason *reason)
{
    struct checkpoint *checkpoint = &inputs->checkpoint;
    struct tensor_ref *refs;
    struct named_tensor *all;
    size_t count = 0;
    errint_t error = 0;

    for (uint32_t s = 0; s < checkpoint->shard_count; s++)
        count += checkpoint->shards[s]->table->count;
    if (count > UINT32_MAX / 2)
        return reason_set(reason, -EOVERFLOW, "TooMany", "too many tensors");
    all = checkpoint_sort_tensors(checkpoint, count);
    refs = malloc((count + 1) * sizeof(*refs));
    checkpoint->tensors = refs;
    checkpoint->tensor_count = (uint32_t)count;
    if (!all || !refs) {
        free(all);
        return reason_no_memory(reason);
    }
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && !error &&
            text_compare(all[i - 1].name, all[i - 1].length, all[i].name, all[i].length) == 0)
            error = refuse_duplicate(inputs, &all[i - 1], &all[i], reason);
        refs[i] = all[i].ref;
    }
    free(all);
    return error;
}

static void
print_problem(void *arg, const char *directory, const char *name, const char *text)
{
    char shown[QUOTED_SIZE];

    (void)arg;
    (void)directory;
    complain("%s: %s", quoted(shown, name, strlen(name)), text);
}

errint_t
inputs_read(const struct pack_options *options, struct inputs *inputs, struct reason *reason)
{
    const struct problem_watch watch = {print_problem, NULL, 0};
    errint_t error = 0;

    *inputs = (struct inputs){.checkpoint = {.container = &container_safetensors,
                                             .directory = "",
                                             .stem = inputs->stem,
                                             .suffix = ST_SUFFIX}};
    inputs->found = calloc((size_t)options->input_count, sizeof(*inputs->found));
    inputs->problems = problems_new(&watch);
    if (!inputs->found || !inputs->problems)
        return reason_no_memory(reason);
    inputs->checkpoint.problems = problem_set_new(inputs->problems, "");
    for (int i = 0; !error && i < options->input_count; i++) {
        error = take_input(options, inputs, options->inputs[i], reason);
        if (error)
            return reason_add_path(options->inputs[i], error, reason);
    }
    if (options->stem || !inputs->stem[0] || options->input_count > 1)
        snprintf(inputs->stem, sizeof(inputs->stem), "%s", options->stem ? options->stem : "model");
    error = sort_input_tensors(inputs, reason);
    if (!error && inputs->checkpoint.tensor_count == 0 && options->patterns.count > 0)
        return reason_set(reason, -ENOENT, "None",
                          inputs->excluded > 0
                              ? "--pick and --drop exclude all tensors"
                              : "--pick and --drop: the input has no tensors to select from");
    if (!error)
        layout_check_metadata(&inputs->checkpoint);
    return error;
}

void
inputs_free(struct inputs *inputs)
{
    for (size_t i = 0; i < inputs->own_count; i++) {
        st_table_free(inputs->own[i]->table);
        backing_unref(inputs->own[i]->backing);
        free(inputs->own[i]);
    }
    free(inputs->own);
    side_free(&inputs->side);
    sources_free(&inputs->sources);
    free(inputs->checkpoint.shards);
    free((void *)inputs->checkpoint.tensors);
    problem_set_unref(inputs->checkpoint.problems);
    if (inputs->problems)
        problems_free(inputs->problems);
    for (size_t i = 0; i < inputs->found_count; i++)
        find_close(&inputs->found[i]);
    free(inputs->found);
}
