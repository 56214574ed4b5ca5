/* SPDX-License-Identifier: Apache-2.0 */
#include "io/request_cursor.h"

struct extent_part
extent_part_at(const struct extent *extent, uint64_t offset, size_t length)
{
    uint64_t skipped = offset - extent->start;
    uint64_t rest = extent->length - skipped;

    return (struct extent_part){extent, extent->offset + skipped,
                                rest < length ? (size_t)rest : length};
}

bool
request_cursor_next(struct request_cursor *cursor)
{
    const struct request *request = cursor->request;
    uint64_t end = request->offset + request->length;
    const struct extent *extent;

    if (!cursor->part.extent) {
        cursor->offset = request->offset;
        extent = &request->list->extents[extent_list_find(request->list, cursor->offset)];
        cursor->pins = request->pins;
    } else {
        cursor->offset += cursor->part.length;
        extent = cursor->part.extent + 1;
        cursor->pins += cursor->count;
    }
    cursor->count = 0;
    if (cursor->offset == end)
        return false;
    cursor->part = extent_part_at(extent, cursor->offset, (size_t)(end - cursor->offset));
    end = cursor->part.offset + cursor->part.length;
    for (bool more = extent->backing != NULL; more; cursor->count++)
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a part of a backing has pins */
        more = chunk_end(cursor->pins[cursor->count].chunk) < end;
    return true;
}
