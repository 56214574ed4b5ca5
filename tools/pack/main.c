/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs-pack: writes to real files what a mount shows: checkpoints as one file or as shards.
 */
#include "base/clock.h"
#include "base/close.h"
#include "base/version.h"
#include "catalog/group.h"
#include "common/command.h"
#include "common/mounts.h"
#include "common/progress.h"
#include "copy.h"
#include "destination.h"
#include "format/safetensors.h"
#include "inputs.h"
#include "options.h"
#include "view/derived.h"
#include "view/gguf_layout.h"
#include "view/index.h"
#include "view/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct pack {
    const struct pack_options *options;
    struct inputs inputs;
    struct tensor_ref *refs; /* all tensors, in shard order */
    struct layout_part *parts;
    size_t part_count;
    const struct side_file **side; /* those that are copied */
    struct destination destination;
    struct copy *copies; /* one for each output of the destination */
    struct copier *copier;
    struct progress progress;
    uint64_t bytes, shared; /* of all files; of these, shared instead of copied */
};

/* ---- contents ---- */

static errint_t
make_part_list(const struct pack *pack, const struct layout_part *part, struct extent_list **list,
               struct reason *reason)
{
    const struct checkpoint *checkpoint = &pack->inputs.checkpoint;
    uint64_t size;
    errint_t error;

    if (checkpoint->container != &container_gguf)
        error = layout_file(checkpoint, pack->refs + part->first, part->count, &size, list);
    else if (checkpoint->shard_count == 1)
        error = list_of_backing(checkpoint->shards[0]->backing, list);
    else
        error = gguf_layout_file(checkpoint, &size, list);

    if (error == -EFBIG)
        return reason_set(reason, error, "HeaderTooLarge",
                          "its header would be longer than safetensors can read (%u bytes); use "
                          "--shards",
                          ST_MAX_HEADER);
    return error ? reason_errno(reason, error, NULL) : 0;
}

static errint_t
make_index_list(struct pack *pack, struct extent_list **list)
{
    struct buffer text = BUFFER_INIT;
    errint_t error = index_of_parts(&pack->inputs.checkpoint, pack->parts, pack->part_count, &text);

    if (!error)
        error = list_of_text(&text, list);
    buffer_free(&text);
    return error;
}

/* Creates the content of output `number`: a side file, a shard or the index. */
static errint_t
make_output_list(struct pack *pack, size_t number, struct extent_list **list, struct reason *reason)
{
    const size_t sides = pack->destination.side_count;
    errint_t error;

    if (number >= sides && number - sides < pack->part_count)
        return make_part_list(pack, &pack->parts[number - sides], list, reason);
    error = number < sides ? list_of_backing(pack->side[number]->backing, list)
                           : make_index_list(pack, list);
    return error ? reason_no_memory(reason) : 0;
}

/* Shares the blocks that can be shared, and adds the number of bytes that are left to be written to
 * `remaining`. */
static errint_t
begin_copies(struct pack *pack, uint64_t *remaining, struct reason *reason)
{
    const size_t count = pack->destination.output_count;
    errint_t error = 0;

    pack->copies = calloc(count, sizeof(*pack->copies));
    if (!pack->copies)
        return reason_no_memory(reason);

    for (size_t i = 0; !error && i < count; i++) {
        struct extent_list *list;

        error = make_output_list(pack, i, &list, reason);
        if (error)
            return error;
        error = copy_begin(list, pack->destination.outputs[i].fd, i < pack->destination.side_count,
                           &pack->copies[i], reason);
        *remaining += copy_remaining(&pack->copies[i]);
        pack->bytes += list->size;
        pack->shared += pack->copies[i].shared;
        extent_list_unref(list);
    }
    return error;
}

/* ---- free space ---- */

static void
format_size(char text[32], uint64_t bytes)
{
    if (bytes < 1000000000)
        snprintf(text, 32, "%.1f MB", (double)bytes / 1e6);
    else
        snprintf(text, 32, "%.2f GB", (double)bytes / 1e9);
}

/* Checks that `remaining` bytes are free. Succeeds if the file system does not report its size. */
static errint_t
check_free_space(const struct pack *pack, uint64_t remaining, struct reason *reason)
{
    char link[64], path[PATH_MAX], where[QUOTED_SIZE], needed[32], free_text[32];
    struct mountinfo mount;
    struct statvfs fs;
    ssize_t length;
    uint64_t space;

    if (fstatvfs(pack->destination.directory, &fs) < 0 || fs.f_blocks == 0)
        return 0;
    if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &space) ||
        remaining <= space)
        return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", pack->destination.directory);
    length = readlink(link, path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = '\0';
    if (mounts_find(path, &mount))
        snprintf(path, sizeof(path), "%s", mount.mountpoint);
    mountinfo_free(&mount);
    format_size(needed, remaining);
    format_size(free_text, space);
    return reason_set(reason, -ENOSPC, "Space",
                      "%s: the file system at %.300s has too little free space (found %s, "
                      "expected %s); nothing was written",
                      strerror(ENOSPC), quoted(where, path, strlen(path)), free_text, needed);
}

/* ---- writing ---- */

/* Writes one file, which gets its name in destination_commit(). */
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
write_outputs(struct pack *pack, struct reason *reason)
{
    errint_t error = 0;

    for (size_t i = 0; !error && i < pack->destination.output_count; i++)
        error = write_output(pack, &pack->destination.outputs[i], &pack->copies[i], reason);
    return error;
}

/* ---- the destination ---- */

/* ---- permissions: an output file grants no access that one of its sources denies ---- */

/* Removes the permissions that a source does not grant. If the groups differ, a user of either
 * class (group, others) may be in either class of the source, and gets only what both have. */
static void
restrict_mode(struct output_mode *mode, const struct file_identity *source)
{
    mode_t common = (source->mode >> 3) & source->mode & 07;
    mode_t any = (source->mode & 0700) | common << 3 | common;

    mode->mode &= any;
    mode->group_mode &= source->group == mode->group ? source->mode : any;
}

/* The permissions of a file before restrict_mode(); `group`: that of its first source. */
static struct output_mode
unrestricted_mode(gid_t group, bool may_have_acl)
{
    const mode_t most = may_have_acl ? 0600 : 0666;

    return (struct output_mode){.mode = most, .group_mode = most, .group = group};
}

static struct output_mode
mode_of_shards(const struct pack *pack)
{
    const struct checkpoint *checkpoint = &pack->inputs.checkpoint;
    struct output_mode mode = unrestricted_mode(checkpoint->shards[0]->backing->identity.group,
                                                pack->inputs.sources.may_have_acl);

    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        restrict_mode(&mode, &checkpoint->shards[i]->backing->identity);
    if (checkpoint->index_identity.inode)
        restrict_mode(&mode, &checkpoint->index_identity);
    return mode;
}

/* Adds the side files that the directory does not contain. */
static errint_t
add_side_files(struct pack *pack, struct reason *reason)
{
    const struct side_files *files = &pack->inputs.side;
    struct destination *destination = &pack->destination;
    errint_t error = 0;

    pack->side = calloc(files->count + 1, sizeof(*pack->side));
    if (!pack->side)
        return reason_no_memory(reason);
    for (size_t i = 0; !error && i < files->count; i++) {
        const struct side_file *file = &files->all[i];
        struct output_mode mode =
            unrestricted_mode(file->backing->identity.group, file->may_have_acl);
        bool needed;

        error = old_files_add_side(&destination->old, file->name, file->backing,
                                   pack->options->force, &files->sources, &needed, reason);
        if (error || !needed)
            continue;
        pack->side[destination->side_count] = file;
        restrict_mode(&mode, &file->backing->identity);
        error = destination_add(destination, file->name, &mode, true, reason);
    }
    return error;
}

/* Adds the shards, and the index if there are several. */
static errint_t
add_shards(struct pack *pack, struct reason *reason)
{
    const struct output_mode mode = mode_of_shards(pack);
    char name[512];
    errint_t error = 0;

    for (size_t i = 0; !error && i < pack->part_count; i++) {
        index_part_name(pack->inputs.stem, ST_SUFFIX, i, pack->part_count, name);
        error = destination_add(&pack->destination, name, &mode, false, reason);
    }
    if (error || pack->part_count == 1)
        return error;
    group_name_index(pack->inputs.stem, ST_SUFFIX, name);
    return destination_add(&pack->destination, name, &mode, false, reason);
}

static errint_t
begin_destination(struct pack *pack, struct reason *reason)
{
    const struct pack_options *options = pack->options;
    const struct destination_request request = {
        .path = options->output,
        .stem = options_make_shards(options) ? pack->inputs.stem : NULL,
        .force = options->force,
        .sources = &pack->inputs.sources,
    };
    struct output_mode mode;
    errint_t error;

    error = destination_open(&request, &pack->destination, reason);
    if (error)
        return error;
    if (!request.stem) {
        mode = mode_of_shards(pack);
        return destination_add(&pack->destination, NULL, &mode, false, reason);
    }
    error = add_side_files(pack, reason);
    return error ? error : add_shards(pack, reason);
}

/* Divides the tensors into the output files. */
static errint_t
cut_parts(struct pack *pack, struct reason *reason)
{
    const struct pack_options *options = pack->options;
    const struct checkpoint *checkpoint = &pack->inputs.checkpoint;
    uint32_t shards = options_make_shards(options) ? options->shards : 1;

    pack->refs = layout_shard_order(checkpoint);
    if (!pack->refs || layout_cut(checkpoint, pack->refs, shards, options->shard_size, &pack->parts,
                                  &pack->part_count))
        return reason_no_memory(reason);
    return 0;
}

static errint_t
write_pack(struct pack *pack, struct reason *reason)
{
    uint64_t remaining = 0;
    errint_t error = cut_parts(pack, reason);

    if (!error && progress_signal())
        error = reason_set(reason, -EINTR, "Interrupted", "interrupted");
    if (!error)
        error = begin_destination(pack, reason);
    progress_cancel_deadline();
    if (!error)
        error = begin_copies(pack, &remaining, reason);
    if (!error)
        error = check_free_space(pack, remaining, reason);
    if (!error) {
        error = copier_new(&pack->copier);
        if (error)
            reason_errno(reason, error, NULL);
    }
    if (error)
        return error;
    progress_begin(&pack->progress, pack->options->verify ? 2 * pack->bytes : pack->bytes);
    pack->progress.has_rate = true;
    error = pack->progress.running ? write_outputs(pack, reason) : reason_no_memory(reason);
    progress_end(&pack->progress);
    return error ? error : destination_commit(&pack->destination, reason);
}

static void
print_pack_summary(const struct pack *pack, double seconds)
{
    char output[QUOTED_SIZE];

    fprintf(stderr, "%s: %" PRIu32 " tensors, %.2f GB in %zu file%s, %.1f s",
            quoted(output, pack->options->output, strlen(pack->options->output)),
            pack->inputs.checkpoint.tensor_count, (double)pack->bytes / 1e9, pack->part_count,
            pack->part_count == 1 ? "" : "s", seconds);
    if (pack->inputs.excluded)
        fprintf(stderr, "; %" PRIu64 " tensors excluded", pack->inputs.excluded);
    if (pack->destination.side_count)
        fprintf(stderr, "; %zu other file%s", pack->destination.side_count,
                pack->destination.side_count == 1 ? "" : "s");
    if (pack->shared)
        fprintf(stderr, "; %.2f GB shared instead of copied", (double)pack->shared / 1e9);
    fputs(pack->options->verify ? "; verified\n" : "\n", stderr);
}

static int
pack_run(const struct pack_options *options)
{
    struct pack pack = {.options = options};
    char output[QUOTED_SIZE];
    struct reason reason;
    double begin = monotonic_seconds();
    errint_t error;

    pack.destination = (struct destination){.parent = -1, .directory = -1};
    progress_catch_signals();
    /* So that write(2) fails instead of ending the program, and unfinished output is removed. */
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    descriptor_limit_raise(); /* all outputs stay open until the end, and all inputs have leases */
    error = version_start(true);
    if (error)
        reason_errno(&reason, error, NULL);
    else
        error = inputs_read(options, &pack.inputs, &reason);
    if (error) {
        complain("%s", reason.text);
    } else {
        error = write_pack(&pack, &reason);
        if (error)
            complain("%s: %s", quoted(output, options->output, strlen(options->output)),
                     reason.text);
        else
            print_pack_summary(&pack, monotonic_seconds() - begin);
    }
    for (size_t i = 0; pack.copies && i < pack.destination.output_count; i++)
        copy_end(&pack.copies[i]);
    free(pack.copies);
    free(pack.side);
    destination_close(&pack.destination);
    copier_free(pack.copier);
    free(pack.refs);
    free(pack.parts);
    inputs_free(&pack.inputs);
    version_stop();
    if (error && progress_signal())
        return 128 + progress_signal();
    return error ? STATUS_FAILED : STATUS_DONE;
}

int
main(int argc, char **argv)
{
    struct pack_options options;
    int status;

    options_parse(argc, argv, &options);
    status = pack_run(&options);
    options_free(&options);
    return status;
}
