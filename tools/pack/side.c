/* SPDX-License-Identifier: Apache-2.0 */
#include "side.h"

#include "base/array.h"
#include "base/text.h"
#include "common/command.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES_SHOWN = 3 };

/* Returns whether the suffix is that of weights, in any format, which the output contains already,
 * or the name that of an unfinished download. */
static bool
is_not_copied(const char *name)
{
    static const char *const suffixes[] = {
        ".safetensors", ".index.json", ".bin",       ".pt",     ".pth",  ".ckpt",
        ".gguf",        ".ggml",       ".npy",       ".npz",    ".h5",   ".keras",
        ".msgpack",     ".onnx",       ".onnx_data", ".tflite", ".nemo",
    };

    for (size_t i = 0; i < COUNT_OF(suffixes); i++)
        if (text_has_suffix(name, suffixes[i]))
            return true;
    return find_is_unfinished_download(name);
}

static bool
side_files_have(const struct side_files *files, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(files->all[i].name, name) == 0)
            return true;
    return false;
}

/* Adds a file that was added to the sources last. */
static errint_t
add_side_file(struct side_files *files, const struct found *found, const char *name,
              struct reason *reason)
{
    struct side_file file;
    struct file_identity source;
    errint_t error = source_dir_file(found->root, name, &source);
    char shown[QUOTED_SIZE];

    if (error)
        return reason_errno(reason, error, quoted(shown, name, strlen(name)));
    if (source_dir_is_unfinished(found->root, name))
        return reason_set(reason, -EBADMSG, "UnfinishedDownload",
                          "%.150s: its download by aria2 is not finished; use --tensors-only",
                          quoted(shown, name, strlen(name)));
    file = (struct side_file){strdup(name), source_dir_backing(found->root, name, &source),
                              files->sources.may_have_acl};
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

/* Fails with the name and the target of a link that cannot be followed. */
static errint_t
refuse_link(int directory, const char *name, errint_t error, struct reason *reason)
{
    char target[PATH_MAX], shown[QUOTED_SIZE], shown_target[QUOTED_SIZE];
    ssize_t length = readlinkat(directory, name, target, sizeof(target));

    return reason_set(reason, error, "Link",
                      "%.200s: a link to %.200s that cannot be followed: %s; repair or remove it, "
                      "or use --tensors-only",
                      quoted(shown, name, strlen(name)),
                      quoted(shown_target, target, length > 0 ? (size_t)length : 0),
                      strerror(-error));
}

/* Checks what the listing does not contain: links that cannot be followed, and special files. Fails
 * at the first such link that would have to be copied; lists the special files in `special`.
 * `before`: the number of files of earlier inputs. */
static errint_t
check_unlisted(const struct side_files *files, size_t before, const char *directory,
               struct buffer *special, struct reason *reason)
{
    struct dirent **entries;
    int count = scandir(directory, &entries, NULL, alphasort);
    int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    errint_t error = count < 0 || fd < 0 ? reason_errno(reason, -errno, "cannot be listed") : 0;
    size_t special_count = 0;

    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        struct stat st;

        if (!error && name[0] != '.' && !is_not_copied(name) &&
            !side_files_have(files, before, name)) {
            if (fstatat(fd, name, &st, 0) == 0) {
                if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
                    add_shown_name(special, special_count++, name);
            } else {
                error = -errno;
                error = fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode)
                            ? refuse_link(fd, name, error, reason)
                            : 0; /* removed meanwhile */
            }
        }
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    if (fd >= 0)
        close(fd);
    return error;
}

errint_t
side_add(struct side_files *files, const struct found *found, const char *path,
         struct reason *reason)
{
    const struct listing *listing = found->listing;
    struct buffer duplicates = BUFFER_INIT, directories = BUFFER_INIT, special = BUFFER_INIT;
    const size_t before = files->count;
    size_t duplicate_count = 0, directory_count = 0;
    errint_t error = check_unlisted(files, before, found->directory, &special, reason);

    for (uint32_t i = 0; !error && i < listing->file_count; i++) {
        const char *name = listing->files[i];

        if (name[0] == '.' || is_not_copied(name))
            continue;
        files->sources.may_have_acl = false;
        if (sources_add_in(&files->sources, found->directory, name))
            error = reason_no_memory(reason);
        else if (side_files_have(files, before, name))
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
    print_omitted(path, &special, "special files (FIFO, socket, device) not copied");
    buffer_free(&duplicates);
    buffer_free(&directories);
    buffer_free(&special);
    return error;
}

void
side_free(struct side_files *files)
{
    for (size_t i = 0; i < files->count; i++) {
        free(files->all[i].name);
        backing_unref(files->all[i].backing);
    }
    free(files->all);
    sources_free(&files->sources);
}
