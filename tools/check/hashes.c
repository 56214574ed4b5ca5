/* SPDX-License-Identifier: Apache-2.0 */
#include "hashes.h"

#include "base/array.h"
#include "base/file.h"
#include "base/text.h"
#include "common/output.h"
#include "format/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASHES_MOST ((off_t)1 << 32) /* bytes of the file; room for 20 million tensors */

/* A tensor and its line: places in the text of all lines. */
struct line {
    size_t model; /* index into tree->models; of a file's lines, into keys */
    size_t name, name_length;
    size_t value, value_length;
};

/* All lines of a tree or of a file. */
struct lines {
    struct buffer text;
    struct line *all; /* sorted by key and name, each once */
    size_t count;
    const char **keys; /* of the models; terminated */
    struct buffer key_text; /* of a file's keys, which are in it */
    size_t key_count;
    bool failed;
};

static errint_t
out_of_memory(struct reason *reason)
{
    return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the hashes");
}

static void
lines_free(struct lines *lines)
{
    buffer_free(&lines->text);
    buffer_free(&lines->key_text);
    free(lines->all);
    free(lines->keys);
}

static struct line *
add_line(struct lines *lines)
{
    struct line *all = array_room(lines->all, lines->count, sizeof(*all));

    if (!all) {
        lines->failed = true;
        return NULL;
    }
    lines->all = all;
    return &lines->all[lines->count++];
}

static int
compare_names(const struct lines *a, const struct line *x, const struct lines *b,
              const struct line *y)
{
    int order = strcmp(a->keys[x->model], b->keys[y->model]);

    return order ? order
                 : text_compare(a->text.data + x->name, x->name_length, b->text.data + y->name,
                                y->name_length);
}

static int
compare_lines(const void *a, const void *b, void *arg)
{
    const struct lines *lines = arg;
    const struct line *x = a, *y = b;
    int order = compare_names(lines, x, lines, y);

    return order ? order
                 : text_compare(lines->text.data + x->value, x->value_length,
                                lines->text.data + y->value, y->value_length);
}

/* One line of several of a name, [begin, end) of the sorted lines, with each value once. */
static struct line
join_lines(struct lines *lines, size_t begin, size_t end)
{
    static const char between[] = " and ";
    struct line joined = lines->all[begin];
    struct buffer *text = &lines->text;
    size_t length = joined.value_length;

    for (size_t i = begin + 1; i < end; i++)
        if (compare_lines(&lines->all[i - 1], &lines->all[i], lines) != 0)
            length += sizeof(between) - 1 + lines->all[i].value_length;
    if (length == joined.value_length)
        return joined;
    buffer_reserve(text, length); /* what is added is in the text itself, which so stays */
    if (buffer_failed(text))
        return joined;
    joined.value = text->length;
    for (size_t i = begin; i < end; i++) {
        const struct line *line = &lines->all[i];

        if (i > begin && compare_lines(line - 1, line, lines) == 0)
            continue;
        if (i > begin)
            buffer_add_text(text, between);
        buffer_add(text, text->data + line->value, line->value_length);
    }
    joined.value_length = length;
    return joined;
}

/* Sorts; afterwards each name is there once: JSON has no two members of one name. */
static void
sort_lines(struct lines *lines)
{
    size_t kept = 0, end;

    if (!lines->count || lines->failed || buffer_failed(&lines->text))
        return;
    qsort_r(lines->all, lines->count, sizeof(*lines->all), compare_lines, lines);
    for (size_t i = 0; i < lines->count; i = end) {
        for (end = i + 1; end < lines->count &&
                          compare_names(lines, &lines->all[i], lines, &lines->all[end]) == 0;)
            end++;
        lines->all[kept++] = join_lines(lines, i, end);
    }
    lines->count = kept;
}

/* ---- what was hashed ---- */

static void
add_tensor(struct lines *lines, size_t model, const struct target *target, uint32_t tensor)
{
    const struct st_table *table = target->table;
    const struct st_tensor *t = &table->tensors[tensor];
    struct buffer *text = &lines->text;
    struct line *line = add_line(lines);
    char hash[SHA256_TEXT];
    size_t length;
    const char *dtype = st_dtype_text(table, t, &length);

    if (!line)
        return;
    *line = (struct line){.model = model, .name = text->length, .name_length = t->name_length};
    buffer_add(text, table->text + t->name, t->name_length);
    line->value = text->length;
    sha256_text(target->digests[tensor], hash);
    buffer_addf(text, "%s ", hash);
    buffer_add(text, dtype, length);
    buffer_add_text(text, " [");
    for (uint32_t d = 0; d < t->rank; d++) {
        buffer_add_text(text, d ? ", " : "");
        buffer_add_u64(text, table->dims[t->shape + d]);
    }
    buffer_add_char(text, ']');
    line->value_length = text->length - line->value;
}

static errint_t
lines_of_tree(const struct tree *tree, struct lines *lines, struct reason *reason)
{
    lines->keys = calloc(tree->model_count + 1, sizeof(*lines->keys));
    if (!lines->keys)
        return out_of_memory(reason);
    buffer_add_text(&lines->text, "");
    for (size_t m = 0; m < tree->model_count; m++) {
        const struct model *model = &tree->models[m];

        lines->keys[lines->key_count++] = model->key;
        for (size_t t = 0; t < model->target_count; t++) {
            const struct target *target = &tree->targets[model->targets[t]];

            for (uint32_t i = 0; i < target->table->count; i++)
                add_tensor(lines, m, target, i);
        }
    }
    sort_lines(lines);
    return lines->failed || buffer_failed(&lines->text) ? out_of_memory(reason) : 0;
}

/* ---- writing ---- */

static void
write_lines(const struct lines *lines, struct buffer *out)
{
    const char *before = NULL;

    buffer_add_char(out, '{');
    for (size_t i = 0; i < lines->count; i++) {
        const struct line *line = &lines->all[i];
        const char *key = lines->keys[line->model];

        if (!before || strcmp(before, key) != 0) {
            buffer_add_text(out, before ? "\n  },\n  " : "\n  ");
            buffer_add_json_string(out, key, strlen(key));
            buffer_add_text(out, ": {\n    ");
        } else {
            buffer_add_text(out, ",\n    ");
        }
        before = key;
        buffer_add_json_string(out, lines->text.data + line->name, line->name_length);
        buffer_add_text(out, ": ");
        buffer_add_json_string(out, lines->text.data + line->value, line->value_length);
    }
    buffer_add_text(out, before ? "\n  }\n}\n" : "}\n");
}

static errint_t
write_file(const struct lines *lines, const char *path, struct reason *reason)
{
    struct buffer text = BUFFER_INIT;
    errint_t error;

    write_lines(lines, &text);
    error = buffer_failed(&text) ? out_of_memory(reason) : output_write(path, &text, false, reason);
    buffer_free(&text);
    return error;
}

/* ---- comparing ---- */

static size_t
put_text(struct buffer *text, struct json_span raw, size_t *length)
{
    size_t at = text->length;

    buffer_reserve(text, raw.length + 1);
    if (!buffer_failed(text)) {
        *length = json_unescape(raw, text->data + at);
        text->length += *length;
    }
    return at;
}

static bool
read_model(struct lines *lines, struct json_reader *in)
{
    struct json_span name;

    if (json_type(in) != JSON_OBJECT)
        return false;
    json_enter(in);
    while (json_next_key(in, &name)) {
        struct line *line = add_line(lines);

        if (json_type(in) != JSON_STRING || !line)
            return false;
        line->model = lines->key_count - 1;
        line->name = put_text(&lines->text, name, &line->name_length);
        line->value = put_text(&lines->text, json_take_string(in), &line->value_length);
    }
    return true;
}

/* The keys are places in the text until nothing grows any more. */
static bool
read_models(struct lines *lines, struct json_reader in)
{
    struct json_span key;
    size_t length = 0;

    if (json_type(&in) != JSON_OBJECT)
        return false;
    json_enter(&in);
    while (json_next_key(&in, &key)) {
        const char **keys = array_room(lines->keys, lines->key_count, sizeof(*keys));

        if (!keys) {
            lines->failed = true;
            return false;
        }
        lines->keys = keys;
        keys[lines->key_count++] = (const char *)put_text(&lines->key_text, key, &length);
        buffer_add_char(&lines->key_text, '\0');
        if (!read_model(lines, &in))
            return false;
    }
    return true;
}

static errint_t
lines_of_text(const char *text, size_t length, struct lines *lines, struct reason *reason)
{
    struct json_fault fault;
    size_t at;
    bool read;

    if (!json_check_utf8(text, length, &at) || json_check(text, length, &fault))
        return reason_set(reason, -EBADMSG, "InvalidHashes", "no file of hashes: it is not JSON");
    buffer_add_text(&lines->text, "");
    read = read_models(lines, json_read(text, length));
    if (lines->failed || buffer_failed(&lines->text) || buffer_failed(&lines->key_text))
        return out_of_memory(reason);
    if (!read)
        return reason_set(reason, -EBADMSG, "InvalidHashes",
                          "no file of hashes: it is not {checkpoint: {tensor: hash}}");
    for (size_t i = 0; i < lines->key_count; i++)
        lines->keys[i] = lines->key_text.data + (size_t)lines->keys[i];
    sort_lines(lines);
    return buffer_failed(&lines->text) ? out_of_memory(reason) : 0;
}

static errint_t
lines_of_file(int fd, struct lines *lines, struct reason *reason)
{
    struct stat st;
    char *text;
    errint_t error;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > HASHES_MOST)
        return reason_set(reason, -EBADMSG, "InvalidHashes", "no file of hashes");
    text = malloc((size_t)st.st_size + 1);
    if (!text)
        return out_of_memory(reason);
    if (file_read(fd, text, (size_t)st.st_size, 0) != st.st_size)
        error = reason_set(reason, -EIO, "IoError", "it cannot be read");
    else
        error = lines_of_text(text, (size_t)st.st_size, lines, reason);
    free(text);
    return error;
}

static void
say(struct tree *tree, const struct lines *lines, const struct line *line, const char *what)
{
    char name[QUOTED_SIZE];

    findings_add(&tree->findings, strdup(lines->keys[line->model]), false, "tensor %s %s",
                 quoted(name, lines->text.data + line->name, line->name_length), what);
}

static bool
same_value(const struct lines *a, const struct line *x, const struct lines *b, const struct line *y)
{
    return x->value_length == y->value_length &&
           memcmp(a->text.data + x->value, b->text.data + y->value, x->value_length) == 0;
}

static void
compare(struct tree *tree, const struct lines *now, const struct lines *then)
{
    size_t i = 0, j = 0;

    while (i < now->count || j < then->count) {
        int order = i == now->count    ? 1
                    : j == then->count ? -1
                                       : compare_names(now, &now->all[i], then, &then->all[j]);

        if (order < 0)
            say(tree, now, &now->all[i], "was not there when the hashes were written");
        else if (order > 0)
            say(tree, then, &then->all[j], "was there when the hashes were written");
        else if (!same_value(now, &now->all[i], then, &then->all[j]))
            say(tree, now, &now->all[i], "is not what it was when the hashes were written");
        i += order <= 0;
        j += order >= 0;
    }
}

errint_t
hashes_compare(struct tree *tree, const char *path, bool *written, struct reason *reason)
{
    struct lines now = {.text = BUFFER_INIT, .key_text = BUFFER_INIT}, then = now;
    errint_t error = lines_of_tree(tree, &now, reason);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    *written = fd < 0 && errno == ENOENT;
    if (!error && fd < 0 && !*written)
        error = reason_set(reason, -errno, "IoError", "%s", strerror(errno));
    if (!error)
        error = *written ? write_file(&now, path, reason) : lines_of_file(fd, &then, reason);
    if (!error && !*written)
        compare(tree, &now, &then);
    if (fd >= 0)
        close(fd);
    lines_free(&now);
    lines_free(&then);
    return error;
}
