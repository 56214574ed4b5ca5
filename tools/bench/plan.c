/* SPDX-License-Identifier: Apache-2.0 */
#include "plan.h"

#include "base/array.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

errint_t
plan_add_file(struct plan *plan, const char *path)
{
    char **files = array_room(plan->files, plan->file_count, sizeof(*files));

    if (!files)
        return -ENOMEM;
    plan->files = files;
    plan->files[plan->file_count] = strdup(path);
    if (!plan->files[plan->file_count])
        return -ENOMEM;
    plan->file_count++;
    return 0;
}

errint_t
plan_add_segment(struct plan *plan, size_t file, uint64_t offset, uint64_t length)
{
    struct plan_segment *segments;

    if (length == 0)
        return 0;
    segments = array_room(plan->segments, plan->segment_count, sizeof(*segments));
    if (!segments)
        return -ENOMEM;
    plan->segments = segments;
    plan->segments[plan->segment_count++] = (struct plan_segment){offset, length, file};
    plan->bytes += length;
    return 0;
}

errint_t
plan_add(struct plan *plan, const char *path, uint64_t offset, uint64_t length)
{
    /* From the end: segments of one file come mostly together. */
    for (size_t i = plan->file_count; i-- > 0;) {
        if (strcmp(plan->files[i], path) == 0)
            return plan_add_segment(plan, i, offset, length);
    }
    if (length == 0)
        return 0;
    if (plan_add_file(plan, path))
        return -ENOMEM;
    return plan_add_segment(plan, plan->file_count - 1, offset, length);
}

void
plan_free(struct plan *plan)
{
    for (size_t i = 0; i < plan->file_count; i++)
        free(plan->files[i]);
    free(plan->files);
    free(plan->segments);
    *plan = (struct plan){0};
}
