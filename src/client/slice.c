/* SPDX-License-Identifier: Apache-2.0 */
#include "client/slice.h"

#include "client/error.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static uint64_t
slice_count(const struct fstfs_slice *slice)
{
    uint64_t step = slice->step ? slice->step : 1;

    return (slice->stop - slice->start) / step + ((slice->stop - slice->start) % step > 0);
}

static errint_t
check_slices(const struct fstfs_tensor *tensor, const struct fstfs_slice *slices, bool *empty)
{
    *empty = false;
    for (unsigned d = 0; d < tensor->rank; d++) {
        if (slices[d].start > slices[d].stop || slices[d].stop > tensor->shape[d])
            return fail(
                -EINVAL,
                "%s: slice %llu:%llu of dimension %u is invalid (expected start <= stop <= %llu)",
                tensor->name, (unsigned long long)slices[d].start,
                (unsigned long long)slices[d].stop, d, (unsigned long long)tensor->shape[d]);
        if (slice_count(&slices[d]) == 0)
            *empty = true;
    }
    return 0;
}

/* Adds a level that repeats those added so far. Levels are innermost first until slice_finish(). */
static void
slice_add_level(struct strided_slice *slice, uint64_t count, uint64_t step)
{
    struct slice_level *inner = slice->level_count ? &slice->levels[slice->level_count - 1] : NULL;

    if (inner && inner->step * inner->count == step)
        inner->count *= count;
    else
        slice->levels[slice->level_count++] = (struct slice_level){.count = count, .step = step};
}

/* Sets start, run, counts and steps. All lengths are in bits. */
static void
slice_nest(const struct fstfs_tensor *tensor, const struct fstfs_slice *slices,
           struct strided_slice *slice)
{
    uint64_t stride = tensor->bits;

    slice->run = stride;
    for (unsigned d = tensor->rank; d-- > 0;) {
        uint64_t count = slice_count(&slices[d]);
        uint64_t step = count > 1 && slices[d].step > 1 ? slices[d].step : 1;

        slice->start += slices[d].start * stride;
        if (slice->level_count == 0 && slice->run == stride && step == 1)
            slice->run *= count;
        else if (count > 1)
            slice_add_level(slice, count, step * stride);
        stride *= tensor->shape[d];
    }
}

static errint_t
slice_bits_to_bytes(const struct fstfs_tensor *tensor, struct strided_slice *slice)
{
    uint64_t odd = slice->start | slice->run;

    for (unsigned i = 0; i < slice->level_count; i++)
        odd |= slice->levels[i].step;
    if (odd % 8)
        return fail(-ENOTSUP,
                    "%s: the slice begins or ends within a byte: its elements have %u bits",
                    tensor->name, tensor->bits);
    slice->start /= 8;
    slice->run /= 8;
    for (unsigned i = 0; i < slice->level_count; i++)
        slice->levels[i].step /= 8;
    return 0;
}

/* Computes the other members from run, counts and steps, and reverses the levels. */
static void
slice_finish(struct strided_slice *slice)
{
    uint64_t packed = slice->run;
    uint64_t span = packed;

    slice->range = slice->run;
    slice->range_count = 1;
    for (unsigned i = 0; i < slice->level_count; i++) {
        struct slice_level *level = &slice->levels[i];

        level->span = span;
        level->packed = packed;
        if (slice->range_levels == 0 && level->step - span <= BLOCK_SIZE) {
            slice->range = (level->count - 1) * level->step + span;
        } else {
            slice->range_levels++;
            slice->range_count *= level->count;
        }
        span += (level->count - 1) * level->step;
        packed *= level->count;
    }
    slice->size = packed;
    for (unsigned i = 0, j = slice->level_count; i + 1 < j; i++) {
        struct slice_level level = slice->levels[i];

        slice->levels[i] = slice->levels[--j];
        slice->levels[j] = level;
    }
}

errint_t
strided_slice_make(const struct fstfs_request *request, struct strided_slice *slice)
{
    const struct fstfs_tensor *tensor = request->tensor;
    errint_t error = CHECK_RESERVED(request, fstfs_request);
    bool empty;

    if (error)
        return error;
    *slice = (struct strided_slice){.run = tensor->size};
    if (!request->slices) {
        slice_finish(slice);
        return 0;
    }
    if (tensor->bits == 0)
        return fail(-ENOTSUP,
                    "%s: cannot slice a tensor of dtype %s: the size of its elements is not known",
                    tensor->name, tensor->dtype);
    error = check_slices(tensor, request->slices, &empty);
    if (error || empty)
        return error;
    slice->levels = calloc(tensor->rank + 1, sizeof(*slice->levels));
    if (!slice->levels)
        return fail_no_memory();
    slice_nest(tensor, request->slices, slice);
    error = slice_bits_to_bytes(tensor, slice);
    if (error) {
        strided_slice_free(slice);
        return error;
    }
    slice_finish(slice);
    return 0;
}

void
strided_slice_free(struct strided_slice *slice)
{
    free(slice->levels);
    slice->levels = NULL;
}

uint64_t
strided_slice_range(const struct strided_slice *slice, uint64_t place)
{
    uint64_t start = slice->start;

    for (unsigned i = slice->range_levels; i-- > 0;) {
        start += place % slice->levels[i].count * slice->levels[i].step;
        place /= slice->levels[i].count;
    }
    return start;
}

struct slice_copy {
    const struct strided_slice *slice;
    uint64_t from, end; /* of `bytes`, in the tensor */
    const char *bytes;
    char *to;
    uint64_t copied;
};

/* Copies those of `bytes` that are in the run at offset `at` of the tensor. `to` is the packed
 * offset of the run. */
static inline void
slice_copy_run(struct slice_copy *copy, uint64_t at, uint64_t to)
{
    uint64_t start = at > copy->from ? at : copy->from;
    uint64_t end = at + copy->slice->run < copy->end ? at + copy->slice->run : copy->end;

    if (start >= end)
        return;
    memcpy(copy->to + to + (start - at), copy->bytes + (start - copy->from), end - start);
    copy->copied += end - start;
}

/* NOLINTNEXTLINE(misc-no-recursion): at most as deep as the tensor has dimensions */
static void
slice_copy_level(struct slice_copy *copy, unsigned depth, uint64_t at, uint64_t to)
{
    const struct slice_level *level;
    uint64_t i = 0;

    if (depth == copy->slice->level_count) {
        slice_copy_run(copy, at, to);
        return;
    }
    level = &copy->slice->levels[depth];
    if (at + level->span <= copy->from)
        i = (copy->from - at - level->span) / level->step + 1;
    for (; i < level->count && at + i * level->step < copy->end; i++) {
        if (depth + 1 == copy->slice->level_count)
            slice_copy_run(copy, at + i * level->step, to + i * level->packed);
        else
            slice_copy_level(copy, depth + 1, at + i * level->step, to + i * level->packed);
    }
}

/* NOLINTBEGIN(readability-non-const-parameter): `to` is written to, through struct slice_copy */
uint64_t
strided_slice_copy(const struct strided_slice *slice, uint64_t from, const char *bytes,
                   uint64_t length, char *to)
{
    struct slice_copy copy = {
        .slice = slice, .from = from, .end = from + length, .bytes = bytes, .to = to};

    slice_copy_level(&copy, 0, slice->start, 0);
    return copy.copied;
}

/* NOLINTEND(readability-non-const-parameter) */

uint64_t
strided_slice_before(const struct strided_slice *slice, uint64_t offset)
{
    uint64_t before = 0;

    if (offset <= slice->start)
        return 0;
    offset -= slice->start;
    for (unsigned i = 0; i < slice->level_count; i++) {
        const struct slice_level *level = &slice->levels[i];

        if (offset / level->step >= level->count)
            return before + level->count * level->packed;
        before += offset / level->step * level->packed;
        offset %= level->step;
    }
    return before + (offset < slice->run ? offset : slice->run);
}
