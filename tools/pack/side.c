/* SPDX-License-Identifier: Apache-2.0 */
#include "side.h"

#include "base/array.h"
#include "base/file.h"
#include "base/open.h"
#include "common/command.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAMES_SHOWN = 3 };

/* Returns whether the suffix is that of weights, in any format. The output contains them already.
 */
static bool
is_weights_file(const char *name)
{
    static const char *const suffixes[] = {
        ".safetensors", ".index.json", ".bin",       ".pt",     ".pth",  ".ckpt",
        ".gguf",        ".ggml",       ".npy",       ".npz",    ".h5",   ".keras",
        ".msgpack",     ".onnx",       ".onnx_data", ".tflite", ".nemo", ".incomplete",
    };
    size_t length = strlen(name);

    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        size_t end = strlen(suffixes[i]);

        if (length >= end && strcmp(name + length - end, suffixes[i]) == 0)
            return true;
    }
    return false;
}

static bool
side_files_have(const struct side_files *files, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(files->all[i].name, name) == 0)
            return true;
    return false;
}

static errint_t
add_side_file(struct side_files *files, const struct found *found, const char *name,
              struct reason *reason)
{
    struct side_file file;
    struct source_file source;
    errint_t error = source_dir_file(found->root, name, &source);
    int fd;
    char shown[QUOTED_SIZE];

    if (error)
        return reason_errno(reason, error, quoted(shown, name, strlen(name)));
    file = (struct side_file){strdup(name), source_dir_backing(found->root, name, &source), false};
    fd = file.backing ? open_at(file.backing->directory, file.backing->path, O_PATH | O_CLOEXEC)
                      : -1;
    file.has_acl = fd < 0 || file_may_have_acl(fd);
    if (fd >= 0)
        close(fd);
    if (file.name && file.backing && array_add(files->all, files->count, file))
        return 0;
    free(file.name);
    backing_unref(file.backing);
    return reason_no_memory(reason);
}

/* Adds a name to a list that shows the first NAMES_SHOWN. */
static void
add_shown_name(struct buffer *shown, size_t count, const char *name)
{
    if (count < NAMES_SHOWN) {
        buffer_add_text(shown, count ? ", " : "");
        buffer_add_quoted(shown, name, strlen(name), SIZE_MAX);
    } else if (count == NAMES_SHOWN) {
        buffer_add_text(shown, ", ...");
    }
}

static void
print_omitted(const char *path, const struct buffer *shown, const char *what)
{
    char name[QUOTED_SIZE];

    if (shown->length && !buffer_failed(shown))
        complain("%s: %s: %.*s", quoted(name, path, strlen(path)), what, (int)shown->length,
                 shown->data);
}

errint_t
side_add(struct side_files *files, const struct found *found, const char *path,
         struct reason *reason)
{
    const struct listing *listing = found->listing;
    struct buffer duplicates = BUFFER_INIT, directories = BUFFER_INIT;
    const size_t before = files->count;
    size_t duplicate_count = 0, directory_count = 0;
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < listing->file_count; i++) {
        const char *name = listing->files[i];

        if (name[0] == '.' || is_weights_file(name))
            continue;
        if (side_files_have(files, before, name))
            add_shown_name(&duplicates, duplicate_count++, name);
        else
            error = add_side_file(files, found, name, reason);
    }
    for (uint32_t i = 0; !error && i < listing->directory_count; i++)
        if (listing->directories[i][0] != '.')
            add_shown_name(&directories, directory_count++, listing->directories[i]);
    print_omitted(path, &duplicates,
                  "files not copied because an earlier INPUT has files of the same names");
    print_omitted(path, &directories, "directories not copied");
    buffer_free(&duplicates);
    buffer_free(&directories);
    return error;
}

struct extent_list *
side_list(const struct side_file *file)
{
    struct extent_builder builder = EXTENT_BUILDER_INIT;

    extent_builder_add_backing(&builder, file->backing, 0, file->backing->identity.size);
    return extent_builder_finish(&builder);
}

void
side_free(struct side_files *files)
{
    for (size_t i = 0; i < files->count; i++) {
        free(files->all[i].name);
        backing_unref(files->all[i].backing);
    }
    free(files->all);
}
