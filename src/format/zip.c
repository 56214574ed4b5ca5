/* SPDX-License-Identifier: Apache-2.0 */
/* See zip.h. */
#include "format/zip.h"

#include "base/parallel.h"
#include "base/text.h"
#include "format/bytes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    END_BYTES = 22, /* the end record without its comment */
    LOCATOR_BYTES = 20, /* locator of the zip64 end record */
    END64_BYTES = 56,
    ENTRY_BYTES = 46, /* an entry of the central directory without its variable fields */
    LOCAL_BYTES = 30, /* a local header without its variable fields */
    COMMENT_MAX = 65535,
    NAME_MAX_BYTES = 512, /* longest name of a member */
    EXTRA_ZIP64 = 0x0001,
    ENCRYPTED_FLAGS = 1 << 0 | 1 << 6 | 1 << 13, /* encryption, strong encryption, masked headers */
    DESCRIPTOR_FLAG = 1 << 3, /* sizes and checksum follow the data */
    PATCH_FLAG = 1 << 5,
    DIRECTORY_ATTRIBUTE = 1 << 4, /* of MS-DOS; miniz tests it in entries of all systems */
    MEMBERS_PER_THREAD = 16,
};

#define END_SIGNATURE 0x06054b50u
#define LOCATOR_SIGNATURE 0x07064b50u
#define END64_SIGNATURE 0x06064b50u
#define ENTRY_SIGNATURE 0x02014b50u
#define LOCAL_SIGNATURE 0x04034b50u

#define refuse_zip(reason, rule, ...) reason_set(reason, -EBADMSG, rule, __VA_ARGS__)

static errint_t
refuse_member(struct reason *reason, const char *rule, const struct zip *zip,
              const struct zip_member *member, const char *what)
{
    char shown[QUOTED_SIZE];

    return refuse_zip(reason, rule, "member \"%s\" of the archive: %s",
                      quoted(shown, zip->directory + member->name, member->name_length), what);
}

/* ---- the end of the archive ---- */

/* Replaces *end by the zip64 end record if a locator of one is directly before the end record. */
static errint_t
read_end64(int fd, struct zip_end *end, struct reason *reason)
{
    unsigned char locator[LOCATOR_BYTES], record[END64_BYTES];
    uint64_t at;
    errint_t error;

    if (end->at < LOCATOR_BYTES + END64_BYTES)
        return 0;
    error = bytes_read_at(fd, locator, sizeof(locator), end->at - LOCATOR_BYTES, reason);
    if (error || bytes_u32(locator) != LOCATOR_SIGNATURE)
        return error;
    if (bytes_u32(locator + 4) != 0 || bytes_u32(locator + 16) != 1)
        return refuse_zip(reason, "ZipEnd", "the archive has several volumes");
    at = bytes_u64(locator + 8);
    if (at != end->at - LOCATOR_BYTES - END64_BYTES)
        return refuse_zip(reason, "ZipEnd",
                          "the zip64 end record is at offset %" PRIu64 ", expected %" PRIu64
                          ", directly before its locator",
                          at, end->at - LOCATOR_BYTES - END64_BYTES);
    error = bytes_read_at(fd, record, sizeof(record), at, reason);
    if (error)
        return error;
    if (bytes_u32(record) != END64_SIGNATURE || bytes_u64(record + 4) != END64_BYTES - 12)
        return refuse_zip(reason, "ZipEnd", "there is no zip64 end record at offset %" PRIu64, at);
    if (bytes_u32(record + 16) || bytes_u32(record + 20) ||
        bytes_u64(record + 24) != bytes_u64(record + 32))
        return refuse_zip(reason, "ZipEnd", "the archive has several volumes");
    const struct zip_end end64 = {at, bytes_u64(record + 48), bytes_u64(record + 40),
                                  bytes_u64(record + 32)};
    if ((end->start != end64.start && end->start != UINT32_MAX) ||
        (end->length != end64.length && end->length != UINT32_MAX) ||
        (end->count != end64.count && end->count != UINT16_MAX))
        return refuse_zip(reason, "ZipEnd",
                          "the end record and the zip64 end record describe different directories");
    *end = end64;
    return 0;
}

/* Finds the end record, whose comment reaches to the end of the file; *at is its offset in `tail`.
 * Its comment must not contain an end record: miniz takes the last one, whatever follows it. */
static errint_t
find_end(const unsigned char *tail, size_t length, size_t *at, struct reason *reason)
{
    bool found = false;

    for (size_t i = 0; i + END_BYTES <= length; i++) {
        if (bytes_u32(tail + i) != END_SIGNATURE)
            continue;
        if (found)
            return refuse_zip(reason, "ZipEnd", "the archive has two end records");
        if (i + END_BYTES + bytes_u16(tail + i + 20) != length)
            continue;
        found = true;
        *at = i;
    }
    return found ? 0 : refuse_zip(reason, "ZipEnd", "the file has no end record of a zip archive");
}

static errint_t
read_end(int fd, uint64_t file_size, struct zip_end *end, struct reason *reason)
{
    size_t length =
        file_size < END_BYTES + COMMENT_MAX ? (size_t)file_size : END_BYTES + COMMENT_MAX;
    unsigned char *tail = malloc(length + 1); /* + 1: never 0 */
    size_t at = 0;
    errint_t error;

    if (!tail)
        return reason_no_memory(reason);
    error = bytes_read_at(fd, tail, length, file_size - length, reason);
    if (!error)
        error = find_end(tail, length, &at, reason);
    if (!error && (bytes_u16(tail + at + 4) || bytes_u16(tail + at + 6) ||
                   bytes_u16(tail + at + 8) != bytes_u16(tail + at + 10)))
        error = refuse_zip(reason, "ZipEnd", "the archive has several volumes");
    if (!error)
        *end = (struct zip_end){file_size - length + at, bytes_u32(tail + at + 16),
                                bytes_u32(tail + at + 12), bytes_u16(tail + at + 10)};
    explicit_bzero(tail, length); /* may contain weights if the file is not an archive */
    free(tail);
    return error;
}

errint_t
zip_find_directory(int fd, uint64_t file_size, struct zip_end *end, struct reason *reason)
{
    errint_t error = read_end(fd, file_size, end, reason);

    if (!error)
        error = read_end64(fd, end, reason);
    if (error)
        return error;
    if (end->start > end->at || end->length != end->at - end->start)
        return refuse_zip(reason, "ZipDirectory",
                          "the end record gives a central directory of %" PRIu64
                          " bytes at offset %" PRIu64 ", expected to end at %" PRIu64
                          ", where the end record begins",
                          end->length, end->start, end->at);
    if (end->length > ZIP_MAX_DIRECTORY)
        return refuse_zip(reason, "ZipDirectory",
                          "the central directory has %" PRIu64 " bytes, at most %" PRIu64
                          " are read",
                          end->length, ZIP_MAX_DIRECTORY);
    if (end->count > end->length / ENTRY_BYTES)
        return refuse_zip(reason, "ZipDirectory",
                          "the end record declares %" PRIu64
                          " entries, in a central directory of %" PRIu64 " bytes",
                          end->count, end->length);
    return 0;
}

/* ---- the central directory ---- */

/* Takes the next value of the zip64 extra field if the entry has 0xffffffff in its place. */
static bool
take_zip64(const unsigned char **at, size_t *left, uint64_t *value)
{
    if (*value != UINT32_MAX)
        return true;
    if (*left < 8)
        return false;
    *value = bytes_u64(*at);
    *at += 8;
    *left -= 8;
    return true;
}

/* Applies the zip64 extra field, if there is one. False: the extra fields are malformed, or lack a
 * value. */
static bool
read_extra(const unsigned char *extra, size_t length, struct zip_member *member)
{
    while (length >= 4) {
        size_t size = bytes_u16(extra + 2);

        if (size > length - 4)
            return false;
        if (bytes_u16(extra) == EXTRA_ZIP64) {
            const unsigned char *at = extra + 4;

            return take_zip64(&at, &size, &member->size) &&
                   take_zip64(&at, &size, &member->packed) &&
                   take_zip64(&at, &size, &member->header);
        }
        extra += 4 + size;
        length -= 4 + size;
    }
    return member->size != UINT32_MAX && member->packed != UINT32_MAX &&
           member->header != UINT32_MAX;
}

static int
lower_case(char c)
{
    return c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : (unsigned char)c;
}

/* As torch's reader finds members: the case of ASCII letters is ignored. */
static int
compare_member_names(const char *a, size_t a_length, const char *b, size_t b_length)
{
    for (size_t i = 0; i < a_length && i < b_length; i++) {
        int difference = lower_case(a[i]) - lower_case(b[i]);

        if (difference)
            return difference;
    }
    return (a_length > b_length) - (a_length < b_length);
}

static int
compare_members(const void *a, const void *b, void *directory)
{
    const struct zip_member *x = a, *y = b;
    const char *text = directory;

    return compare_member_names(text + x->name, x->name_length, text + y->name, y->name_length);
}

/* Reads the entry at offset *at of the directory and advances *at past it. */
static errint_t
zip_read_entry(const struct zip *zip, size_t length, size_t *at, struct zip_member *member,
               struct reason *reason)
{
    const unsigned char *entry = (const unsigned char *)zip->directory + *at;
    size_t name, extra, comment;

    if (length - *at < ENTRY_BYTES || bytes_u32(entry) != ENTRY_SIGNATURE)
        return refuse_zip(reason, "ZipDirectory",
                          "there is no entry at byte %zu of the central directory", *at);
    name = bytes_u16(entry + 28);
    extra = bytes_u16(entry + 30);
    comment = bytes_u16(entry + 32);
    if (name + extra + comment > length - *at - ENTRY_BYTES)
        return refuse_zip(reason, "ZipDirectory",
                          "the entry at byte %zu of the central directory is cut off", *at);
    *member = (struct zip_member){
        .header = bytes_u32(entry + 42),
        .size = bytes_u32(entry + 24),
        .packed = bytes_u32(entry + 20),
        .name = (uint32_t)(*at + ENTRY_BYTES),
        .crc = bytes_u32(entry + 16),
        .name_length = (uint16_t)name,
        .method = bytes_u16(entry + 10),
    };
    if (memchr(entry + ENTRY_BYTES, '\0', name)) /* where the name ends for miniz */
        return refuse_member(reason, "ZipEntry", zip, member, "its name contains NUL");
    if (!read_extra(entry + ENTRY_BYTES + name, extra, member))
        return refuse_member(reason, "ZipEntry", zip, member, "its zip64 extra field is malformed");
    if (member->header > zip->directory_start ||
        member->packed > zip->directory_start - member->header)
        return refuse_member(reason, "ZipEntry", zip, member,
                             "it ends after the central directory begins");
    *at += ENTRY_BYTES + name + extra + comment;
    return 0;
}

static errint_t
read_entries(struct zip *zip, size_t length, uint64_t count, struct reason *reason)
{
    size_t at = 0;
    errint_t error = 0;

    while (!error && zip->count < count)
        error = zip_read_entry(zip, length, &at, &zip->members[zip->count++], reason);
    if (!error && at != length)
        error = refuse_zip(reason, "ZipDirectory",
                           "the central directory has %zu bytes, its %" PRIu64 " entries take %zu",
                           length, count, at);
    if (error)
        return error;
    qsort_r(zip->members, zip->count, sizeof(*zip->members), compare_members, zip->directory);
    for (uint32_t i = 1; i < zip->count; i++)
        if (compare_members(&zip->members[i - 1], &zip->members[i], zip->directory) == 0)
            return refuse_member(reason, "ZipDuplicate", zip, &zip->members[i],
                                 "there are two of this name, if case is ignored");
    return 0;
}

errint_t
zip_read(int fd, const struct zip_end *end, struct zip *zip, struct reason *reason)
{
    errint_t error = 0;

    *zip = (struct zip){.fd = fd, .directory_start = end->start};
    zip->directory = malloc(end->length + 1); /* never of size 0 */
    zip->members = calloc(end->count + 1, sizeof(*zip->members));
    if (!zip->directory || !zip->members)
        error = reason_no_memory(reason);
    if (!error)
        error = bytes_read_at(fd, zip->directory, end->length, end->start, reason);
    if (!error)
        error = read_entries(zip, end->length, end->count, reason);
    if (error)
        zip_free(zip);
    return error;
}

void
zip_free(struct zip *zip)
{
    free(zip->members);
    free(zip->directory);
    *zip = (struct zip){.fd = -1};
}

static int
compare_key_with_member(const void *a, const void *b)
{
    const struct text_key *key = a;
    const struct zip_member *member = b;

    return compare_member_names(key->text, key->length, key->base + member->name,
                                member->name_length);
}

struct zip_member *
zip_find(const struct zip *zip, const char *name, size_t length)
{
    const struct text_key key = {zip->directory, name, length};

    return bsearch(&key, zip->members, zip->count, sizeof(*zip->members), compare_key_with_member);
}

/* ---- members ---- */

/* Whether a size or checksum of a local header agrees with the central directory. It may be
 * omitted: 0 if a data descriptor follows the data, 0xffffffff if it is in the zip64 extra field.
 */
static bool
agrees(uint32_t local, uint64_t value, uint16_t flags)
{
    return local == value || local == UINT32_MAX || (local == 0 && (flags & DESCRIPTOR_FLAG));
}

/* Whether miniz treats a member as a directory. */
static bool
entry_is_directory(const unsigned char *entry)
{
    size_t name = bytes_u16(entry + 28);

    return (bytes_u32(entry + 38) & DIRECTORY_ATTRIBUTE) ||
           (name > 0 && entry[ENTRY_BYTES + name - 1] == '/');
}

/* Refuses a member if miniz would refuse it, or would return uninitialized memory as its content.
 */
static errint_t
check_entry(const struct zip *zip, const struct zip_member *member, struct reason *reason)
{
    const unsigned char *entry = (const unsigned char *)zip->directory + member->name - ENTRY_BYTES;
    const uint16_t flags = bytes_u16(entry + 8);
    char what[100];

    if (flags & ENCRYPTED_FLAGS)
        return refuse_member(reason, "ZipEncrypted", zip, member, "it is encrypted");
    if (flags & PATCH_FLAG)
        return refuse_member(reason, "ZipEntry", zip, member,
                             "it is marked as compressed patched data (flag 5), which PyTorch "
                             "does not read");
    if (bytes_u16(entry + 34) != 0)
        return refuse_member(reason, "ZipEntry", zip, member, "it begins on another volume");
    if (member->size > 0 && entry_is_directory(entry))
        return refuse_member(reason, "ZipEntry", zip, member,
                             "it is marked as a directory, but has content");
    if (member->method == ZIP_STORED ? member->size != member->packed
                                     : member->size > 0 && member->packed == 0) {
        snprintf(what, sizeof(what),
                 "it has %" PRIu64 " bytes, but %" PRIu64 " bytes in the archive", member->size,
                 member->packed);
        return refuse_member(reason, "ZipEntry", zip, member, what);
    }
    return 0;
}

/* Reads the local header of a member, compares it with the central directory, and sets
 * `member->data`. */
static errint_t
read_local_header(const struct zip *zip, struct zip_member *member, struct reason *reason)
{
    unsigned char local[LOCAL_BYTES + NAME_MAX_BYTES];
    size_t length = LOCAL_BYTES + member->name_length;
    uint64_t data;
    errint_t error;

    if (member->data)
        return 0;
    error = check_entry(zip, member, reason);
    if (error)
        return error;
    if (member->name_length > NAME_MAX_BYTES)
        return refuse_member(reason, "ZipEntry", zip, member, "its name has over 512 bytes");
    if (length > zip->directory_start - member->header)
        return refuse_member(reason, "ZipLocalHeader", zip, member, "its local header is cut off");
    error = bytes_read_at(zip->fd, local, length, member->header, reason);
    if (error)
        return error;
    if (bytes_u32(local) != LOCAL_SIGNATURE || bytes_u16(local + 26) != member->name_length ||
        memcmp(local + LOCAL_BYTES, zip->directory + member->name, member->name_length) != 0)
        return refuse_member(reason, "ZipLocalHeader", zip, member,
                             "its local header is missing or has another name");
    if (bytes_u16(local + 8) != member->method ||
        (bytes_u16(local + 6) & (ENCRYPTED_FLAGS | PATCH_FLAG)) ||
        !agrees(bytes_u32(local + 14), member->crc, bytes_u16(local + 6)) ||
        !agrees(bytes_u32(local + 18), member->packed, bytes_u16(local + 6)) ||
        !agrees(bytes_u32(local + 22), member->size, bytes_u16(local + 6)))
        return refuse_member(reason, "ZipLocalHeader", zip, member,
                             "its local header and the central directory disagree");
    data = member->header + length + bytes_u16(local + 28);
    if (data > zip->directory_start || member->packed > zip->directory_start - data)
        return refuse_member(reason, "ZipEntry", zip, member,
                             "it ends after the central directory begins");
    member->data = data;
    return 0;
}

errint_t
zip_locate(const struct zip *zip, struct zip_member *member, struct reason *reason)
{
    errint_t error = read_local_header(zip, member, reason);

    if (!error && member->method != ZIP_STORED)
        error = refuse_member(reason, "ZipCompressed", zip, member,
                              "it is compressed; only stored members are read");
    return error;
}

/* For parallel_for(). */
static void
locate_member(void *arg, size_t i)
{
    struct zip *zip = arg;

    read_local_header(zip, &zip->members[i], NULL);
}

void
zip_locate_all(struct zip *zip)
{
    /* Starting a thread takes as long as reading some headers from the page cache. */
    if (zip->count >= 2 * MEMBERS_PER_THREAD)
        parallel_for(zip->count, zip->count / MEMBERS_PER_THREAD, locate_member, zip);
}

static int
compare_headers(const void *a, const void *b)
{
    const struct zip_member *const *x = a, *const *y = b;

    return ((*x)->header > (*y)->header) - ((*x)->header < (*y)->header);
}

errint_t
zip_check_members(const struct zip *zip, struct reason *reason)
{
    struct zip_member **sorted = calloc((size_t)zip->count + 1, sizeof(*sorted));
    errint_t error = 0;

    if (!sorted)
        return reason_no_memory(reason);
    for (uint32_t i = 0; !error && i < zip->count; i++) {
        sorted[i] = &zip->members[i];
        error = read_local_header(zip, sorted[i], reason);
    }
    if (!error)
        qsort(sorted, zip->count, sizeof(struct zip_member *), compare_headers);
    for (uint32_t i = 1; !error && i < zip->count; i++)
        if (sorted[i - 1]->data + sorted[i - 1]->packed > sorted[i]->header)
            error = refuse_member(reason, "ZipOverlap", zip, sorted[i],
                                  "it begins before the end of the previous member");
    free(sorted);
    return error;
}
