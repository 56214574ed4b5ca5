/* SPDX-License-Identifier: Apache-2.0 */
#include "tree.h"

#include "base/array.h"
#include "base/parallel.h"
#include "base/text.h"
#include "catalog/group.h"
#include "common/find.h"
#include "common/progress.h"
#include "containers.h"
#include "rules.h"
#include "view/layout.h"
#include "view/listing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { READERS = 16 }; /* threads that read headers */

/* Where to add the findings of a catalog. */
struct scope {
    struct findings *findings;
    char *base; /* path of the catalog's directory in findings; "" for the current one */
    atomic_bool no_memory; /* the budget of the catalog had no room for a header */
};

errint_t
tree_init(struct tree *tree, const struct check_options *options)
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
        archive_free(&tree->targets[i].archive);
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

/* Returns "BASE/DIRECTORY/NAME" without empty parts; malloc'ed. `name` may be NULL. */
static char *
join_parts(const char *base, const char *directory, const char *name)
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

static bool
starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Adds a problem of a catalog. Its text distinguishes files that could not be checked from invalid
 * ones. */
static void
add_problem(void *arg, const char *directory, const char *name, const char *text)
{
    static const char refused[] = "refused: ";
    const char *rule = starts_with(text, refused) ? text + strlen(refused) : text;
    char *path;
    struct scope *scope = arg;

    path = join_parts(scope->base, directory, name);
    if (starts_with(rule, "NoMemoryForHeaders:")) {
        atomic_store(&scope->no_memory, true);
        findings_add(scope->findings, path, true, "cannot be checked: %s", rule);
    } else {
        findings_add(scope->findings, path, rule != text && starts_with(rule, "IoError:"), "%s",
                     text);
    }
}

static struct catalog_options
catalog_options(const struct tree *tree, struct scope *scope)
{
    return (struct catalog_options){
        .problems = {add_problem, scope, tree->options->all ? SIZE_MAX : 0}};
}

/* ---- files to be read ---- */

/* Blobs in the cache of the Hugging Face hub are named by their SHA-256, except those of files that
 * git stores. */
static void
read_hub_sha256(const char *path, char sha256[SHA256_TEXT])
{
    char *real = realpath(path, NULL);
    const char *name = real ? basename(real) : "";

    sha256[0] = '\0';
    if (strlen(name) == SHA256_TEXT - 1 && strspn(name, "0123456789abcdef") == SHA256_TEXT - 1)
        strcpy(sha256, name);
    free(real);
}

static struct model *
add_model(struct tree *tree, char *key, size_t most_targets)
{
    size_t *targets = calloc(most_targets + 1, sizeof(*targets));
    const struct model model = {.key = key, .targets = targets};

    if (key && targets && array_add(tree->models, tree->model_count, model))
        return &tree->models[tree->model_count - 1];
    free(key);
    free(targets);
    return NULL;
}

/* Finds or adds the target of a file. Sets `number` to its index + 1. */
static errint_t
add_target(struct tree *tree, const char *path, struct backing *backing, size_t *number)
{
    struct target *targets = array_room(tree->targets, tree->target_count, sizeof(*targets));
    struct target *target;

    if (!targets)
        return -ENOMEM;
    tree->targets = targets;
    *number = inode_map_add(&tree->files, &backing->identity);
    if (*number == 0)
        return -ENOMEM;
    if (*number <= tree->target_count)
        return 0;
    target = &targets[tree->target_count];
    *target = (struct target){.path = strdup(path)};
    if (!target->path)
        return -ENOMEM;
    target->backing = backing_ref(backing);
    read_hub_sha256(path, target->hub_sha256);
    tree->target_count++;
    return 0;
}

/* `model`: as in struct tree, or NULL. */
static errint_t
add_shard_target(struct tree *tree, struct model *model, const char *path, struct backing *backing,
                 const struct st_table *table)
{
    size_t number;
    errint_t error = add_target(tree, path, backing, &number);

    if (error || !model)
        return error;
    model->targets[model->target_count++] = number - 1;
    tree->targets[number - 1].table = table;
    return 0;
}

/* Adds a target, and moves the archive of the result, if there is one, to it. */
static errint_t
add_container_target(struct tree *tree, const char *path, struct container_result *result)
{
    char *real = realpath(path, NULL);
    struct backing *backing = real ? backing_new(AT_FDCWD, real, &result->identity) : NULL;
    size_t number;
    errint_t error = backing ? add_target(tree, path, backing, &number) : -ENOMEM;

    if (!error && !tree->targets[number - 1].archive.records) {
        tree->targets[number - 1].archive = result->archive;
        result->archive = (struct archive){0};
    }
    backing_unref(backing);
    free(real);
    return error;
}

/* ---- checkpoints ---- */

/* Checks a file of another format than safetensors. */
static errint_t
check_container(struct tree *tree, const char *path, enum container_use use)
{
    struct container_result result;
    errint_t error = container_check(&tree->findings, path, use, tree->options->deep, &result);

    tree->file_count += result.files;
    tree->tensor_count += result.tensors;
    tree->bytes += result.bytes;
    if (!error && result.has_tensors && tree->options->deep)
        error = add_container_target(tree, path, &result);
    archive_free(&result.archive);
    return error;
}

/* Checks what the catalog does not check: the imports of pickles and, with --deep, the records. */
static errint_t
check_converted(struct tree *tree, const struct checkpoint *checkpoint, const struct scope *scope)
{
    const enum container_use use = checkpoint->is_absent ? CONTAINER_ABSENT : CONTAINER_SHARD;
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < checkpoint->shard_count && !progress_signal(); i++) {
        char *path = join_parts(scope->base, checkpoint->directory, checkpoint->shards[i]->name);

        error = path ? check_container(tree, path, use) : -ENOMEM;
        free(path);
    }
    return error;
}

/* The checkpoint's key among the hashes. If another checkpoint has the same stem, it is named by
 * its index or its first file. */
static char *
model_key(const struct group *group, const struct checkpoint *checkpoint)
{
    return join_parts("", checkpoint->directory, group->second ? group_file(group) : group->stem);
}

static errint_t
check_checkpoint(struct tree *tree, const struct group *group, struct checkpoint *checkpoint,
                 const struct scope *scope)
{
    struct model *model = NULL;
    errint_t error = rules_check_merged_header(checkpoint);

    if (checkpoint->has_total_size) {
        char *index = join_parts(scope->base, checkpoint->directory, group->index);

        if (!index)
            return -ENOMEM;
        rules_check_total_size(&tree->findings, checkpoint, index, group->missing_count);
        free(index);
    }
    if (checkpoint->container->is_converted)
        return error ? error : check_converted(tree, checkpoint, scope);
    if (tree->options->hashes || tree->options->nan) {
        model = add_model(tree, model_key(group, checkpoint), checkpoint->shard_count);
        if (!model)
            return -ENOMEM;
        model->checkpoint = checkpoint_ref(checkpoint);
    }
    if (checkpoint->shard_count > 1)
        layout_check_metadata(checkpoint);
    for (uint32_t i = 0; !error && i < checkpoint->shard_count; i++) {
        const struct shard *shard = checkpoint->shards[i];
        char *path = join_parts(scope->base, checkpoint->directory, shard->name);

        if (!path)
            return -ENOMEM;
        tree->file_count++;
        if (shard->table) {
            tree->tensor_count += shard->table->count;
            tree->bytes += shard->identity.size;
            rules_check_table(&tree->findings, path, shard->table);
            if (tree->options->deep)
                error = add_shard_target(tree, model, path, shard->backing, shard->table);
        }
        free(path);
    }
    return error;
}

/* ---- directories ---- */

struct group_headers {
    struct source_dir *dir;
    const struct group *groups;
    uint32_t count;
    struct scope *scope;
    struct checkpoint **checkpoints; /* of the groups; NULL: not read */
};

static void
read_group_headers(void *arg, size_t i)
{
    struct group_headers *headers = arg;

    if (progress_signal() || atomic_load(&headers->scope->no_memory) ||
        group_checkpoint(headers->dir, &headers->groups[i], &headers->checkpoints[i]) != 0)
        headers->checkpoints[i] = NULL;
}

/* Reads the headers of all groups in parallel. Returns false, with no checkpoints and no findings,
 * if they do not fit into memory together. */
static bool
read_headers_together(struct group_headers *headers)
{
    struct scope *scope = headers->scope;
    const size_t before = scope->findings->count;

    atomic_store(&scope->no_memory, false);
    parallel_for(headers->count, READERS, read_group_headers, headers);
    if (!atomic_load(&scope->no_memory))
        return true;
    for (uint32_t i = 0; i < headers->count; i++) {
        checkpoint_unref(headers->checkpoints[i]);
        headers->checkpoints[i] = NULL;
    }
    findings_truncate(scope->findings, before);
    return false;
}

/* Checks groups of a directory. If there is no memory for their headers together, reads one header
 * at a time, so that the result for each group does not depend on the others. */
static errint_t
check_groups(struct tree *tree, struct source_dir *dir, const struct group *groups, uint32_t count,
             struct scope *scope)
{
    struct group_headers headers = {dir, groups, count, scope, NULL};
    errint_t error = 0;
    bool fits;

    headers.checkpoints = calloc((size_t)count + 1, sizeof(struct checkpoint *));
    if (!headers.checkpoints)
        return -ENOMEM;
    fits = read_headers_together(&headers);
    for (uint32_t i = 0; i < count; i++) {
        struct checkpoint *checkpoint = headers.checkpoints[i];

        if (!fits && !error && !progress_signal())
            error = group_load(dir, &groups[i], 1, &checkpoint);
        if (!checkpoint)
            error = -ENOMEM;
        else
            tree->checkpoint_count += !checkpoint->is_absent;
        if (!error)
            error = check_checkpoint(tree, &groups[i], checkpoint, scope);
        checkpoint_unref(checkpoint);
    }
    free(headers.checkpoints);
    return error;
}

/* Creates the listings of all views, which reports the names that collide in them. */
static errint_t
check_view_names(struct source_dir *dir)
{
    const struct view_options options = {0};

    for (int kind = 0; kind < VIEW_KINDS; kind++) {
        struct dir_listing *names;
        struct listing *listing;
        errint_t error = source_dir_listing(dir, &listing);

        if (error)
            return error == -ENOMEM ? error : 0;
        names = dir_listing_new(listing, (enum view_kind)kind, &options);
        if (!names)
            return -ENOMEM;
        dir_listing_unref(names);
    }
    return 0;
}

/* Adds a target if the file is a link to a blob of the hub that is named by its SHA-256. */
static errint_t
add_hub_target(struct tree *tree, struct source_dir *dir, const char *name,
               const struct scope *scope)
{
    char *path = join_parts(scope->base, source_dir_path(dir), name), sha256[SHA256_TEXT] = "";
    struct backing *backing;
    struct file_identity file;
    errint_t error = path ? 0 : -ENOMEM;
    struct stat st;
    size_t number;

    if (!error && lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        read_hub_sha256(path, sha256);
    /* A file that was removed meanwhile is ignored. */
    if (sha256[0] && source_dir_file(dir, name, &file) == 0) {
        backing = source_dir_backing(dir, name, &file);
        error = backing ? add_target(tree, path, backing, &number) : -ENOMEM;
        backing_unref(backing);
    }
    free(path);
    return error;
}

/* Adds targets for the weights of a Hugging Face cache, including refused ones, and for their
 * indexes. */
static errint_t
add_hub_groups(struct tree *tree, struct source_dir *dir, const struct listing *listing,
               const struct scope *scope)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < listing->group_count; i++) {
        const struct group *group = &listing->groups[i];

        if (group->index)
            error = add_hub_target(tree, dir, group->index, scope);
        for (uint32_t m = 0; !error && m < group->member_count; m++)
            error = add_hub_target(tree, dir, group->members[m], scope);
    }
    return error;
}

/* Whether the file is aria2's control file of a shard, whose refusal is reported. */
static bool
is_control_file_of_shard(const struct listing *listing, const char *name)
{
    char member[NAME_MAX + 1];

    if (!text_has_suffix(name, ARIA2_CONTROL_SUFFIX))
        return false;
    snprintf(member, sizeof(member), "%.*s", (int)(strlen(name) - strlen(ARIA2_CONTROL_SUFFIX)),
             name);
    for (uint32_t i = 0; i < listing->group_count; i++)
        if (find_group_has_member(&listing->groups[i], member))
            return true;
    return false;
}

/* Checks the files that belong to no checkpoint: reports unfinished downloads, checks files of
 * other formats, and with --deep adds targets for files of a Hugging Face cache. */
static errint_t
check_side_files(struct tree *tree, struct source_dir *dir, const struct listing *listing,
                 const struct scope *scope)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < listing->file_count && !progress_signal(); i++) {
        const char *name = listing->files[i];
        char *path = join_parts(scope->base, source_dir_path(dir), name);

        if (!path)
            return -ENOMEM;
        if (find_is_unfinished_download(name) && !is_control_file_of_shard(listing, name))
            findings_add(&tree->findings, strdup(path), false, "an unfinished download");
        else if (container_has_suffix(name))
            error = check_container(tree, path, CONTAINER_SIDE_FILE);
        free(path);
        if (!error && tree->options->deep)
            error = add_hub_target(tree, dir, name, scope);
    }
    return error;
}

static errint_t check_directory(struct tree *tree, struct source_dir *dir, struct scope *scope);

static errint_t
check_children(struct tree *tree, struct source_dir *dir, const struct listing *listing,
               struct scope *scope)
{
    errint_t error = 0;

    for (uint32_t i = 0; !error && i < listing->directory_count && !progress_signal(); i++) {
        struct source_dir *child = source_dir_child(dir, listing->directories[i]);

        error = child ? check_directory(tree, child, scope) : -ENOMEM;
        source_dir_unref(child);
    }
    return error;
}

/* Returns whether the directory is seen for the first time; links may lead to it again. */
static bool
is_new_directory(struct tree *tree, struct source_dir *dir)
{
    const size_t before = tree->directories.count;
    struct file_identity identity;

    return source_dir_stat(dir, &identity) != 0 ||
           inode_map_add(&tree->directories, &identity) > before;
}

/* NOLINTNEXTLINE(misc-no-recursion): as deep as the tree, without loops */
static errint_t
check_directory(struct tree *tree, struct source_dir *dir, struct scope *scope)
{
    struct listing *listing;
    errint_t error;

    if (!is_new_directory(tree, dir))
        return 0;
    error = source_dir_listing(dir, &listing);
    if (error == -ENOMEM)
        return error;
    if (error) {
        findings_add(&tree->findings, join_parts(scope->base, source_dir_path(dir), NULL), true,
                     "cannot be listed: %s", strerror(-error));
        return 0;
    }
    error = check_groups(tree, dir, listing->groups, listing->group_count, scope);
    if (!error && tree->options->deep)
        error = add_hub_groups(tree, dir, listing, scope);
    if (!error)
        error = check_side_files(tree, dir, listing, scope);
    if (!error)
        error = check_view_names(dir);
    if (!error)
        error = check_children(tree, dir, listing, scope);
    listing_unref(listing);
    return error;
}

/* ---- paths ---- */

/* Adds the finding that `path` could not be checked. Returns -ENOMEM if that is the error. */
static errint_t
add_unchecked(struct tree *tree, const char *path, errint_t error, const char *why)
{
    if (error == -ENOMEM)
        return error;
    findings_add(&tree->findings, strdup(path), true, "%s", why);
    return 0;
}

/* Opens the catalog of a directory, which the tree then owns. Adds a finding if that fails. NULL
 * with *error 0: a finding was added. */
static struct source_dir *
open_catalog(struct tree *tree, const char *path, struct catalog_options *options, errint_t *error)
{
    struct catalog *catalog;
    struct source_dir *root;

    *error = catalog_new(options, &catalog);
    if (*error) {
        *error = add_unchecked(tree, path, *error, strerror(-*error));
        return NULL;
    }
    tree->catalogs[tree->catalog_count++] = catalog;
    root = catalog_root(catalog);
    *error = root ? 0 : -ENOMEM;
    return root;
}

static errint_t
check_tree(struct tree *tree, const char *path)
{
    struct scope scope = {.findings = &tree->findings, .base = strdup(path)};
    struct catalog_options options = catalog_options(tree, &scope);
    uint64_t before = tree->checkpoint_count + tree->file_count;
    const size_t unchecked = tree->findings.unchecked;
    struct source_dir *root;
    errint_t error;

    if (!scope.base)
        return -ENOMEM;
    options.source = path;
    root = open_catalog(tree, path, &options, &error);
    if (root)
        error = check_directory(tree, root, &scope);
    source_dir_unref(root);
    free(scope.base);
    if (root && !error && tree->checkpoint_count + tree->file_count == before &&
        !progress_signal() && tree->findings.unchecked == unchecked)
        return add_unchecked(tree, path, 0,
                             "contains no checkpoint, nor do its subdirectories (no safetensors, "
                             "PyTorch or GGUF file)");
    return error;
}

/* Adds those findings of the directory's listing that concern the group. */
static void
add_group_findings(struct tree *tree, const struct findings *from, const struct group *group,
                   const char *base)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct finding *finding = &from->all[i];
        const char *name = basename(finding->path);
        char stem[256];
        /* An index that is not used may be that of the group. */
        bool is_kept = (group_index_name(name, stem) && strcmp(stem, group->stem) == 0) ||
                       (group->index && strcmp(name, group->index) == 0) ||
                       find_group_has_member(group, name);

        if (is_kept)
            findings_add(&tree->findings, join_parts(base, NULL, name), finding->unchecked, "%s",
                         finding->text);
    }
}

/* Returns the directory part of a path, "" if there is none; malloc'ed. */
static char *
directory_part(const char *path)
{
    char *base = strdup(path), *slash = base ? strrchr(base, '/') : NULL;

    if (slash)
        slash[slash == base ? 1 : 0] = '\0';
    else if (base)
        *base = '\0';
    return base;
}

/* Checks the checkpoint of an index file, or of DIRECTORY/STEM. */
static errint_t
check_named(struct tree *tree, const char *path)
{
    struct findings of_listing;
    struct scope scope = {.findings = &of_listing, .base = directory_part(path)};
    struct catalog_options options = catalog_options(tree, &scope);
    struct reason reason;
    struct found found;
    errint_t error;

    if (!scope.base)
        return -ENOMEM;
    findings_init(&of_listing);
    error = find_checkpoint(path, &options, &found, &reason);
    if (error) {
        error = add_unchecked(tree, path, error, reason.text);
    } else {
        add_group_findings(tree, &of_listing, found.group, scope.base);
        scope.findings = &tree->findings;
        error = check_groups(tree, found.root, found.group, 1, &scope);
        tree->catalogs[tree->catalog_count++] = found.catalog;
        found.catalog = NULL;
    }
    find_close(&found);
    findings_free(&of_listing);
    free(scope.base);
    return error;
}

/* Checks a file of any name as if it were alone in its directory. */
static errint_t
check_file(struct tree *tree, const char *path)
{
    struct scope scope = {.findings = &tree->findings, .base = directory_part(path)};
    struct catalog_options options = catalog_options(tree, &scope);
    const char *name = basename(path);
    size_t length = strlen(name), end = 0;
    bool has_suffix = container_of_name(name, length, &end) == &container_safetensors;
    char *stem = strndup(name, has_suffix ? length - end : length);
    struct group group = {.container = &container_safetensors,
                          .stem = stem,
                          .members = &name,
                          .member_count = 1,
                          .unfinished = 1,
                          .kind = GROUP_SINGLE};
    struct source_dir *root = NULL;
    struct checkpoint *checkpoint;
    errint_t error = -ENOMEM;

    if (scope.base && stem) {
        group.suffix = name + strlen(stem);
        options.source = *scope.base ? scope.base : ".";
        options.path_only = true; /* the directory may be searchable but not readable */
        root = open_catalog(tree, path, &options, &error);
    }
    if (root)
        error = group_load(root, &group, 1, &checkpoint);
    if (root && !error) {
        error = check_checkpoint(tree, &group, checkpoint, &scope);
        checkpoint_unref(checkpoint);
    }
    source_dir_unref(root);
    free(stem);
    free(scope.base);
    return error;
}

errint_t
tree_check(struct tree *tree, const char *path)
{
    struct stat st;

    if (stat(path, &st) < 0)
        /* It may be DIRECTORY/STEM. */
        return errno == ENOENT ? check_named(tree, path)
                               : add_unchecked(tree, path, -errno, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return check_tree(tree, path);
    if (!S_ISREG(st.st_mode))
        return add_unchecked(tree, path, 0, "not a regular file");
    if (text_has_suffix(path, ".json")) /* an index */
        return check_named(tree, path);
    return container_has_suffix(path) ? check_container(tree, path, CONTAINER_NAMED)
                                      : check_file(tree, path);
}
