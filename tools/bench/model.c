/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include "base/file.h"
#include "base/text.h"
#include "common/find.h"
#include "view/index.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static errint_t
model_add_file(struct model *model, const struct shard *shard, struct reason *reason)
{
    size_t i = model->file_count;

    if (!shard->table || !shard->backing)
        return reason_set(reason, -EBADMSG, "Refused", "%s: cannot be opened", shard->name);
    model->files[i] = path_join(model->directory, shard->name);
    model->names[i] = strdup(shard->name);
    if (!model->files[i] || !model->names[i])
        return reason_no_memory(reason);
    model->sizes[i] = shard->identity.size;
    model->bytes += model->sizes[i];
    model->file_count++;
    return 0;
}

static void
model_add_tensor(struct model *model, const struct checkpoint *checkpoint, struct tensor_ref ref,
                 size_t file)
{
    const struct st_tensor *tensor = checkpoint_tensor(checkpoint, ref);

    model->tensors[model->tensor_count++] = (struct model_tensor){
        .offset = checkpoint->shards[ref.shard]->table->data_start + tensor->begin,
        .length = tensor->end - tensor->begin,
        .file = file,
    };
}

static errint_t
model_add_parts(struct model *model, const struct found *found, struct reason *reason)
{
    const struct checkpoint *checkpoint = found->checkpoint;
    uint32_t only = UINT32_MAX;
    errint_t error = 0;

    model->files = calloc(checkpoint->shard_count + 1, sizeof(*model->files));
    model->names = calloc(checkpoint->shard_count + 1, sizeof(*model->names));
    model->sizes = calloc(checkpoint->shard_count + 1, sizeof(*model->sizes));
    model->tensors = calloc((size_t)checkpoint->tensor_count + 1, sizeof(*model->tensors));
    if (!model->files || !model->names || !model->sizes || !model->tensors)
        return reason_no_memory(reason);
    for (uint32_t i = 0; !error && i < checkpoint->shard_count; i++) {
        if (found->one_file && strcmp(checkpoint->shards[i]->name, found->name) != 0)
            continue;
        only = i;
        error = model_add_file(model, checkpoint->shards[i], reason);
    }
    for (uint32_t i = 0; !error && i < checkpoint->tensor_count; i++) {
        struct tensor_ref ref = checkpoint->tensors[i];

        if (!found->one_file)
            model_add_tensor(model, checkpoint, ref, ref.shard);
        else if (ref.shard == only)
            model_add_tensor(model, checkpoint, ref, 0);
    }
    return error;
}

/* The stem or the file that the mount shows instead of the files; malloc'ed. */
static char *
shown_name(const struct found *found)
{
    const struct checkpoint *checkpoint = found->checkpoint;
    char name[512] = "";

    if (!found->one_file || checkpoint->shard_count == 1)
        return strdup(checkpoint->stem);
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (strcmp(checkpoint->shards[i]->name, found->name) == 0)
            index_part_name(checkpoint->stem, checkpoint->suffix, i, checkpoint->shard_count, name);
    return strdup(name);
}

errint_t
model_open(const char *path, struct model *model, struct reason *reason)
{
    struct catalog_options options = {.problems = {find_ignore_problem, NULL, 0}};
    struct found found;
    errint_t error;

    *model = (struct model){.path = strdup(path)};
    if (!model->path)
        return reason_no_memory(reason);
    error = find_checkpoint(path, &options, &found, reason);
    if (!error)
        error = find_read_headers(&found, reason);
    if (!error) {
        model->is_directory = found.is_directory;
        model->directory = found.directory;
        found.directory = NULL;
        error = model_add_parts(model, &found, reason);
        if (found.checkpoint->container->is_converted)
            model->shown = shown_name(&found);
        if (!error && found.checkpoint->container->is_converted && !model->shown)
            error = reason_no_memory(reason);
        model->whole =
            found.listing->group_count == 1 && model->file_count == found.checkpoint->shard_count;
    }
    find_close(&found);
    return error;
}

void
model_close(struct model *model)
{
    for (size_t i = 0; i < model->file_count; i++) {
        free(model->files[i]);
        free(model->names[i]);
    }
    free(model->files);
    free(model->names);
    free(model->sizes);
    free(model->tensors);
    free(model->shown);
    free(model->directory);
    free(model->path);
    *model = (struct model){0};
}

bool
model_entry(const struct model *model, char entry[PATH_MAX])
{
    static const char suffix[] = ".safetensors.index.json";
    const char *last = basename(model->path);
    size_t length = strlen(last);
    char path[2 * PATH_MAX];

    if (model->whole || model->file_count == 1) {
        snprintf(entry, PATH_MAX, "%s", model->whole ? "." : model->names[0]);
        return true;
    }
    if (text_has_suffix(last, suffix))
        length -= sizeof(suffix) - 1;
    snprintf(entry, PATH_MAX, "%.*s%s", (int)length, last, suffix);
    snprintf(path, sizeof(path), "%s/%s", model->directory, entry);
    return access(path, R_OK) == 0;
}

/* ---- plans ---- */

errint_t
model_plan(const struct model *model, const char *directory, enum order order, struct plan *plan)
{
    errint_t error = 0;

    for (size_t i = 0; !error && i < model->file_count; i++) {
        char *path = path_join(directory, model->names[i]);

        error = path ? plan_add_file(plan, path) : -ENOMEM;
        free(path);
        if (!error && order == ORDER_FILES)
            error = plan_add_segment(plan, i, 0, model->sizes[i]);
    }
    for (size_t i = 0; !error && order == ORDER_NAMES && i < model->tensor_count; i++) {
        const struct model_tensor *tensor = &model->tensors[i];

        error = plan_add_segment(plan, tensor->file, tensor->offset, tensor->length);
    }
    return error;
}
