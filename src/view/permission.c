/* SPDX-License-Identifier: Apache-2.0 */
#include "view/permission.h"

#include "catalog/catalog.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void
permission_begin(struct permission_request *request, permission_check *check,
                 const struct caller *caller)
{
    request->check = check;
    request->caller = caller;
    request->queries = request->few;
    request->count = 0;
    request->capacity = sizeof(request->few) / sizeof(request->few[0]);
    request->failed = false;
}

static bool
permission_grow(struct permission_request *request)
{
    size_t capacity = 4 * request->capacity;
    bool few = request->queries == request->few;
    struct permission_query *queries =
        realloc(few ? NULL : request->queries, capacity * sizeof(*queries));

    if (!queries)
        return false;
    if (few)
        memcpy(queries, request->few, sizeof(request->few));
    request->queries = queries;
    request->capacity = capacity;
    return true;
}

static void
permission_need(struct permission_request *request, struct permission_query query)
{
    if (!request->check || request->failed)
        return;
    if (request->count == request->capacity && !permission_grow(request)) {
        request->failed = true;
        return;
    }
    request->queries[request->count++] = query;
}

void
permission_need_directory(struct permission_request *request, const char *path, int mask,
                          const struct file_identity *expected)
{
    struct permission_query query = {.path = path, .mask = mask};

    if (expected) {
        query.device = expected->device;
        query.inode = expected->inode;
    }
    permission_need(request, query);
}

void
permission_need_backing(struct permission_request *request, const struct backing *backing, int mask)
{
    permission_need(request, (struct permission_query){.path = backing->path,
                                                       .mask = mask,
                                                       .device = backing->identity.device,
                                                       .inode = backing->identity.inode,
                                                       .changed = backing->identity.changed});
}

void
permission_need_shards(struct permission_request *request, const struct checkpoint *checkpoint,
                       int mask)
{
    for (uint32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i]->backing)
            permission_need_backing(request, checkpoint->shards[i]->backing, mask);
}

errint_t
permission_ask(struct permission_request *request)
{
    errint_t error = request->failed ? -ENOMEM : 0;

    if (!error && request->count)
        error = request->check(request->caller, request->queries, request->count);
    if (request->queries != request->few)
        free(request->queries);
    return error;
}
