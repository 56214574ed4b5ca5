/* SPDX-License-Identifier: Apache-2.0 */
#include "archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static int
compare_records(const void *a, const void *b)
{
    const struct zip_member *const *x = a, *const *y = b;

    return ((*x)->data > (*y)->data) - ((*x)->data < (*y)->data);
}

errint_t
archive_open(int fd, uint64_t file_size, struct st_table *table, struct archive *archive,
             struct reason *reason)
{
    struct zip_end end = {0};
    errint_t error = zip_find_directory(fd, file_size, &end, reason);

    *archive = (struct archive){.table = table};
    if (!error)
        error = zip_read(fd, &end, &archive->zip, reason);
    if (!error) {
        archive->records = calloc((size_t)archive->zip.count + 1, sizeof(*archive->records));
        if (!archive->records)
            error = reason_no_memory(reason);
    }
    if (!error)
        zip_locate_all(&archive->zip);
    for (uint32_t i = 0; !error && i < archive->zip.count; i++) {
        struct zip_member *member = &archive->zip.members[i];

        if (member->method != ZIP_STORED || !member->size)
            continue;
        error = zip_locate(&archive->zip, member, reason);
        archive->records[archive->record_count++] = member;
    }
    if (!error)
        error = zip_check_members(&archive->zip, reason);
    if (error) {
        archive_free(archive);
        return error;
    }
    qsort(archive->records, archive->record_count, sizeof(struct zip_member *), compare_records);
    return 0;
}

void
archive_free(struct archive *archive)
{
    st_table_free(archive->table);
    free(archive->records);
    zip_free(&archive->zip);
    *archive = (struct archive){0};
}

/* Adds a finding for a damaged record, which names the first tensor that is stored in it. */
static void
report_record(const struct archive *archive, const struct zip_member *record, uint32_t crc,
              const char *path, struct findings *findings)
{
    const struct st_table *table = archive->table;
    char record_name[QUOTED_SIZE], tensor_name[QUOTED_SIZE], of[QUOTED_SIZE + 64] = "";
    uint32_t found = 0;

    for (uint32_t i = 0; i < table->count; i++) {
        const struct st_tensor *tensor = &table->tensors[i];

        if (tensor->begin < record->data || tensor->end > record->data + record->size ||
            tensor->begin == tensor->end || found++)
            continue;
        quoted(tensor_name, table->text + tensor->name, tensor->name_length);
    }
    if (found == 1)
        snprintf(of, sizeof(of), " (tensor \"%s\")", tensor_name);
    else if (found)
        snprintf(of, sizeof(of), " (tensor \"%s\" and %" PRIu32 " more)", tensor_name, found - 1);
    findings_add(findings, strdup(path), false,
                 "damaged: wrong CRC-32 of record \"%s\"%s (found %08" PRIx32
                 ", expected %08" PRIx32 ")",
                 quoted(record_name, archive->zip.directory + record->name, record->name_length),
                 of, crc, record->crc);
}

static void
end_record(struct archive_check *check, const char *path, struct findings *findings)
{
    const struct zip_member *record = check->archive->records[check->record];

    /* torch.serialization.set_crc32_options(False) writes 0. */
    if (!record->crc) {
        check->missing++;
    } else {
        check->compared++;
        if (check->crc != record->crc)
            report_record(check->archive, record, check->crc, path, findings);
    }
    check->crc = 0;
    check->record++;
}

void
archive_check_bytes(struct archive_check *check, const char *data, uint64_t from, uint64_t length,
                    const char *path, struct findings *findings)
{
    const uint64_t to = from + length;

    while (check->record < check->archive->record_count) {
        const struct zip_member *record = check->archive->records[check->record];
        uint64_t begin = record->data, end = begin + record->size;
        uint64_t first = begin > from ? begin : from, last = end < to ? end : to;

        if (begin >= to)
            return;
        if (record->crc)
            check->crc = (uint32_t)crc32_z(check->crc, (const unsigned char *)data + (first - from),
                                           last - first);
        if (end > to)
            return;
        end_record(check, path, findings);
    }
}
