/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_source.h. */
#include "format/torch_source.h"

#include "base/text.h"
#include "format/bytes.h"
#include "format/torch_dtype.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_READ = 16384, /* bytes of the first read of the older format */
    MAGIC_BYTES_MAX = 64, /* most bytes of its first pickle */
    LOCAL_HEADER_READ = 512, /* bytes of readahead at each local header */
};

#define LOCAL_HEADER_MAGIC "PK\003\004"
#define DATA_PKL "data.pkl"

static errint_t
out_of_memory_for_pickle(struct reason *reason)
{
    return reason_set(reason, -ENOMEM, "OutOfMemory", "no memory for the pickle");
}

/* Reads the pickle with the tensors. */
static errint_t
parse_root(const char *text, size_t length, struct pickle *pickle, struct reason *reason)
{
    return pickle_read(text, length, length * TORCH_PICKLE_FACTOR + TORCH_SLACK, false, pickle,
                       reason);
}

/* ---- zip archives ---- */

/* Finds the only member DIRECTORY/data.pkl. Its directory is the prefix of all records. */
static errint_t
find_prefix(struct torch_source *source, struct reason *reason)
{
    const struct zip *zip = &source->zip;
    const size_t suffix = sizeof(DATA_PKL) - 1;
    bool found = false;

    for (uint32_t i = 0; i < zip->count; i++) {
        const char *name = zip->directory + zip->members[i].name;
        size_t length = zip->members[i].name_length;

        if (length <= suffix + 1 || memcmp(name + length - suffix, DATA_PKL, suffix) != 0 ||
            memchr(name, '/', length) != name + length - suffix - 1)
            continue;
        if (found)
            return reason_set(reason, -EBADMSG, "TorchRecords",
                              "the archive has two members " DATA_PKL);
        if (length - suffix >= sizeof(source->prefix))
            return reason_set(reason, -EBADMSG, "TorchRecords",
                              "the directory of the archive's records has a name of over %zu bytes",
                              sizeof(source->prefix) - 2);
        found = true;
        source->prefix_length = length - suffix;
        memcpy(source->prefix, name, source->prefix_length);
    }
    return found ? 0
                 : reason_set(reason, -ENOMSG, "NotTorch",
                              "a zip archive without " DATA_PKL ": not of torch.save()");
}

/* The member PREFIX + `folder` + `key`, or NULL. */
static struct zip_member *
find_record(const struct torch_source *source, const char *folder, const char *key, size_t length)
{
    char name[1024];
    size_t folder_length = strlen(folder), before = source->prefix_length + folder_length;

    if (length > sizeof(name) - before)
        return NULL;
    memcpy(name, source->prefix, source->prefix_length); /* it may contain NUL */
    memcpy(name + source->prefix_length, folder, folder_length);
    memcpy(name + before, key, length);
    return zip_find(&source->zip, name, before + length);
}

static bool
is_torchscript(const struct torch_source *source)
{
    static const char code[] = "code/";

    if (find_record(source, "", "constants.pkl", 13))
        return true;
    for (uint32_t i = 0; i < source->zip.count; i++) {
        const struct zip_member *member = &source->zip.members[i];

        if (member->name_length >= source->prefix_length + sizeof(code) - 1 &&
            memcmp(source->zip.directory + member->name, source->prefix, source->prefix_length) ==
                0 &&
            memcmp(source->zip.directory + member->name + source->prefix_length, code,
                   sizeof(code) - 1) == 0)
            return true;
    }
    return false;
}

static errint_t
refuse_byte_order(struct reason *reason)
{
    return reason_set(reason, -EBADMSG, "TorchByteOrder",
                      "its byte order is not little-endian, the only one that is read");
}

/* Archives of PyTorch before 2.0 have no record "byteorder" and are little-endian. */
static errint_t
check_byte_order(struct torch_source *source, struct reason *reason)
{
    struct zip_member *member = find_record(source, "", "byteorder", 9);
    char order[6];
    errint_t error;

    if (!member)
        return 0;
    error = zip_locate(&source->zip, member, reason);
    if (!error && member->size == sizeof(order))
        error = bytes_read_at(source->fd, order, sizeof(order), member->data, reason);
    if (error)
        return error;
    if (member->size == sizeof(order) && memcmp(order, "little", sizeof(order)) == 0)
        return 0;
    return refuse_byte_order(reason);
}

static errint_t
read_data_pkl(struct torch_source *source, struct reason *reason)
{
    struct zip_member *member = find_record(source, "", DATA_PKL, sizeof(DATA_PKL) - 1);
    errint_t error = zip_locate(&source->zip, member, reason);

    if (error)
        return error;
    if (member->size > TORCH_MAX_PICKLE)
        return reason_set(reason, -EBADMSG, "TorchPickle",
                          DATA_PKL " has %" PRIu64 " bytes, at most %" PRIu64 " are read",
                          member->size, TORCH_MAX_PICKLE);
    error = source->admit(source->admit_arg, member->size * TORCH_PARSE_FACTOR + TORCH_PARSE_LEAST,
                          reason);
    if (error)
        return error;
    source->text_length = member->size;
    source->text = malloc(member->size + 1); /* never of size 0 */
    if (!source->text)
        return out_of_memory_for_pickle(reason);
    error = bytes_read_at(source->fd, source->text, member->size, member->data, reason);
    if (!error)
        error = parse_root(source->text, source->text_length, &source->pickle, reason);
    return error == -ENODATA ? -EBADMSG : error;
}

/* Starts readahead of all local headers, so that their latencies overlap. */
static void
read_ahead_local_headers(const struct torch_source *source)
{
    for (uint32_t i = 0; i < source->zip.count; i++)
        posix_fadvise(source->fd, (off_t)source->zip.members[i].header, LOCAL_HEADER_READ,
                      POSIX_FADV_WILLNEED);
}

static errint_t
open_archive(struct torch_source *source, struct reason *reason)
{
    uint64_t start, length, count;
    errint_t error =
        zip_find_directory(source->fd, source->file_size, &start, &length, &count, reason);

    if (!error)
        error = source->admit(source->admit_arg, length * ZIP_FACTOR, reason);
    if (!error)
        error = zip_read(source->fd, start, length, count, &source->zip, reason);
    if (!error)
        error = find_prefix(source, reason);
    if (!error && is_torchscript(source))
        error = reason_set(reason, -ENOMSG, "TorchScript", "a TorchScript archive");
    if (error)
        return error;
    read_ahead_local_headers(source);
    error = check_byte_order(source, reason);
    return error ? error : read_data_pkl(source, reason);
}

/* ---- the older format ---- */

/*
 * Five pickles: a magic number, a version, a dictionary that describes the system, the tensors, and
 * a list of storage keys. The storages follow in the order of that list, each after its number of
 * elements (8 bytes).
 */

static const unsigned char legacy_magic[] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9,
                                             0x20, 0x6a, 0xa8, 0x50, 0x19};
#define LEGACY_VERSION 1001

/* Whether the first pickle is the magic number, which has 10 bytes. */
static bool
is_legacy_magic(const struct pickle *pickle)
{
    const struct pickle_node *node = &pickle->nodes[pickle->root & ~PICKLE_NUMBER_BIT];

    return pickle_kind_of(pickle, pickle->root) == PICKLE_LONG && node->b == sizeof(legacy_magic) &&
           memcmp(pickle->text + node->a, legacy_magic, sizeof(legacy_magic)) == 0;
}

/* Whether the dictionary has the value False for `key`. */
static bool
is_false(const struct pickle *pickle, const char *key)
{
    const char *text;
    size_t length;

    if (pickle_kind_of(pickle, pickle->root) != PICKLE_DICT)
        return false;
    for (uint32_t i = pickle->nodes[pickle->root].a; i; i = pickle->entries[i].next)
        if (pickle_take_string(pickle, pickle->entries[i].key, &text, &length) &&
            length == strlen(key) && memcmp(text, key, length) == 0)
            return pickle->entries[i].value == PICKLE_VALUE_FALSE;
    return false;
}

/* Whether the text begins with the pickle of the magic number; sets the length of the pickle. */
static bool
read_legacy_magic(const char *text, size_t have, size_t *length)
{
    struct pickle pickle;
    bool is_magic;

    if (pickle_read(text, have < MAGIC_BYTES_MAX ? have : MAGIC_BYTES_MAX, TORCH_SLACK, false,
                    &pickle, NULL))
        return false;
    is_magic = is_legacy_magic(&pickle);
    *length = pickle.length;
    pickle_free(&pickle);
    return is_magic;
}

/* Reads the pickles before that of the tensors, and sets *at to the offset of that one. */
static errint_t
read_legacy_head(const struct torch_source *source, size_t have, size_t *at, struct reason *reason)
{
    errint_t error = 0;

    if (!read_legacy_magic(source->text, have, at))
        return reason_set(reason, -ENOMSG, "NotTorch",
                          "neither a zip archive nor the older format of torch.save()");
    for (unsigned i = 0; !error && i < 2; i++) {
        struct pickle pickle;
        uint64_t version;

        error = pickle_read(source->text + *at, have - *at, TORCH_SLACK, false, &pickle, reason);
        if (error)
            break;
        if (i == 0 &&
            (!pickle_take_number(&pickle, pickle.root, &version) || version != LEGACY_VERSION))
            error = reason_set(reason, -EBADMSG, "TorchVersion",
                               "the version of its format is not %d", LEGACY_VERSION);
        if (i == 1 && is_false(&pickle, "little_endian"))
            error = refuse_byte_order(reason);
        *at += pickle.length;
        pickle_free(&pickle);
    }
    return error;
}

static int
compare_storages(const void *a, const void *b, void *pickle)
{
    const struct torch_storage *x = a, *y = b;
    const char *x_text = "", *y_text = "";
    size_t x_length = 0, y_length = 0;

    pickle_take_string(pickle, x->key, &x_text, &x_length);
    pickle_take_string(pickle, y->key, &y_text, &y_length);
    return text_compare(x_text, x_length, y_text, y_length);
}

static struct torch_storage *
find_storage(const struct torch_source *source, const char *key, size_t length)
{
    uint32_t low = 0, high = source->storage_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const char *text = "";
        size_t text_length = 0;
        int order;

        pickle_take_string(&source->pickle, source->storages[middle].key, &text, &text_length);
        order = text_compare(text, text_length, key, length);
        if (order == 0)
            return &source->storages[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Collects the storages that tensors refer to, sorted by key. */
static errint_t
collect_storages(struct torch_source *source, struct reason *reason)
{
    const struct pickle *pickle = &source->pickle;
    uint32_t count = 0, kept = 0;

    for (uint32_t i = 0; i < pickle->node_count; i++)
        count += pickle->nodes[i].kind == PICKLE_PERSISTENT;
    source->storages = calloc((size_t)count + 1, sizeof(*source->storages));
    if (!source->storages)
        return out_of_memory_for_pickle(reason);
    for (uint32_t i = 0; i < pickle->node_count; i++) {
        const pickle_value id = pickle->nodes[i].a;
        struct torch_storage storage = {0};
        struct torch_element element;

        if (pickle->nodes[i].kind != PICKLE_PERSISTENT)
            continue;
        storage.key = pickle_tuple_item(pickle, id, 2);
        if (pickle_kind_of(pickle, storage.key) != PICKLE_STRING ||
            !pickle_take_number(pickle, pickle_tuple_item(pickle, id, 4), &storage.elements))
            continue;
        if (!torch_storage_class(pickle, pickle_tuple_item(pickle, id, 1), &element))
            continue;
        storage.element = element.bytes;
        source->storages[source->storage_count++] = storage;
    }
    qsort_r(source->storages, source->storage_count, sizeof(*source->storages), compare_storages,
            &source->pickle);
    for (uint32_t i = 0; i < source->storage_count; i++) {
        struct torch_storage *last = kept ? &source->storages[kept - 1] : NULL;

        if (last && compare_storages(last, &source->storages[i], &source->pickle) == 0) {
            if (last->element != source->storages[i].element ||
                last->elements != source->storages[i].elements)
                return reason_set(reason, -EBADMSG, "TorchStorage",
                                  "two descriptions of one storage differ");
            continue;
        }
        source->storages[kept++] = source->storages[i];
    }
    source->storage_count = kept;
    return 0;
}

/* Sets the offsets of the listed storages, which are stored one after another from `at` on. */
static errint_t
locate_storages(struct torch_source *source, const struct pickle *keys, uint64_t at,
                struct reason *reason)
{
    if (pickle_kind_of(keys, keys->root) != PICKLE_LIST)
        return reason_set(reason, -EBADMSG, "TorchStorage", "the keys of the storages are no list");
    for (uint32_t i = keys->nodes[keys->root].a; i; i = keys->entries[i].next) {
        struct torch_storage *storage = NULL;
        unsigned char elements[8];
        char shown[QUOTED_SIZE];
        const char *key = "";
        size_t length = 0;
        uint64_t bytes;
        errint_t error;

        if (pickle_take_string(keys, keys->entries[i].value, &key, &length))
            storage = find_storage(source, key, length);
        if (!storage || storage->offset)
            return reason_set(reason, -EBADMSG, "TorchStorage",
                              "storage \"%s\" is listed, but no tensor refers to it, or twice",
                              quoted(shown, key, length));
        if (at > source->file_size || source->file_size - at < sizeof(elements))
            return reason_set(reason, -EBADMSG, "TorchStorage",
                              "the file ends before storage \"%s\"", quoted(shown, key, length));
        error = bytes_read_at(source->fd, elements, sizeof(elements), at, reason);
        if (error)
            return error;
        at += sizeof(elements);
        if (bytes_u64(elements) != storage->elements)
            return reason_set(reason, -EBADMSG, "TorchStorage",
                              "storage \"%s\" has %" PRIu64
                              " elements in the file, expected %" PRIu64,
                              quoted(shown, key, length), bytes_u64(elements), storage->elements);
        if (__builtin_mul_overflow(storage->elements, (uint64_t)storage->element, &bytes) ||
            bytes > source->file_size - at)
            return reason_set(reason, -EBADMSG, "TorchStorage",
                              "storage \"%s\" of %" PRIu64 " elements ends after the file",
                              quoted(shown, key, length), storage->elements);
        storage->offset = at;
        at += bytes;
    }
    return 0;
}

/* Reads the pickles, if they end within the first `have` bytes; -ENODATA if they do not. */
static errint_t
read_legacy(struct torch_source *source, size_t have, struct reason *reason)
{
    struct pickle keys = {0};
    size_t at = 0;
    errint_t error = read_legacy_head(source, have, &at, reason);

    if (!error)
        error = parse_root(source->text + at, have - at, &source->pickle, reason);
    if (error)
        return error;
    at += source->pickle.length;
    error = pickle_read(source->text + at, have - at, have * TORCH_TABLE_FACTOR + TORCH_SLACK, true,
                        &keys, reason);
    if (!error)
        error = collect_storages(source, reason);
    if (!error)
        error = locate_storages(source, &keys, at + keys.length, reason);
    pickle_free(&keys);
    return error;
}

static void
drop_legacy(struct torch_source *source)
{
    pickle_free(&source->pickle);
    free(source->storages);
    source->storages = NULL;
    source->storage_count = 0;
    if (source->text)
        explicit_bzero(source->text, source->text_length); /* weights may follow the pickles */
    free(source->text);
    source->text = NULL;
}

/* The length of the pickles is not known before they are read: doubles the text until they fit. */
static errint_t
open_legacy(struct torch_source *source, struct reason *reason)
{
    uint64_t have = FIRST_READ, admitted = 0;
    errint_t error;

    for (;;) {
        uint64_t bytes;

        if (have > source->file_size)
            have = source->file_size;
        bytes = have * TORCH_PARSE_FACTOR + TORCH_PARSE_LEAST;
        error = source->admit(source->admit_arg, bytes - admitted, reason);
        if (error)
            return error;
        admitted = bytes;
        source->text_length = have;
        source->text = malloc(have + 1); /* never of size 0 */
        if (!source->text)
            return out_of_memory_for_pickle(reason);
        error = bytes_read_at(source->fd, source->text, have, 0, reason);
        if (!error)
            error = read_legacy(source, have, reason);
        if (error != -ENODATA)
            return error;
        drop_legacy(source);
        if (have == source->file_size || have >= TORCH_MAX_PICKLE)
            return -EBADMSG;
        have *= 2;
    }
}

/* ---- both ---- */

errint_t
torch_source_open(int fd, uint64_t file_size, torch_admit *admit, void *arg,
                  struct torch_source *source, struct reason *reason)
{
    char magic[4] = "";
    errint_t error;

    *source =
        (struct torch_source){.fd = fd, .file_size = file_size, .admit = admit, .admit_arg = arg};
    if (file_size < sizeof(magic))
        return reason_set(reason, -ENOMSG, "NotTorch", "the file has %" PRIu64 " bytes", file_size);
    error = bytes_read_at(fd, magic, sizeof(magic), 0, reason);
    if (error)
        return error;
    source->is_zip = memcmp(magic, LOCAL_HEADER_MAGIC, sizeof(magic)) == 0;
    if (!source->is_zip && magic[0] != '\200')
        return reason_set(reason, -ENOMSG, "NotTorch",
                          "neither a zip archive nor the older format of torch.save()");
    error = source->is_zip ? open_archive(source, reason) : open_legacy(source, reason);
    if (error)
        torch_source_close(source);
    return error;
}

void
torch_source_close(struct torch_source *source)
{
    drop_legacy(source);
    zip_free(&source->zip);
}

errint_t
torch_source_find(struct torch_source *source, const char *key, size_t key_length, uint64_t *offset,
                  uint64_t *bytes, struct reason *reason)
{
    const struct torch_storage *storage;
    struct zip_member *member;
    char shown[QUOTED_SIZE];

    if (source->is_zip) {
        errint_t error;

        member = find_record(source, "data/", key, key_length);
        if (!member)
            return reason_set(reason, -EBADMSG, "TorchStorage",
                              "the archive has no storage \"%.80s\"",
                              quoted(shown, key, key_length));
        error = zip_locate(&source->zip, member, reason);
        *offset = member->data;
        *bytes = member->size;
        return error;
    }
    storage = find_storage(source, key, key_length);
    if (!storage || !storage->offset)
        return reason_set(reason, -EBADMSG, "TorchStorage", "the file has no storage \"%.80s\"",
                          quoted(shown, key, key_length));
    *offset = storage->offset;
    *bytes = storage->elements * storage->element;
    return 0;
}
