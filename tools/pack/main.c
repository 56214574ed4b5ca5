/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs-pack: real files of what the views of a mount show.
 */
#include "base/clock.h"
#include "catalog/group.h"
#include "common/mounts.h"
#include "common/progress.h"
#include "common/say.h"
#include "copy.h"
#include "format/safetensors.h"
#include "inputs.h"
#include "options.h"
#include "place.h"
#include "view/index.h"
#include "view/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, WRONG = 2 };

/* What is being made. */
struct pack {
    const struct options *options;
    struct inputs inputs;
    struct tensor_ref *refs; /* all tensors, in shard order */
    struct layout_part *parts;
    size_t part_count;
    const struct side_file **side; /* that are copied */
    size_t side_count;
    struct place place;
    struct copy *copies; /* one for each output of the place */
    struct copier *copier;
    struct progress progress;
    uint64_t bytes, shared; /* of all files; shared and not copied */
};

static bool
is_cut(const struct options *options)
{
    return options->shards || options->shard_size;
}

/* ---- what the files are made of ---- */

static errint_t
list_of_part(const struct pack *pack, const struct layout_part *part, struct extent_list **list,
             struct reason *reason)
{
    uint64_t size;
    errint_t error =
        layout_file(&pack->inputs.checkpoint, pack->refs + part->first, part->count, &size, list);

    if (error == -EFBIG)
        return reason_set(reason, error, "HeaderTooLarge",
                          "its header would be over %u bytes, and safetensors could not read it; "
                          "--shards makes it several",
                          ST_MAX_HEADER);
    return error ? reason_set(reason, error, "Layout", "%s", strerror(-error)) : 0;
}

static errint_t
list_of_index(struct pack *pack, struct extent_list **list, struct reason *reason)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;
    struct buffer text = BUFFER_INIT;
    struct blob *blob = NULL;
    errint_t error = index_of_parts(&pack->inputs.checkpoint, pack->parts, pack->part_count, &text);

    if (error || buffer_failed(&text))
        buffer_free(&text);
    else
        blob = blob_new(text.data, text.length);
    if (blob)
        extent_builder_add_blob(&builder, blob, 0, blob->length);
    blob_unref(blob);
    *list = blob ? extent_builder_finish(&builder) : NULL;
    return *list ? 0 : reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the index");
}

/* What the output of this number is to hold: side files, shards, an index. */
static errint_t
list_of_output(struct pack *pack, size_t number, struct extent_list **list, struct reason *reason)
{
    size_t part = number - pack->side_count;

    if (number < pack->side_count) {
        *list = side_list(pack->side[number]);
        return *list ? 0 : reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    }
    return part < pack->part_count ? list_of_part(pack, &pack->parts[part], list, reason)
                                   : list_of_index(pack, list, reason);
}

/* Shares what can be shared, so that it is known how much is to be written. */
static errint_t
begin_copies(struct pack *pack, uint64_t *room, struct reason *reason)
{
    const size_t count = pack->place.output_count;
    errint_t error = 0;

    pack->copies = calloc(count, sizeof(*pack->copies));
    if (!pack->copies)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");

    for (size_t i = 0; !error && i < count; i++) {
        struct extent_list *list;

        error = list_of_output(pack, i, &list, reason);
        if (error)
            return error;
        error = copy_begin(list, pack->place.outputs[i].fd, &pack->copies[i], reason);
        *room += copy_room(&pack->copies[i]);
        pack->bytes += list->size;
        pack->shared += pack->copies[i].shared;
        extent_list_unref(list);
    }
    return error;
}

/* ---- room ---- */

static void
format_size(char text[32], uint64_t bytes)
{
    if (bytes < 1000000000)
        snprintf(text, 32, "%.1f MB", (double)bytes / 1e6);
    else
        snprintf(text, 32, "%.2f GB", (double)bytes / 1e9);
}

/* Whether all that is still to be written fits. A file system that does not tell is no obstacle. */
static errint_t
check_room(const struct pack *pack, uint64_t room, struct reason *reason)
{
    char link[64], path[PATH_MAX], where[QUOTED_SIZE], needed[32], free_text[32];
    struct mount_entry *mount;
    struct statvfs fs;
    ssize_t length;
    uint64_t space;

    if (fstatvfs(pack->place.directory, &fs) < 0 || fs.f_blocks == 0)
        return 0;
    if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &space) ||
        room <= space)
        return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", pack->place.directory);
    length = readlink(link, path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = '\0';
    mount = malloc(sizeof(*mount));
    if (mount && mounts_find(path, mount))
        strcpy(path, mount->point);
    free(mount);
    format_size(needed, room);
    format_size(free_text, space);
    return reason_set(reason, -ENOSPC, "Space",
                      "%s: %s are needed on the file system at %.300s, and "
                      "%s are free; nothing was written",
                      strerror(ENOSPC), needed, quoted(where, path, strlen(path)), free_text);
}

/* ---- all files ---- */

/* Writes one file of the output. It has no name before place_finish(). */
static errint_t
write_output(struct pack *pack, struct output *output, struct copy *copy, struct reason *reason)
{
    char what[sizeof(pack->progress.what)];
    errint_t error;

    snprintf(what, sizeof(what), "writing %.90s", output->name);
    progress_start(&pack->progress, what);
    error = copy_run(pack->copier, copy, &pack->progress, reason);
    progress_finish(&pack->progress, copy->list->size);
    if (!error)
        error = output_sync(output, reason);
    if (!error && pack->options->verify) {
        snprintf(what, sizeof(what), "comparing %.90s", output->name);
        progress_start(&pack->progress, what);
        error = copy_compare(pack->copier, copy, &pack->progress, reason);
        progress_finish(&pack->progress, copy->list->size);
    }
    return error;
}

static errint_t
write_all(struct pack *pack, struct reason *reason)
{
    errint_t error = 0;

    for (size_t i = 0; !error && i < pack->place.output_count; i++)
        error = write_output(pack, &pack->place.outputs[i], &pack->copies[i], reason);
    return error;
}

/* ---- where they go ---- */

/* The names of all files, in the order of list_of_output(); then NULL. */
static char **
name_files(const struct pack *pack)
{
    char **names = calloc(pack->side_count + pack->part_count + 2, sizeof(*names));
    char **at = names;
    char name[512];

    if (!names)
        return NULL;
    for (size_t i = 0; i < pack->side_count; i++) {
        *at = strdup(pack->side[i]->name);
        if (!*at++)
            return names;
    }
    for (size_t i = 0; i < pack->part_count; i++) {
        index_part_name(pack->inputs.stem, ST_SUFFIX, i, pack->part_count, name);
        *at = strdup(name);
        if (!*at++)
            return names;
    }
    if (pack->part_count > 1) {
        group_name_index(pack->inputs.stem, ST_SUFFIX, name);
        *at = strdup(name);
    }
    return names;
}

/* Chooses the side files that are not there yet. */
static errint_t
choose_side_files(struct pack *pack, struct reason *reason)
{
    const struct side_files *files = &pack->inputs.side;
    errint_t error = 0;

    pack->side = calloc(files->count + 1, sizeof(*pack->side));
    if (!pack->side)
        return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    for (size_t i = 0; !error && i < files->count; i++) {
        const struct side_file *file = &files->all[i];
        bool needed;

        error = place_needs(&pack->place, file->name, file->backing, pack->options->force, &needed,
                            reason);
        if (!error && needed)
            pack->side[pack->side_count++] = file;
    }
    return error;
}

/* Every file is open until the end. */
static void
raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static errint_t
begin_outputs(struct pack *pack, struct reason *reason)
{
    size_t count = pack->side_count + pack->part_count + (pack->part_count > 1);
    char **names = name_files(pack);
    errint_t error = names && names[count - 1]
                         ? place_begin(&pack->place, names, count, pack->side_count, reason)
                         : reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");

    for (size_t i = 0; names && names[i]; i++)
        free(names[i]);
    free(names);
    return error;
}

static errint_t
begin_place(struct pack *pack, struct reason *reason)
{
    const struct options *options = pack->options;
    const struct place_request request = {
        .path = options->output,
        .stem = is_cut(options) ? pack->inputs.stem : NULL,
        .force = options->force,
        .sources = &pack->inputs.sources,
    };
    errint_t error;

    raise_descriptor_limit();
    error = place_open(&request, &pack->place, reason);
    if (error)
        return error;
    if (!is_cut(options))
        return place_begin(&pack->place, NULL, 1, 0, reason);
    error = choose_side_files(pack, reason);
    return error ? error : begin_outputs(pack, reason);
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

static errint_t
make(struct pack *pack, struct reason *reason)
{
    uint64_t room = 0;
    errint_t error = cut(pack, reason);

    if (!error)
        error = begin_place(pack, reason);
    if (!error)
        error = begin_copies(pack, &room, reason);
    if (!error)
        error = check_room(pack, room, reason);
    if (!error) {
        error = copier_new(&pack->copier);
        if (error)
            reason_set(reason, error, "Engine", "%s", strerror(-error));
    }
    if (error)
        return error;
    progress_begin(&pack->progress, pack->options->verify ? 2 * pack->bytes : pack->bytes);
    pack->progress.has_rate = true;
    error = pack->progress.running ? write_all(pack, reason)
                                   : reason_set(reason, -ENOMEM, "OutOfMemory", "no memory");
    progress_end(&pack->progress);
    return error ? error : place_finish(&pack->place, reason);
}

static void
say_done(const struct pack *pack, double seconds)
{
    char output[QUOTED_SIZE];

    fprintf(stderr, "%s: %" PRIu32 " tensors, %.2f GB in %zu file%s, %.1f s",
            quoted(output, pack->options->output, strlen(pack->options->output)),
            pack->inputs.checkpoint.tensor_count, (double)pack->bytes / 1e9, pack->part_count,
            pack->part_count == 1 ? "" : "s", seconds);
    if (pack->inputs.left_out)
        fprintf(stderr, "; %" PRIu64 " tensors left out", pack->inputs.left_out);
    if (pack->side_count)
        fprintf(stderr, "; %zu other file%s", pack->side_count, pack->side_count == 1 ? "" : "s");
    if (pack->shared)
        fprintf(stderr, "; %.2f GB shared and not copied", (double)pack->shared / 1e9);
    fputs(pack->options->verify ? "; compared\n" : "\n", stderr);
}

static int
run(const struct options *options)
{
    struct pack pack = {.options = options};
    char output[QUOTED_SIZE];
    struct reason reason;
    double begin = monotonic_seconds();
    errint_t error;

    pack.place = (struct place){.parent = -1, .directory = -1};
    progress_catch_signals();
    error = inputs_read(options, &pack.inputs, &reason);
    if (error) {
        complain("%s", reason.text);
    } else {
        error = make(&pack, &reason);
        if (error)
            complain("%s: %s", quoted(output, options->output, strlen(options->output)),
                     reason.text);
        else
            say_done(&pack, monotonic_seconds() - begin);
    }
    for (size_t i = 0; pack.copies && i < pack.place.output_count; i++)
        copy_end(&pack.copies[i]);
    free(pack.copies);
    free(pack.side);
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
