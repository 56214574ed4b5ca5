/* SPDX-License-Identifier: Apache-2.0 */
#include "tree.h"

#include "base/array.h"
#include "base/parallel.h"
#include "catalog/group.h"
#include "common/find.h"
#include "common/progress.h"
#include "view/layout.h"
#include "view/listing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Checkpoints whose headers are read at the same time. */
enum { READERS = 16 };

/* Where the findings of a catalog belong. */
struct place {
    struct findings *findings;
    char *base; /* of the paths of its directory; "" where it is the current one */
};

errint_t
tree_init(struct tree *tree, const struct options *options)
{
    *tree = (struct tree){.options = options};
    findings_init(&tree->findings);
    tree->catalogs = calloc((size_t)options->path_count, sizeof(struct catalog *));
    return tree->catalogs ? 0 : -ENOMEM;
}

void
tree_free(struct tree *tree)
{
    for (size_t i = 0; i < tree->target_count; i++) {
        free(tree->targets[i].path);
        backing_unref(tree->targets[i].backing);
        free(tree->targets[i].digests);
    }
    for (size_t i = 0; i < tree->model_count; i++) {
        free(tree->models[i].key);
        free(tree->models[i].targets);
        checkpoint_unref(tree->models[i].checkpoint);
    }
    for (size_t i = 0; i < tree->catalog_count; i++)
        catalog_free(tree->catalogs[i]);
    free(tree->targets);
    free(tree->models);
    free(tree->catalogs);
    inode_map_free(&tree->files);
    inode_map_free(&tree->directories);
    findings_free(&tree->findings);
}

/* "BASE/DIRECTORY/NAME", without what is empty; malloc'ed. `name` may be NULL. */
static char *
join(const char *base, const char *directory, const char *name)
{
    struct buffer path = BUFFER_INIT;
    const char *const parts[] = {base, directory, name};

    buffer_add_text(&path, "");
    for (size_t i = 0; i < 3; i++) {
        if (!parts[i] || !*parts[i])
            continue;
        if (path.length > 0 && path.data[path.length - 1] != '/')
            buffer_add_char(&path, '/');
        buffer_add_text(&path, parts[i]);
    }
    if (path.length == 0)
        buffer_add_char(&path, '.');
    if (buffer_failed(&path)) {
        buffer_free(&path);
        return NULL;
    }
    return path.data;
}

/* For catalogs: what is no fault of the file is in the words of the catalog. */
static void
tell(void *arg, const char *directory, const char *name, const char *text)
{
    static const char unseen[] = "refused: IoError:";
    const struct place *place = arg;

    findings_add(place->findings, join(place->base, directory, name),
                 strncmp(text, unseen, sizeof(unseen) - 1) == 0, "%s", text);
}

static struct catalog_options
catalog_options(const struct tree *tree, struct place *place)
{
    return (struct catalog_options){.problems = {tell, place, tree->options->all ? SIZE_MAX : 0}};
}

/* ---- one file ---- */

static uint64_t
element_bytes(const struct st_tensor *tensor)
{
    unsigned bits = tensor->dtype == DTYPE_UNKNOWN ? 8 : dtype_bits((enum dtype)tensor->dtype);

    return bits < 8 ? 1 : bits / 8;
}

static void
check_alignment(struct tree *tree, const char *path, const struct st_table *table)
{
    const struct st_tensor *first = NULL;
    char name[QUOTED_SIZE];
    uint32_t count = 0;

    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        if (tensor->begin == tensor->end ||
            (table->data_start + tensor->begin) % element_bytes(tensor) == 0)
            continue;
        first = first ? first : tensor;
        count++;
    }
    if (count > 0)
        findings_add(&tree->findings, strdup(path), false,
                     "%" PRIu32 " of %" PRIu32
                     " tensors do not begin at a multiple of their element's size (the first is %s,"
                     " %s at byte %" PRIu64 "): PyTorch copies or refuses them",
                     count, table->count,
                     quoted(name, table->text + first->name, first->name_length),
                     dtype_name((enum dtype)first->dtype), table->data_start + first->begin);
}

/* `__metadata__`'s format, which loaders look at. */
static void
check_format(struct tree *tree, const char *path, const struct st_table *table)
{
    static const char *const known[] = {"pt", "tf", "flax", "np", "mlx"};
    char shown[QUOTED_SIZE];

    for (uint32_t i = 0; i < table->metadata_count; i++) {
        const struct st_metadata *pair = &table->metadata[i];
        const char *value = table->text + pair->value;
        bool is_known = false;

        if (pair->key_length != 6 || memcmp(table->text + pair->key, "format", 6) != 0)
            continue;
        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
            is_known = is_known || (strlen(known[k]) == pair->value_length &&
                                    memcmp(known[k], value, pair->value_length) == 0);
        if (!is_known)
            findings_add(&tree->findings, strdup(path), false,
                         "__metadata__ has the format \"%s\"; loaders know pt, tf, flax, np, mlx",
                         quoted(shown, value, pair->value_length));
    }
}

static void
check_table(struct tree *tree, const char *path, const struct st_table *table, uint64_t size)
{
    tree->file_count++;
    tree->tensor_count += table->count;
    tree->bytes += size;
    check_alignment(tree, path, table);
    check_format(tree, path, table);
}

/* ---- what is to be read whole ---- */

/* The name of a blob of the hub's cache is the SHA-256 of what is in it, where it
 * is no small file of git's. */
static void
read_hub_name(const char *path, char sha256[SHA256_TEXT])
{
    char *real = realpath(path, NULL);
    const char *slash = real ? strrchr(real, '/') : NULL;
    const char *name = slash ? slash + 1 : "";

    sha256[0] = '\0';
    if (strlen(name) == SHA256_TEXT - 1 && strspn(name, "0123456789abcdef") == SHA256_TEXT - 1)
        strcpy(sha256, name);
    free(real);
}

static bool
make_room(void **array, size_t count, size_t size)
{
    void *bigger = array_room(*array, count, size);

    if (bigger)
        *array = bigger;
    return bigger != NULL;
}

static struct model *
add_model(struct tree *tree, char *key, size_t most_targets)
{
    size_t *targets = calloc(most_targets + 1, sizeof(*targets));

    if (!key || !targets ||
        !make_room((void **)&tree->models, tree->model_count, sizeof(*tree->models))) {
        free(key);
        free(targets);
        return NULL;
    }
    tree->models[tree->model_count] = (struct model){.key = key, .targets = targets};
    return &tree->models[tree->model_count++];
}

static errint_t
add_target(struct tree *tree, struct model *model, const char *path, struct backing *backing,
           const struct st_table *table)
{
    const struct file_identity *identity = &backing->identity;
    struct target *target;
    size_t number;

    if (!make_room((void **)&tree->targets, tree->target_count, sizeof(*tree->targets)))
        return -ENOMEM;
    number = inode_map_add(&tree->files, identity->device, identity->inode, tree->target_count + 1);
    if (number == 0)
        return -ENOMEM;
    model->targets[model->target_count++] = number - 1;
    if (number <= tree->target_count)
        return 0;
    target = &tree->targets[tree->target_count];
    *target = (struct target){.path = strdup(path), .table = table};
    if (!target->path)
        return -ENOMEM;
    target->backing = backing_ref(backing);
    read_hub_name(path, target->hub_sha256);
    tree->target_count++;
    return 0;
}

/* ---- checkpoints ---- */

static void
check_total_size(struct tree *tree, const struct group *group, const struct checkpoint *checkpoint,
                 const struct place *place)
{
    uint64_t sum = 0, said = checkpoint->total_size;
    char *path;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i]->table)
            sum += checkpoint->shards[i]->table->data_length;
    if (!checkpoint->has_total_size || sum == said)
        return;
    path = join(place->base, checkpoint->directory, group->index);
    if (group->missing_count && said > sum)
        findings_add(&tree->findings, path, false,
                     "%" PRIu64 " of %" PRIu64 " bytes of tensors are missing with %" PRIu32
                     " shards",
                     said - sum, said, group->missing_count);
    else if (!checkpoint->unsound)
        findings_add(&tree->findings, path, false,
                     "metadata.total_size says %" PRIu64 " bytes, the tensors have %" PRIu64, said,
                     sum);
    else
        free(path);
}

/* Whether all of it can be one file, as far as the header's length goes. */
static errint_t
check_merged(const struct checkpoint *checkpoint)
{
    struct tensor_ref *refs;
    uint64_t headers = 0, size;
    errint_t error;

    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i]->table)
            headers += checkpoint->shards[i]->table->data_start;
    if (checkpoint->unsound || checkpoint->shard_count == 1 || headers < ST_MAX_HEADER / 2)
        return 0;
    refs = layout_shard_order(checkpoint);
    error = refs ? layout_file(checkpoint, refs, checkpoint->tensor_count, &size, NULL) : -ENOMEM;
    free(refs);
    if (error == -EFBIG)
        problem_set_add(checkpoint->problems, checkpoint->directory, checkpoint->shards[0]->name,
                        "HeaderTooLarge: merged into one file, its header would be over %u bytes, "
                        "and safetensors could not read it",
                        ST_MAX_HEADER);
    return error == -EFBIG ? 0 : error;
}

/* The checkpoint's name among the hashes. One that another stands before is named
 * by its first file. */
static char *
key_of(const struct group *group, const struct checkpoint *checkpoint)
{
    const char *name = group->stem;

    if (group->second)
        name = group->index ? group->index : group->members[0];
    return join("", checkpoint->directory, name);
}

static errint_t
take_checkpoint(struct tree *tree, const struct group *group, struct checkpoint *checkpoint,
                const struct place *place)
{
    struct model *model = NULL;
    errint_t error = check_merged(checkpoint);

    if (tree->options->deep) {
        model = add_model(tree, key_of(group, checkpoint), checkpoint->shard_count);
        if (!model)
            return -ENOMEM;
        model->checkpoint = checkpoint_ref(checkpoint);
    }
    if (checkpoint->shard_count > 1)
        layout_check_metadata(checkpoint);
    check_total_size(tree, group, checkpoint, place);
    for (uint32_t i = 0; !error && i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];
        char *path = join(place->base, checkpoint->directory, shard->name);

        if (!path)
            return -ENOMEM;
        if (!shard->table)
            tree->file_count++;
        else
            check_table(tree, path, shard->table, shard->file.identity.size);
        if (shard->table && model)
            error = add_target(tree, model, path, shard->backing, shard->table);
        free(path);
    }
    return error;
}

/* ---- directories ---- */

struct headers {
    struct source_dir *dir;
    const struct listing *listing;
    struct checkpoint **checkpoints; /* as listing->groups; NULL: no memory */
};

static void
read_headers(void *arg, size_t i)
{
    struct headers *headers = arg;

    if (progress_signal() ||
        group_checkpoint(headers->dir, &headers->listing->groups[i], &headers->checkpoints[i]) != 0)
        headers->checkpoints[i] = NULL;
}

static errint_t
check_groups(struct tree *tree, struct source_dir *dir, const struct listing *listing,
             const struct place *place)
{
    struct headers headers = {dir, listing, NULL};
    errint_t error = 0;

    headers.checkpoints = calloc(listing->group_count + 1, sizeof(struct checkpoint *));
    if (!headers.checkpoints)
        return -ENOMEM;
    parallel_for(listing->group_count, READERS, read_headers, &headers);
    for (uint32_t i = 0; i < listing->group_count; i++) {
        struct checkpoint *checkpoint = headers.checkpoints[i];

        if (!checkpoint)
            error = -ENOMEM;
        tree->checkpoint_count++;
        if (!error)
            error = take_checkpoint(tree, &listing->groups[i], checkpoint, place);
        checkpoint_unref(checkpoint);
    }
    free(headers.checkpoints);
    return error;
}

/* Says where names meet in one of the mount's views. */
static errint_t
check_names(struct source_dir *dir)
{
    const struct view_options options = {0};

    for (int kind = 0; kind < VIEW_KINDS; kind++) {
        struct dir_listing *names;
        struct listing *listing;
        errint_t error = source_dir_listing(dir, &listing);

        if (error)
            return error == -ENOMEM ? error : 0;
        names = dir_listing_new(listing, source_dir_path(dir), (enum view_kind)kind, &options);
        if (!names)
            return -ENOMEM;
        dir_listing_unref(names);
    }
    return 0;
}

/* What the hub's own programs leave behind when a download ends too early. */
static void
check_downloads(struct tree *tree, const struct source_dir *dir, const struct listing *listing,
                const struct place *place)
{
    static const char suffix[] = ".incomplete";

    for (uint32_t i = 0; i < listing->file_count; i++) {
        const char *name = listing->files[i];
        size_t length = strlen(name);

        if (length >= sizeof(suffix) && strcmp(name + length - sizeof(suffix) + 1, suffix) == 0)
            findings_add(&tree->findings, join(place->base, source_dir_path(dir), name), false,
                         "a download that was not finished");
    }
}

static errint_t check_directory(struct tree *tree, struct source_dir *dir,
                                const struct place *place);

static errint_t
check_children(struct tree *tree, struct source_dir *dir, const struct listing *listing,
               const struct place *place)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < listing->directory_count && !progress_signal(); i++) {
        struct source_dir *child = source_dir_child(dir, listing->directories[i]);

        error = child ? check_directory(tree, child, place) : -ENOMEM;
        source_dir_unref(child);
    }
    return error;
}

/* Whether it is here for the first time: links may lead to one again and again. */
static bool
is_new_directory(struct tree *tree, struct source_dir *dir)
{
    size_t number = tree->directories.count + 1;
    struct stat st;

    return source_dir_stat(dir, &st) != 0 ||
           inode_map_add(&tree->directories, st.st_dev, st.st_ino, number) == number;
}

/* NOLINTNEXTLINE(misc-no-recursion): as deep as the tree, and loops are left out */
static errint_t
check_directory(struct tree *tree, struct source_dir *dir, const struct place *place)
{
    struct listing *listing;
    errint_t error;

    if (!is_new_directory(tree, dir))
        return 0;
    error = source_dir_listing(dir, &listing);
    if (error == -ENOMEM)
        return error;
    if (error) {
        findings_add(&tree->findings, join(place->base, source_dir_path(dir), NULL), true,
                     "cannot be listed: %s", strerror(-error));
        return 0;
    }
    check_downloads(tree, dir, listing, place);
    error = check_groups(tree, dir, listing, place);
    if (!error)
        error = check_names(dir);
    if (!error)
        error = check_children(tree, dir, listing, place);
    listing_unref(listing);
    return error;
}

/* ---- paths ---- */

/* A finding that is no fault of what is there; all other errors are. */
static errint_t
cannot(struct tree *tree, const char *path, errint_t error, const char *why)
{
    if (error == -ENOMEM)
        return error;
    findings_add(&tree->findings, strdup(path), true, "%s", why);
    return 0;
}

static errint_t
check_tree(struct tree *tree, const char *path)
{
    struct place place = {&tree->findings, strdup(path)};
    struct catalog_options options = catalog_options(tree, &place);
    uint64_t before = tree->checkpoint_count;
    struct catalog *catalog;
    struct source_dir *root;
    errint_t error = place.base ? 0 : -ENOMEM;

    options.source = path;
    if (!error)
        error = catalog_new(&options, &catalog);
    if (error) {
        free(place.base);
        return cannot(tree, path, error, strerror(-error));
    }
    tree->catalogs[tree->catalog_count++] = catalog;
    root = catalog_root(catalog);
    error = root ? check_directory(tree, root, &place) : -ENOMEM;
    source_dir_unref(root);
    free(place.base);
    if (!error && tree->checkpoint_count == before && !progress_signal() &&
        tree->findings.unseen == 0)
        return cannot(tree, path, 0, "no checkpoint in it or below: no *.safetensors, no *.sft");
    return error;
}

/* Adds to the findings those of the directory's listing that are about the group. */
static void
keep_findings(struct tree *tree, const struct findings *from, const struct group *group,
              const char *base)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct finding *finding = &from->all[i];
        const char *slash = strrchr(finding->path, '/');
        const char *name = slash ? slash + 1 : finding->path;
        bool ours = group->index && strcmp(name, group->index) == 0;

        for (uint32_t m = 0; !ours && m < group->member_count; m++)
            ours = strcmp(name, group->members[m]) == 0;
        if (ours)
            findings_add(&tree->findings, join(base, NULL, name), finding->unseen, "%s",
                         finding->text);
    }
}

/* The directory of a path, as the path has it; "" where it has none. malloc'ed. */
static char *
base_of(const char *path)
{
    char *base = strdup(path), *slash = base ? strrchr(base, '/') : NULL;

    if (slash)
        slash[slash == base ? 1 : 0] = '\0';
    else if (base)
        *base = '\0';
    return base;
}

/* The checkpoint of an index, or DIRECTORY/STEM. */
static errint_t
check_named(struct tree *tree, const char *path)
{
    struct findings of_listing;
    struct place place = {&of_listing, base_of(path)};
    struct catalog_options options = catalog_options(tree, &place);
    struct reason reason;
    struct found found;
    errint_t error;

    if (!place.base)
        return -ENOMEM;
    findings_init(&of_listing);
    error = find_checkpoint(path, &options, &found, &reason);
    if (error) {
        error = cannot(tree, path, error, reason.text);
    } else {
        keep_findings(tree, &of_listing, found.group, place.base);
        place.findings = &tree->findings;
        error = find_headers(&found, &reason);
        tree->checkpoint_count++;
        if (!error)
            error = take_checkpoint(tree, found.group, found.checkpoint, &place);
        tree->catalogs[tree->catalog_count++] = found.catalog;
        found.catalog = NULL;
    }
    find_close(&found);
    findings_free(&of_listing);
    free(place.base);
    return error;
}

/* The name of a file without the suffix, if it has one; malloc'ed. */
static char *
stem_of(const char *name)
{
    char *stem = strdup(name);
    size_t length = strlen(name);

    if (stem)
        stem[length - st_suffix_length(name, length)] = '\0';
    return stem;
}

/* Checks the file as the checkpoint that it would be alone in its directory. */
static errint_t
check_alone(struct tree *tree, struct catalog *catalog, const char *name, const struct place *place)
{
    struct source_dir *root = catalog_root(catalog);
    char *stem = stem_of(name);
    const struct group group = {.stem = stem,
                                .suffix = stem ? name + strlen(stem) : NULL,
                                .members = &name,
                                .member_count = 1,
                                .kind = GROUP_SINGLE};
    struct checkpoint *checkpoint;
    errint_t error = root && stem ? group_load(root, &group, &checkpoint) : -ENOMEM;

    if (!error) {
        error = take_checkpoint(tree, &group, checkpoint, place);
        checkpoint_unref(checkpoint);
    }
    source_dir_unref(root);
    free(stem);
    return error;
}

/* A file of any name. */
static errint_t
check_file(struct tree *tree, const char *path)
{
    struct place place = {&tree->findings, base_of(path)};
    struct catalog_options options = catalog_options(tree, &place);
    const char *slash = strrchr(path, '/');
    struct catalog *catalog;
    errint_t error = place.base ? 0 : -ENOMEM;

    options.source = place.base && *place.base ? place.base : ".";
    options.path_only = true; /* it may be a directory that can be searched and not read */
    if (!error)
        error = catalog_new(&options, &catalog);
    if (error) {
        free(place.base);
        return cannot(tree, path, error, strerror(-error));
    }
    tree->catalogs[tree->catalog_count++] = catalog;
    error = check_alone(tree, catalog, slash ? slash + 1 : path, &place);
    free(place.base);
    return error;
}

static bool
is_index(const char *path)
{
    size_t length = strlen(path);

    return length > 5 && strcmp(path + length - 5, ".json") == 0;
}

errint_t
tree_check(struct tree *tree, const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        /* What is there under another name only: DIRECTORY/STEM. */
        return errno == ENOENT ? check_named(tree, path)
                               : cannot(tree, path, -errno, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return check_tree(tree, path);
    if (!S_ISREG(st.st_mode))
        return cannot(tree, path, 0, "no regular file");
    return is_index(path) ? check_named(tree, path) : check_file(tree, path);
}
