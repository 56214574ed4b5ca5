/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fstfs-check: checks safetensors files and checkpoints.
 */
#include "common/command.h"
#include "common/progress.h"
#include "deep.h"
#include "hashes.h"
#include "options.h"
#include "tree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Exit statuses. */
enum { STATUS_SOUND = 0, STATUS_FOUND = 1, STATUS_UNCHECKED = 2 };

static const char *
plural_suffix(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static void
print_check_summary(const struct tree *tree, const struct deep_result *deep)
{
    struct buffer text = BUFFER_INIT;
    uint64_t count = tree->findings.count;

    if (count == 0)
        buffer_add_text(&text, "sound: ");
    else
        buffer_addf(&text, "%" PRIu64 " finding%s in ", count, plural_suffix(count));
    if (tree->checkpoint_count)
        buffer_addf(&text, "%" PRIu64 " checkpoint%s, ", tree->checkpoint_count,
                    plural_suffix(tree->checkpoint_count));
    buffer_addf(&text, "%" PRIu64 " file%s, %" PRIu64 " tensor%s, %.2f GB", tree->file_count,
                plural_suffix(tree->file_count), tree->tensor_count,
                plural_suffix(tree->tensor_count), (double)tree->bytes / 1e9);
    if (!tree->options->deep)
        buffer_add_text(&text, "; headers only (--deep reads everything)");
    else
        buffer_addf(&text, "; read %.2f GB in %.1f s", (double)deep->bytes / 1e9, deep->seconds);
    if (deep->hub_files)
        buffer_addf(&text, ", %" PRIu64 " compared with the hub's SHA-256", deep->hub_files);
    if (deep->records_without_crc)
        buffer_addf(&text, "; no CRC for %" PRIu64 " of %" PRIu64 " records",
                    deep->records_without_crc, deep->records_without_crc + deep->records);
    buffer_add_char(&text, '\n');
    write_out(stderr, &text);
    buffer_free(&text);
}

static bool
print_json(struct tree *tree, const struct deep_result *deep, int status)
{
    struct buffer out = BUFFER_INIT;
    bool done;

    buffer_addf(&out,
                "{\n  \"version\": \"" FSTFS_VERSION "\",\n  \"sound\": %s,\n"
                "  \"checkpoints\": %" PRIu64 ",\n  \"files\": %" PRIu64 ",\n"
                "  \"tensors\": %" PRIu64 ",\n  \"bytes\": %" PRIu64 ",\n"
                "  \"bytes_read\": %" PRIu64 ",\n  \"hub_files_compared\": %" PRIu64 ",\n"
                "  \"records_compared\": %" PRIu64 ",\n  \"records_without_crc\": %" PRIu64 ",\n"
                "  \"seconds_read\": %.3f,\n  \"findings\": ",
                status == STATUS_SOUND ? "true" : "false", tree->checkpoint_count, tree->file_count,
                tree->tensor_count, tree->bytes, deep->bytes, deep->hub_files, deep->records,
                deep->records_without_crc, deep->seconds);
    findings_json(&tree->findings, &out);
    buffer_add_text(&out, "\n}\n");
    done = write_out(stdout, &out);
    buffer_free(&out);
    return done;
}

/* Without libcrypto: prints how many files could not be compared with the hub's SHA-256. */
static void
warn_unhashed(const struct tree *tree)
{
    uint64_t count = 0;

    for (size_t i = 0; i < tree->target_count; i++)
        count += tree->targets[i].hub_sha256[0] != '\0';
    if (count > 0 && !sha256_is_supported())
        complain("%" PRIu64 " file%s not compared with the hub's SHA-256: this fstfs-check was "
                 "built without libcrypto",
                 count, plural_suffix(count));
}

/* Reads all targets. Returns false if they, or the hashes, could not be checked. */
static bool
check_deep(struct tree *tree, struct deep_result *result)
{
    const char *hashes = tree->options->hashes;
    struct reason reason;
    bool written = false;
    errint_t error = deep_run(tree, result);

    if (error == -EINTR)
        return false;
    if (error) {
        complain("cannot read: %s", strerror(-error));
        return false;
    }
    warn_unhashed(tree);
    if (!hashes)
        return true;
    if (tree->model_count == 0) {
        complain("%s: not used because there are no tensors in safetensors files to hash", hashes);
        return false;
    }
    if (tree->findings.unchecked) {
        complain("%s: not used because some files could not be read", hashes);
        return false;
    }
    if (hashes_compare(tree, hashes, &written, &reason)) {
        complain("%s: %s", hashes, reason.text);
        return false;
    }
    if (written)
        fprintf(stderr, "%s: hashes written; the next run compares them\n", hashes);
    return true;
}

static int
check_paths(struct tree *tree)
{
    const struct check_options *options = tree->options;
    struct deep_result deep = {0};
    errint_t error = 0;
    bool is_checked = true;
    int status;

    progress_catch_signals();
    for (int i = 0; !error && i < options->path_count && !progress_signal(); i++)
        error = tree_check(tree, options->paths[i]);
    if (!options->json)
        findings_print(&tree->findings);
    if (!error && options->deep && !progress_signal())
        is_checked = check_deep(tree, &deep);
    if (!options->json)
        findings_print(&tree->findings);
    if (progress_signal()) {
        complain("interrupted");
        return 128 + progress_signal();
    }
    if (error || tree->findings.failed) {
        complain("out of memory, or standard output cannot be written");
        return STATUS_UNCHECKED;
    }
    status = !is_checked || tree->findings.unchecked ? STATUS_UNCHECKED
             : tree->findings.count                  ? STATUS_FOUND
                                                     : STATUS_SOUND;
    if (options->json)
        return print_json(tree, &deep, status) ? status : STATUS_UNCHECKED;
    print_check_summary(tree, &deep);
    return status;
}

int
main(int argc, char **argv)
{
    struct check_options options;
    struct tree tree;
    int status;

    options_parse(argc, argv, &options);
    if (tree_init(&tree, &options)) {
        complain("out of memory");
        return STATUS_UNCHECKED;
    }
    status = check_paths(&tree);
    tree_free(&tree);
    return status;
}
