/* SPDX-License-Identifier: Apache-2.0 */
#include "hashes.h"

#include "base/array.h"
#include "base/file.h"
#include "base/text.h"
#include "common/output.h"
#include "format/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASHES_MOST ((off_t)1 << 32) /* bytes of the file: enough for 20 million tensors */

struct tensor_hash {
    const char *key; /* of the checkpoint */
    const char *name; /* of the tensor; may contain NUL */
    size_t name_length;
    char *value; /* hash, dtype and shape; malloc'ed */
};

/* The hashes of a tree or of a file. */
struct hash_list {
    struct tensor_hash *all; /* sorted by key and name */
    size_t count;
    char *text; /* of a file: contains keys and names */
};

static void
hash_list_free(struct hash_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->all[i].value);
    free(list->all);
    free(list->text);
}

static int
compare_hash_names(const struct tensor_hash *a, const struct tensor_hash *b)
{
    int order = strcmp(a->key, b->key);

    return order ? order : text_compare(a->name, a->name_length, b->name, b->name_length);
}

static int
compare_hashes(const void *a, const void *b)
{
    const struct tensor_hash *x = a, *y = b;
    int order = compare_hash_names(x, y);

    return order ? order : strcmp(x->value, y->value);
}

/* Sorts the list. Joins the different hashes of a tensor that is in several shards, because names
 * are unique in a JSON object. */
static errint_t
hash_list_finish(struct hash_list *list, struct reason *reason)
{
    size_t kept = 0;
    errint_t error = 0;

    if (list->count > 0)
        qsort(list->all, list->count, sizeof(*list->all), compare_hashes);
    for (size_t i = 0; i < list->count; i++) {
        struct tensor_hash *hash = &list->all[i], *last = &list->all[kept ? kept - 1 : 0];
        size_t length = strlen(hash->value), last_length = strlen(last->value);
        char *joined = NULL;

        if (kept == 0 || compare_hash_names(last, hash) != 0) {
            list->all[kept++] = *hash;
            continue;
        }
        if ((last_length < length ||
             strcmp(last->value + last_length - length, hash->value) != 0) &&
            asprintf(&joined, "%s and %s", last->value, hash->value) < 0)
            error = -ENOMEM;
        else if (joined) {
            free(last->value);
            last->value = joined;
        }
        free(hash->value);
    }
    list->count = kept;
    return error ? reason_no_memory(reason) : 0;
}

/* ---- the tree ---- */

static bool
add_tensor_hash(struct hash_list *list, const char *key, const struct target *target,
                uint32_t tensor)
{
    const struct st_table *table = target->table;
    const struct st_tensor *t = &table->tensors[tensor];
    struct buffer value = BUFFER_INIT;
    char hash[SHA256_TEXT];
    size_t length;
    const char *dtype = st_dtype_text(table, t, &length);

    sha256_text(target->digests[tensor], hash);
    buffer_addf(&value, "%s ", hash);
    buffer_add(&value, dtype, length);
    buffer_add_text(&value, " [");
    for (uint32_t d = 0; d < t->rank; d++) {
        buffer_add_text(&value, d ? ", " : "");
        buffer_add_u64(&value, table->dims[t->shape + d]);
    }
    buffer_add_char(&value, ']');
    if (!buffer_failed(&value) &&
        array_add(list->all, list->count,
                  (struct tensor_hash){key, table->text + t->name, t->name_length, value.data}))
        return true;
    buffer_free(&value);
    return false;
}

static errint_t
hash_list_of_tree(const struct tree *tree, struct hash_list *list, struct reason *reason)
{
    for (size_t m = 0; m < tree->model_count; m++) {
        const struct model *model = &tree->models[m];

        for (size_t t = 0; t < model->target_count; t++) {
            const struct target *target = &tree->targets[model->targets[t]];

            for (uint32_t i = 0; i < target->table->count; i++)
                if (!add_tensor_hash(list, model->key, target, i))
                    return reason_no_memory(reason);
        }
    }
    return hash_list_finish(list, reason);
}

/* ---- writing the file ---- */

static errint_t
write_hashes(const struct hash_list *list, const char *path, struct reason *reason)
{
    struct buffer out = BUFFER_INIT;
    const char *key = NULL;
    errint_t error;

    buffer_add_char(&out, '{');
    for (size_t i = 0; i < list->count; i++) {
        const struct tensor_hash *hash = &list->all[i];

        if (!key || strcmp(key, hash->key) != 0) {
            buffer_add_text(&out, key ? "\n  },\n  " : "\n  ");
            buffer_add_json_string(&out, hash->key, strlen(hash->key));
            buffer_add_text(&out, ": {\n    ");
        } else {
            buffer_add_text(&out, ",\n    ");
        }
        key = hash->key;
        buffer_add_json_string(&out, hash->name, hash->name_length);
        buffer_add_text(&out, ": ");
        buffer_add_json_string(&out, hash->value, strlen(hash->value));
    }
    buffer_add_text(&out, key ? "\n  }\n}\n" : "}\n");
    error =
        buffer_failed(&out) ? reason_no_memory(reason) : output_write(path, &out, false, reason);
    buffer_free(&out);
    return error;
}

/* ---- reading the file ---- */

/* Appends a string and a NUL to `*end`. */
static char *
append_string(char **end, struct json_span raw, size_t *length)
{
    char *text = *end;

    *length = json_unescape(raw, text);
    text[*length] = '\0';
    *end += *length + 1;
    return text;
}

/* Reads {key: {name: value}} from valid JSON. Stores keys and names at `end`, which has room for as
 * many bytes as the text: unescaped strings are never longer. -EBADMSG: it is another value. */
static errint_t
read_hashes(struct hash_list *list, struct json_reader in, char *end)
{
    struct json_span raw;
    size_t length;

    if (json_type(&in) != JSON_OBJECT)
        return -EBADMSG;
    json_enter(&in);
    while (json_next_key(&in, &raw)) {
        const char *key = append_string(&end, raw, &length);

        if (json_type(&in) != JSON_OBJECT)
            return -EBADMSG;
        json_enter(&in);
        while (json_next_key(&in, &raw)) {
            struct tensor_hash hash = {.key = key};
            char *value;

            hash.name = append_string(&end, raw, &hash.name_length);
            if (json_type(&in) != JSON_STRING)
                return -EBADMSG;
            value = end; /* is overwritten by the next name */
            hash.value = strdup(append_string(&value, json_take_string(&in), &length));
            if (!hash.value || !array_add(list->all, list->count, hash)) {
                free(hash.value);
                return -ENOMEM;
            }
        }
    }
    return 0;
}

static errint_t
hash_list_of_text(const char *text, size_t length, struct hash_list *list, struct reason *reason)
{
    struct json_fault fault;
    errint_t error;
    size_t at;

    if (!json_check_utf8(text, length, &at) || json_check_names(text, length, &fault))
        return reason_set(reason, -EBADMSG, "InvalidHashes", "not a file of hashes: invalid JSON");
    list->text = malloc(length);
    error = list->text ? read_hashes(list, json_read(text, length), list->text) : -ENOMEM;
    if (error == -ENOMEM)
        return reason_no_memory(reason);
    if (error)
        return reason_set(reason, error, "InvalidHashes",
                          "not a file of hashes (expected {checkpoint: {tensor: hash}})");
    return hash_list_finish(list, reason);
}

static errint_t
hash_list_of_file(int fd, struct hash_list *list, struct reason *reason)
{
    struct stat st;
    errint_t error;
    char *text;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > HASHES_MOST)
        return reason_set(reason, -EBADMSG, "InvalidHashes", "not a file of hashes");
    text = malloc((size_t)st.st_size + 1);
    if (!text)
        return reason_no_memory(reason);
    if (file_read(fd, text, (size_t)st.st_size, 0) != st.st_size)
        error = reason_set(reason, -EIO, "IoError", "cannot be read");
    else
        error = hash_list_of_text(text, (size_t)st.st_size, list, reason);
    free(text);
    return error;
}

/* ---- comparing ---- */

static void
add_difference(struct tree *tree, const struct tensor_hash *hash, const char *what)
{
    char name[QUOTED_SIZE];

    findings_add(&tree->findings, strdup(hash->key), false, "tensor %s %s the hashes were written",
                 quoted(name, hash->name, hash->name_length), what);
}

static void
compare_hash_lists(struct tree *tree, const struct hash_list *now, const struct hash_list *then)
{
    size_t i = 0, j = 0;

    while (i < now->count || j < then->count) {
        int order = i == now->count    ? 1
                    : j == then->count ? -1
                                       : compare_hash_names(&now->all[i], &then->all[j]);

        if (order < 0)
            add_difference(tree, &now->all[i], "did not exist when");
        else if (order > 0)
            add_difference(tree, &then->all[j], "is missing, but existed when");
        else if (strcmp(now->all[i].value, then->all[j].value) != 0)
            add_difference(tree, &now->all[i], "has changed since");
        i += order <= 0;
        j += order >= 0;
    }
}

errint_t
hashes_compare(struct tree *tree, const char *path, bool *written, struct reason *reason)
{
    struct hash_list now = {0}, then = {0};
    errint_t error = hash_list_of_tree(tree, &now, reason);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    *written = fd < 0 && errno == ENOENT;
    if (!error && fd < 0 && !*written)
        error = reason_errno(reason, -errno, NULL);
    if (!error)
        error = *written ? write_hashes(&now, path, reason) : hash_list_of_file(fd, &then, reason);
    if (!error && !*written)
        compare_hash_lists(tree, &now, &then);
    if (fd >= 0)
        close(fd);
    hash_list_free(&now);
    hash_list_free(&then);
    return error;
}
