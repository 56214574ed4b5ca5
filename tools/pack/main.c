/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs-pack: real files of what the views of a mount show.
 */
#include "catalog/group.h"
#include "common/output.h"
#include "common/progress.h"
#include "common/say.h"
#include "copy.h"
#include "inputs.h"
#include "options.h"
#include "place.h"
#include "view/index.h"
#include "view/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, WRONG = 2 };

/* What is being made. */
struct pack {
    const struct options *options;
    struct inputs inputs;
    struct tensor_ref *refs; /* all tensors, in shard order */
    struct layout_part *parts;
    size_t part_count;
    struct place place;
    struct copier *copier;
    struct progress progress;
    uint64_t bytes; /* written */
};

static bool
is_cut(const struct options *options)
{
    return options->shards || options->shard_size;
}

static double
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- one file ---- */

static errint_t
write_list(struct pack *pack, const char *name, struct extent_list *list, struct reason *reason)
{
    bool replace = pack->place.force && !pack->place.is_directory;
    struct output output;
    char what[sizeof(pack->progress.what)];
    errint_t error = output_begin(pack->place.directory, name, &output, reason);

    if (error)
        return error;
    snprintf(what, sizeof(what), "writing %.90s", name);
    progress_start(&pack->progress, what);
    error = copy_list(pack->copier, list, output.fd, &pack->progress, reason);
    progress_finish(&pack->progress, list->size);
    if (!error)
        error = output_sync(&output, reason);
    if (!error && pack->options->verify) {
        snprintf(what, sizeof(what), "comparing %.90s", name);
        progress_start(&pack->progress, what);
        error = copy_compare(pack->copier, list, output.fd, &pack->progress, reason);
        progress_finish(&pack->progress, list->size);
    }
    if (!error)
        error = output_place(&output, replace, reason);
    output_drop(&output);
    pack->bytes += list->size;
    return error;
}

static errint_t
write_part(struct pack *pack, size_t part, const char *name, struct reason *reason)
{
    const struct layout_part *what = &pack->parts[part];
    struct extent_list *list;
    uint64_t size;
    errint_t error =
        layout_file(&pack->inputs.checkpoint, pack->refs + what->first, what->count, &size, &list);

    if (error == -EFBIG)
        return reason_set(reason, error, "HeaderTooLarge",
                          "its header would be over %u bytes, and safetensors could not read it; "
                          "--shards makes it several",
                          ST_MAX_HEADER);
    if (error)
        return reason_set(reason, error, "Layout", "%s", strerror(-error));
    error = write_list(pack, name, list, reason);
    extent_list_unref(list);
    return error;
}

/* ---- the index ---- */

static errint_t
list_of_index(struct pack *pack, struct extent_list **list)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct buffer text = BUFFER_INIT;
    struct blob *blob;
    errint_t error = index_of_parts(&pack->inputs.checkpoint, pack->parts, pack->part_count, &text);

    if (error || buffer_failed(&text)) {
        buffer_free(&text);
        return -ENOMEM;
    }
    blob = blob_new(text.data, text.length);
    if (!blob)
        return -ENOMEM;
    extent_builder_add_blob(&builder, blob, 0, blob->length);
    blob_unref(blob);
    *list = extent_builder_finish(&builder);
    return *list ? 0 : -ENOMEM;
}

static errint_t
write_index(struct pack *pack, struct reason *reason)
{
    struct extent_list *list;
    char name[300];
    errint_t error = list_of_index(pack, &list);

    if (error)
        return reason_set(reason, error, "OutOfMemory", "no memory for the index");
    group_name_index(pack->inputs.stem, name);
    error = write_list(pack, name, list, reason);
    extent_list_unref(list);
    return error;
}

/* ---- all files ---- */

static errint_t
write_all(struct pack *pack, struct reason *reason)
{
    errint_t error = 0;
    char name[512];

    if (!is_cut(pack->options))
        return write_part(pack, 0, pack->place.name, reason);
    for (size_t i = 0; !error && i < pack->part_count; i++) {
        index_part_name(pack->inputs.stem, i, pack->part_count, name);
        error = write_part(pack, i, name, reason);
    }
    if (!error && pack->part_count > 1)
        error = write_index(pack, reason);
    return error;
}

static errint_t
cut(struct pack *pack, struct reason *reason)
{
    const struct options *options = pack->options;
    struct checkpoint *checkpoint = &pack->inputs.checkpoint;
    errint_t error = 0;

    pack->refs = layout_shard_order(checkpoint);
    if (is_cut(options) && pack->refs) {
        error = layout_cut(checkpoint, pack->refs, options->shards, options->shard_size,
                           &pack->parts, &pack->part_count);
    } else {
        pack->parts = calloc(1, sizeof(*pack->parts));
        pack->part_count = 1;
        if (pack->parts)
            pack->parts[0].count = checkpoint->tensor_count;
    }
    if (error || !pack->refs || !pack->parts)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    return 0;
}

/* About so many bytes are to be read or written: without the headers. */
static uint64_t
work(const struct pack *pack)
{
    const struct checkpoint *checkpoint = &pack->inputs.checkpoint;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct st_tensor *tensor = checkpoint_tensor(checkpoint, checkpoint->tensors[i]);

        sum += tensor->end - tensor->begin;
    }
    return pack->options->verify ? 2 * sum : sum;
}

static errint_t
make(struct pack *pack, const char *stem, struct reason *reason)
{
    errint_t error = cut(pack, reason);

    if (!error)
        error =
            place_begin(pack->options->output, stem, pack->options->force, &pack->place, reason);
    if (!error) {
        error = copier_new(&pack->copier);
        if (error)
            reason_set(reason, error, "Engine", "%s", strerror(-error));
    }
    if (error)
        return error;
    progress_begin(&pack->progress, work(pack));
    pack->progress.has_rate = true;
    error = pack->progress.running ? write_all(pack, reason)
                                   : reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    progress_end(&pack->progress);
    return error ? error : place_finish(&pack->place, stem, reason);
}

static void
say_done(const struct pack *pack, double seconds)
{
    uint64_t shared = copier_shared(pack->copier);

    fprintf(stderr, "%s: %" PRIu32 " tensors, %.2f GB in %zu file%s, %.1f s", pack->options->output,
            pack->inputs.checkpoint.tensor_count, (double)pack->bytes / 1e9, pack->part_count,
            pack->part_count == 1 ? "" : "s", seconds);
    if (pack->inputs.left_out)
        fprintf(stderr, "; %" PRIu64 " tensors left out", pack->inputs.left_out);
    if (shared)
        fprintf(stderr, "; %.2f GB shared and not copied", (double)shared / 1e9);
    fputs(pack->options->verify ? "; compared\n" : "\n", stderr);
}

static int
run(const struct options *options)
{
    struct pack pack = {.options = options};
    char output[QUOTED_SIZE];
    struct reason reason;
    double begin = now();
    errint_t error;

    pack.place = (struct place){.parent = -1, .directory = -1, .old = -1};
    progress_catch_signals();
    error = inputs_read(options, &pack.inputs, &reason);
    if (error) {
        complain("%s", reason.text);
    } else {
        error = make(&pack, is_cut(options) ? pack.inputs.stem : NULL, &reason);
        if (error)
            complain("%s: %s", quoted(output, options->output, strlen(options->output)),
                     reason.text);
        else
            say_done(&pack, now() - begin);
    }
    place_end(&pack.place);
    copier_free(pack.copier);
    free(pack.refs);
    free(pack.parts);
    inputs_free(&pack.inputs);
    if (error && progress_signal())
        return 128 + progress_signal();
    return error ? FAILED : DONE;
}

int
main(int argc, char **argv)
{
    struct options options;
    int status = WRONG;

    switch (options_parse(argc, argv, &options)) {
    case OPTIONS_RUN:
        status = run(&options);
        break;
    case OPTIONS_DONE:
        status = DONE;
        break;
    default:
        break;
    }
    options_free(&options);
    return status;
}
