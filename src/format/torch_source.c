/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_source.h. */
#include "format/torch_source.h"

#include "base/text.h"
#include "format/bytes.h"
#include "format/torch_globals.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_READ = 16384, /* bytes of the first read of the older format */
    MAGIC_BYTES_MAX = 64, /* most bytes of its first pickle */
    PICKLE_PROTOCOL_MAX = 5, /* highest protocol of Python */
};

#define LOCAL_HEADER_MAGIC "PK\003\004"
#define DATA_PKL "data.pkl"

#define refuse_storage(reason, ...) reason_set(reason, -EBADMSG, "TorchStorage", __VA_ARGS__)

/* Lists the imports of a pickle. `error`: the result of reading it, which is returned unless
 * listing fails. */
static errint_t
list_imports(const struct torch_source *source, const struct pickle *pickle, errint_t error,
             struct reason *reason)
{
    errint_t listing = torch_imports_add(source->imports, pickle, reason);

    source->imports->is_incomplete |= error == -EBADMSG && pickle->root == PICKLE_VALUE_MARK;
    return listing ? listing : error;
}

/* Reads a pickle and lists its imports. The caller frees the pickle, on errors too. */
static errint_t
read_listed(const struct torch_source *source, const char *text, size_t length, size_t memory,
            struct pickle *pickle, struct reason *reason)
{
    errint_t error = pickle_read(text, length, memory, pickle, reason);

    return source->imports ? list_imports(source, pickle, error, reason) : error;
}

/* Reads the pickle with the tensors. */
static errint_t
parse_root(struct torch_source *source, const char *text, size_t length, struct reason *reason)
{
    return read_listed(source, text, length, length * TORCH_PICKLE_FACTOR + TORCH_SLACK,
                       &source->pickle, reason);
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
                              "the name of the archive's top-level directory exceeds %zu bytes",
                              sizeof(source->prefix) - 2);
        found = true;
        source->prefix_length = length - suffix;
        memcpy(source->prefix, name, source->prefix_length);
    }
    return found ? 0
                 : reason_set(reason, -ENOMSG, "NotTorch",
                              "a zip archive without " DATA_PKL ", so not written by torch.save()");
}

/* The member PREFIX + `folder` + `key`, or NULL. */
static struct zip_member *
find_record(const struct torch_source *source, const char *folder, const char *key, size_t length)
{
    char name[1024];
    size_t folder_length = strlen(folder), before = source->prefix_length + folder_length;

    if (length > sizeof(name) - before)
        return NULL;
    memcpy(name, source->prefix, source->prefix_length);
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
    return reason_set(
        reason, -EBADMSG, "TorchByteOrder",
        "its byte order is not little-endian; only little-endian files are supported");
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
    error = st_admit_bytes(source->admit, source->admit_arg,
                           member->size * TORCH_PARSE_FACTOR + TORCH_PARSE_LEAST, reason);
    if (error)
        return error;
    source->text_length = member->size;
    source->text = malloc(member->size + 1); /* never of size 0 */
    if (!source->text)
        return reason_no_memory(reason);
    error = bytes_read_at(source->fd, source->text, member->size, member->data, reason);
    if (!error)
        error = parse_root(source, source->text, source->text_length, reason);
    return error == -ENODATA ? -EBADMSG : error;
}

static errint_t
open_archive(struct torch_source *source, struct reason *reason)
{
    struct zip_end end = {0};
    errint_t error = zip_find_directory(source->fd, source->file_size, &end, reason);

    if (!error)
        error = st_admit_bytes(source->admit, source->admit_arg, end.length * ZIP_FACTOR, reason);
    if (!error)
        error = zip_read(source->fd, &end, &source->zip, reason);
    if (!error)
        error = find_prefix(source, reason);
    if (!error && is_torchscript(source))
        error = reason_set(reason, -ENOMSG, "TorchScript", "a TorchScript archive");
    if (error)
        return error;
    error = read_data_pkl(source, reason);
    return error ? error : check_byte_order(source, reason);
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
#define LEGACY_PICKLES 5

/* Whether the first pickle is the magic number, which has 10 bytes. */
static bool
is_legacy_magic(const struct pickle *pickle)
{
    const struct pickle_node *node = &pickle->nodes[pickle->root & ~PICKLE_NUMBER_BIT];

    return pickle_kind_of(pickle, pickle->root) == PICKLE_LONG && node->b == sizeof(legacy_magic) &&
           memcmp(pickle->text + node->a, legacy_magic, sizeof(legacy_magic)) == 0;
}

static errint_t
refuse_other_file(struct reason *reason)
{
    return reason_set(reason, -ENOMSG, "NotTorch",
                      "neither a zip archive nor the older format of torch.save()");
}

/* Checks that the text begins with the pickle of the magic number; sets the length of the
 * pickle. */
static errint_t
read_legacy_magic(const struct torch_source *source, size_t have, size_t *length,
                  struct reason *reason)
{
    struct pickle pickle;
    errint_t error = pickle_read(source->text, have < MAGIC_BYTES_MAX ? have : MAGIC_BYTES_MAX,
                                 TORCH_SLACK, &pickle, reason);

    if (error != -ENOMEM && (error || !is_legacy_magic(&pickle)))
        error = refuse_other_file(reason);
    else if (!error && source->imports)
        error = torch_imports_add(source->imports, &pickle, reason);
    *length = pickle.length;
    pickle_free(&pickle);
    return error;
}

/* Reads the pickles before that of the tensors, and sets *at to the offset of that one. */
static errint_t
read_legacy_head(const struct torch_source *source, size_t have, size_t *at, bool *is_big_endian,
                 struct reason *reason)
{
    errint_t error = read_legacy_magic(source, have, at, reason);

    for (unsigned i = 0; !error && i < 2; i++) {
        struct pickle pickle;
        uint64_t version;
        uint32_t entry;

        error = read_listed(source, source->text + *at, have - *at, TORCH_SLACK, &pickle, reason);
        if (!error && i == 0 &&
            (!pickle_get_number(&pickle, pickle.root, &version) || version != LEGACY_VERSION))
            error = reason_set(reason, -EBADMSG, "TorchVersion",
                               "the version of its format is not %d", LEGACY_VERSION);
        if (!error && i == 1) {
            entry = pickle_find_key(&pickle, pickle.root, "little_endian");
            *is_big_endian = entry && pickle.entries[entry].value == PICKLE_VALUE_FALSE;
        }
        *at += pickle.length;
        pickle_free(&pickle);
    }
    return error;
}

static int
compare_key_strings(const struct pickle *pickle, pickle_value a, pickle_value b)
{
    const char *a_text = "", *b_text = "";
    size_t a_length = 0, b_length = 0;

    pickle_get_string(pickle, a, &a_text, &a_length);
    pickle_get_string(pickle, b, &b_text, &b_length);
    return text_compare(a_text, a_length, b_text, b_length);
}

static int
compare_storages(const void *a, const void *b, void *pickle)
{
    const struct torch_storage *x = a, *y = b;

    return compare_key_strings(pickle, x->key, y->key);
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

        pickle_get_string(&source->pickle, source->storages[middle].key, &text, &text_length);
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

static bool
is_storage_key(const struct pickle *pickle, pickle_value key)
{
    const char *text;
    size_t length;

    return pickle_get_string(pickle, key, &text, &length) && length <= TORCH_KEY_MAX;
}

bool
torch_is_storage_id(const struct pickle *pickle, pickle_value id)
{
    const char *text;
    size_t length;

    if (pickle_kind_of(pickle, id) != PICKLE_TUPLE)
        return false;
    return !pickle_get_string(pickle, pickle_tuple_item(pickle, id, 0), &text, &length) ||
           text_is(text, length, "storage");
}

/* Reads the persistent ID of a storage; see read_storage() in torch.c. `view` has the key OPAQUE if
 * the ID is not of a view. False: it is malformed. */
static bool
read_storage_id(const struct pickle *pickle, pickle_value id, struct torch_storage *storage,
                struct torch_storage *view)
{
    const pickle_value view_id = pickle_tuple_item(pickle, id, 5);
    struct torch_element element;

    *storage = (struct torch_storage){.view_of = PICKLE_VALUE_OPAQUE};
    storage->key = pickle_tuple_item(pickle, id, 2);
    if (!is_storage_key(pickle, storage->key) ||
        !pickle_get_number(pickle, pickle_tuple_item(pickle, id, 4), &storage->elements) ||
        !torch_storage_class(pickle, pickle_tuple_item(pickle, id, 1), &element))
        return false;
    storage->dtype = element.dtype;
    storage->element = element.bytes;
    *view = *storage;
    view->key = PICKLE_VALUE_OPAQUE;
    if (pickle_tuple_length(pickle, id) < 6 || view_id == PICKLE_VALUE_NONE)
        return true;
    view->key = pickle_tuple_item(pickle, view_id, 0);
    view->view_of = storage->key;
    return is_storage_key(pickle, view->key) &&
           pickle_get_number(pickle, pickle_tuple_item(pickle, view_id, 1), &view->start) &&
           pickle_get_number(pickle, pickle_tuple_item(pickle, view_id, 2), &view->elements);
}

/*
 * Whether torch gives the same bytes for two IDs with the same key. It creates one object for a
 * key, from the first ID. Later IDs of a storage may have another dtype of the same size, or any
 * dtype if there are no elements; later IDs of a view must be equal.
 */
static bool
are_same_storage(const struct pickle *pickle, const struct torch_storage *a,
                 const struct torch_storage *b)
{
    const bool is_view = a->view_of != PICKLE_VALUE_OPAQUE;

    return (a->element == b->element || (!is_view && !a->elements)) && a->elements == b->elements &&
           a->start == b->start && is_view == (b->view_of != PICKLE_VALUE_OPAQUE) &&
           (!is_view ||
            (a->dtype == b->dtype && compare_key_strings(pickle, a->view_of, b->view_of) == 0));
}

/* Sorts the storages by key and removes equal ones. */
static errint_t
unite_storages(struct torch_source *source, struct reason *reason)
{
    uint32_t kept = 0;

    qsort_r(source->storages, source->storage_count, sizeof(*source->storages), compare_storages,
            &source->pickle);
    for (uint32_t i = 0; i < source->storage_count; i++) {
        struct torch_storage *last = kept ? &source->storages[kept - 1] : NULL;

        if (last && compare_storages(last, &source->storages[i], &source->pickle) == 0) {
            if (!are_same_storage(&source->pickle, last, &source->storages[i]))
                return refuse_storage(
                    reason, "a storage, or a view of one, is described twice, differently");
            continue;
        }
        source->storages[kept++] = source->storages[i];
    }
    source->storage_count = kept;
    return 0;
}

/* Collects the storages that tensors refer to, and their views, sorted by key. */
static errint_t
collect_storages(struct torch_source *source, struct reason *reason)
{
    const struct pickle *pickle = &source->pickle;
    size_t count = 0;

    for (uint32_t i = 0; i < pickle->node_count; i++)
        if (pickle->nodes[i].kind == PICKLE_PERSISTENT &&
            torch_is_storage_id(pickle, pickle->nodes[i].a))
            count += pickle_tuple_length(pickle, pickle->nodes[i].a) < 6 ? 1 : 2;
    /* As much again is for qsort_r(). */
    if (2 * count * sizeof(*source->storages) > pickle->length * TORCH_TABLE_FACTOR + TORCH_SLACK)
        return reason_set(reason, -EBADMSG, "PickleMemory",
                          "%zu storages take more memory than the limit for a pickle of %zu bytes",
                          count, pickle->length);
    source->storages = calloc(count + 1, sizeof(*source->storages));
    if (!source->storages)
        return reason_no_memory(reason);
    for (uint32_t i = 0; i < pickle->node_count; i++) {
        const pickle_value id = pickle->nodes[i].a;
        struct torch_storage storage, view;

        if (pickle->nodes[i].kind != PICKLE_PERSISTENT || !torch_is_storage_id(pickle, id))
            continue;
        if (!read_storage_id(pickle, id, &storage, &view))
            return refuse_storage(
                reason,
                "the description of a storage is malformed, of an unknown type, or "
                "has a key of over %d bytes",
                TORCH_KEY_MAX);
        source->storages[source->storage_count++] = storage;
        if (view.key != PICKLE_VALUE_OPAQUE)
            source->storages[source->storage_count++] = view;
    }
    return unite_storages(source, reason);
}

/* Sets the offsets of the listed storages, which are stored consecutively from offset `at`. */
static errint_t
locate_storages(struct torch_source *source, const struct pickle *keys, uint64_t at,
                struct reason *reason)
{
    if (pickle_kind_of(keys, keys->root) != PICKLE_LIST)
        return refuse_storage(reason, "the storage keys are not a list");
    for (uint32_t i = keys->nodes[keys->root].a; i; i = keys->entries[i].next) {
        struct torch_storage *storage = NULL;
        unsigned char elements[8];
        char shown[QUOTED_SIZE];
        const char *key = "";
        size_t length = 0;
        uint64_t bytes;
        errint_t error;

        if (pickle_get_string(keys, keys->entries[i].value, &key, &length))
            storage = find_storage(source, key, length);
        if (!storage || storage->offset || storage->view_of != PICKLE_VALUE_OPAQUE)
            return refuse_storage(reason,
                                  "storage \"%s\" is listed twice, or no tensor refers to it",
                                  quoted(shown, key, length));
        if (at > source->file_size || source->file_size - at < sizeof(elements))
            return refuse_storage(reason, "the file ends before storage \"%s\"",
                                  quoted(shown, key, length));
        error = bytes_read_at(source->fd, elements, sizeof(elements), at, reason);
        if (error)
            return error;
        at += sizeof(elements);
        if (bytes_u64(elements) != storage->elements)
            return refuse_storage(
                reason, "storage \"%s\" has %" PRIu64 " elements in the file, expected %" PRIu64,
                quoted(shown, key, length), bytes_u64(elements), storage->elements);
        if (__builtin_mul_overflow(storage->elements, (uint64_t)storage->element, &bytes) ||
            bytes > source->file_size - at)
            return refuse_storage(reason, "storage \"%s\" of %" PRIu64 " elements exceeds the file",
                                  quoted(shown, key, length), storage->elements);
        storage->offset = at;
        at += bytes;
    }
    return 0;
}

/* Reads the pickles and locates the storages. -ENODATA: the pickles do not end within the first
 * `have` bytes. */
static errint_t
read_legacy(struct torch_source *source, size_t have, struct reason *reason)
{
    struct pickle keys = {0};
    bool is_big_endian = false;
    size_t at = 0;
    errint_t error = read_legacy_head(source, have, &at, &is_big_endian, reason);

    if (!error)
        error = parse_root(source, source->text + at, have - at, reason);
    if (error)
        return error;
    at += source->pickle.length;
    error = read_listed(source, source->text + at, have - at,
                        have * TORCH_TABLE_FACTOR + TORCH_SLACK, &keys, reason);
    if (!error && is_big_endian)
        error = refuse_byte_order(reason);
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

/* Reads pickles from the start of the file with `read`. Their length is unknown until they are
 * read, so this doubles the number of bytes that it reads until they are complete. */
static errint_t
open_pickles(struct torch_source *source,
             errint_t (*read)(struct torch_source *source, size_t have, struct reason *reason),
             struct reason *reason)
{
    uint64_t have = FIRST_READ, admitted = 0;
    errint_t error;

    for (;;) {
        uint64_t bytes;

        if (have > source->file_size)
            have = source->file_size;
        bytes = have * TORCH_PARSE_FACTOR + TORCH_PARSE_LEAST;
        error = st_admit_bytes(source->admit, source->admit_arg, bytes - admitted, reason);
        if (error)
            return error;
        admitted = bytes;
        source->text_length = have;
        source->text = malloc(have + 1); /* never of size 0 */
        if (!source->text)
            return reason_no_memory(reason);
        error = bytes_read_at(source->fd, source->text, have, 0, reason);
        if (!error)
            error = read(source, have, reason);
        if (error != -ENODATA)
            return error;
        drop_legacy(source);
        if (have == source->file_size || have >= TORCH_MAX_PICKLE) {
            if (source->imports)
                source->imports->is_incomplete |= have < source->file_size;
            return -EBADMSG;
        }
        have *= 2;
    }
}

/* ---- other pickles ---- */

static bool
has_call(const struct pickle *pickle)
{
    for (uint32_t i = 0; i < pickle->node_count; i++)
        if (pickle->nodes[i].kind == PICKLE_CALL)
            return true;
    return false;
}

/* Whether the value may equal the magic number, after which torch.load() executes the next pickles.
 * Long decimal numbers and objects are not evaluated here, so they may: results of calls, and
 * globals such as unittest.mock.ANY. */
static bool
may_equal_legacy_magic(const struct pickle *pickle)
{
    enum pickle_kind kind = pickle_kind_of(pickle, pickle->root);

    return kind == PICKLE_LONG || kind == PICKLE_OPAQUE || kind == PICKLE_CALL ||
           kind == PICKLE_GLOBAL;
}

/* Lists the imports of the pickle at *at and sets *at to its end. One without a PROTO instruction
 * is only listed if it is complete or calls a function: files of other kinds, such as text, may
 * begin like a pickle. *is_last: torch.load() executes no pickle after it. */
static errint_t
read_other_pickle(struct torch_source *source, size_t *at, size_t have, bool *is_last,
                  struct reason *reason)
{
    const char *text = source->text + *at;
    struct pickle pickle;
    errint_t error =
        pickle_read(text, have - *at, have * TORCH_PICKLE_FACTOR + TORCH_SLACK, &pickle, reason);
    errint_t result = error;

    if (text[0] == '\200' || pickle.root != PICKLE_VALUE_MARK || has_call(&pickle))
        result = list_imports(source, &pickle, error, reason);
    *is_last = *at == 0 && !error && !may_equal_legacy_magic(&pickle);
    *at += pickle.length;
    pickle_free(&pickle);
    return result;
}

/* Lists the imports of all pickles that torch.load() may execute. -ENODATA: they do not end within
 * the first `have` bytes. */
static errint_t
read_other_pickles(struct torch_source *source, size_t have, struct reason *reason)
{
    bool is_last = false;
    size_t at = 0;
    errint_t error = 0;

    for (unsigned i = 0; !error && !is_last && i < LEGACY_PICKLES && at < source->file_size; i++)
        error = at < have ? read_other_pickle(source, &at, have, &is_last, reason) : -ENODATA;
    return error;
}

/*
 * Lists the imports of a file that is a pickle, but not of torch.save(): torch.load() executes it
 * before it refuses the file.
 */
static errint_t
list_other_pickle(struct torch_source *source, const char magic[2], struct reason *reason)
{
    const bool has_protocol = magic[0] == '\200';
    struct reason why;
    errint_t error;

    if (has_protocol && (unsigned char)magic[1] > PICKLE_PROTOCOL_MAX)
        return 0; /* Python refuses it */
    error = open_pickles(source, read_other_pickles, &why);
    drop_legacy(source);
    if (error && error != -EBADMSG && error != -ENOBUFS) {
        *reason = why;
        return error;
    }
    source->imports->is_incomplete |= error == -ENOBUFS;
    if (!has_protocol && !source->imports->count)
        source->imports->is_incomplete = false; /* a file of another kind */
    return 0;
}

/* As PyTorchStreamReader does, which parses the number with strtoull(3). -EBADMSG: `reason` is why
 * it would refuse the version. */
static errint_t
check_archive_version(const struct torch_source *source, struct reason *reason)
{
    struct zip_member *member = find_record(source, ".data/", "version", 7);
    char text[32] = "", shown[QUOTED_SIZE], *end;
    unsigned long long version;
    size_t length;
    errint_t error;

    if (!member)
        member = find_record(source, "", "version", 7);
    if (!member)
        return reason_set(reason, -EBADMSG, "TorchVersion",
                          "the archive has no member \"version\"");
    if (member->method == ZIP_DEFLATED)
        return 0; /* torch.load() decompresses it; fstfs cannot check it */
    error = zip_locate(&source->zip, member, reason);
    length = member->size < sizeof(text) ? (size_t)member->size : sizeof(text) - 1;
    if (!error && length > 0)
        error = bytes_read_at(source->fd, text, length, member->data, reason);
    if (error)
        return error;
    errno = 0;
    version = strtoull(text, &end, 10);
    if (end != text && !errno && version >= TORCH_VERSION_LEAST && version <= TORCH_VERSION_MOST)
        return 0;
    return reason_set(reason, -EBADMSG, "TorchVersion",
                      "the version of the archive is %s, expected %d to %d",
                      quoted(shown, text, length), TORCH_VERSION_LEAST, TORCH_VERSION_MOST);
}

errint_t
torch_source_check_version(const struct torch_source *source, struct reason *fault,
                           struct reason *reason)
{
    errint_t error = check_archive_version(source, reason);

    if (error != -EBADMSG)
        return error;
    *fault = *reason;
    return 0;
}

/* ---- both formats ---- */

errint_t
torch_source_open(int fd, uint64_t file_size, st_admit *admit, void *arg,
                  struct torch_imports *imports, struct torch_source *source, struct reason *reason)
{
    enum { MAGIC_BYTES = 4 };
    static const char lfs_pointer[] = "version https://git-lfs.github.com/spec/";
    char first[sizeof(lfs_pointer) - 1] = "";
    errint_t error;

    *source = (struct torch_source){
        .fd = fd, .file_size = file_size, .admit = admit, .admit_arg = arg, .imports = imports};
    if (file_size < MAGIC_BYTES)
        return reason_set(reason, -ENOMSG, "NotTorch", "the file has %" PRIu64 " bytes", file_size);
    error =
        bytes_read_at(fd, first, file_size < sizeof(first) ? file_size : sizeof(first), 0, reason);
    if (error)
        return error;
    if (memcmp(first, lfs_pointer, sizeof(first)) == 0)
        return reason_set(reason, -EBADMSG, "NotTorch", "a Git LFS pointer; run git lfs pull");
    source->is_zip = memcmp(first, LOCAL_HEADER_MAGIC, MAGIC_BYTES) == 0;
    error = source->is_zip       ? open_archive(source, reason)
            : first[0] == '\200' ? open_pickles(source, read_legacy, reason)
                                 : refuse_other_file(reason);
    if (error)
        torch_source_close(source);
    if (error == -ENOMSG && !source->is_zip && imports) {
        errint_t listing = list_other_pickle(source, first, reason);

        error = listing ? listing : error;
    }
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

    if (key_length > TORCH_KEY_MAX)
        return refuse_storage(reason, "the key of its storage has %zu bytes, at most %d are read",
                              key_length, TORCH_KEY_MAX);
    if (source->is_zip) {
        errint_t error;

        member = find_record(source, "data/", key, key_length);
        if (!member)
            return refuse_storage(reason, "the archive has no storage \"%.80s\"",
                                  quoted(shown, key, key_length));
        error = zip_locate(&source->zip, member, reason);
        *offset = member->data;
        *bytes = member->size;
        return error;
    }
    storage = find_storage(source, key, key_length);
    if (!storage || !storage->offset)
        return refuse_storage(reason, "the file has no storage \"%.80s\"",
                              quoted(shown, key, key_length));
    *offset = storage->offset;
    *bytes = storage->elements * storage->element;
    return 0;
}
