/* SPDX-License-Identifier: Apache-2.0 */
#include "client/box.h"

#include "client/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t
taken(const struct fstfs_slice *slice)
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
                -EINVAL, "%s: the slice %llu:%llu of dimension %u is not within its %llu elements",
                tensor->name, (unsigned long long)slices[d].start,
                (unsigned long long)slices[d].stop, d, (unsigned long long)tensor->shape[d]);
        if (taken(&slices[d]) == 0)
            *empty = true;
    }
    return 0;
}

/* What is within the box's levels by now is repeated; innermost first. */
static void
add_level(struct box *box, uint64_t count, uint64_t step)
{
    struct box_level *inner = box->level_count ? &box->levels[box->level_count - 1] : NULL;

    if (inner && inner->step * inner->count == step)
        inner->count *= count;
    else
        box->levels[box->level_count++] = (struct box_level){.count = count, .step = step};
}

/* Takes the slices together into a run and its levels; all lengths are in bits. */
static void
nest(const struct fstfs_tensor *tensor, const struct fstfs_slice *slices, struct box *box)
{
    uint64_t stride = tensor->bits;

    box->run = stride;
    for (unsigned d = tensor->rank; d-- > 0;) {
        uint64_t count = taken(&slices[d]);
        uint64_t step = count > 1 && slices[d].step > 1 ? slices[d].step : 1;

        box->start += slices[d].start * stride;
        if (box->level_count == 0 && box->run == stride && step == 1)
            box->run *= count;
        else if (count > 1)
            add_level(box, count, step * stride);
        stride *= tensor->shape[d];
    }
}

static errint_t
bits_to_bytes(const struct fstfs_tensor *tensor, struct box *box)
{
    uint64_t odd = box->start | box->run;

    for (unsigned i = 0; i < box->level_count; i++)
        odd |= box->levels[i].step;
    if (odd % 8)
        return fail(-ENOTSUP, "%s: the box begins or ends within a byte: its elements have %u bits",
                    tensor->name, tensor->bits);
    box->start /= 8;
    box->run /= 8;
    for (unsigned i = 0; i < box->level_count; i++)
        box->levels[i].step /= 8;
    return 0;
}

/* Fills in what follows from run, counts and steps. Levels are innermost first, and
 * outermost first when it returns. */
static void
finish(struct box *box)
{
    uint64_t packed = box->run;
    uint64_t span = packed;

    box->range = box->run;
    box->range_count = 1;
    for (unsigned i = 0; i < box->level_count; i++) {
        struct box_level *level = &box->levels[i];

        level->span = span;
        level->packed = packed;
        if (box->range_levels == 0 && level->step - span <= BLOCK_SIZE) {
            box->range = (level->count - 1) * level->step + span;
        } else {
            box->range_levels++;
            box->range_count *= level->count;
        }
        span += (level->count - 1) * level->step;
        packed *= level->count;
    }
    box->size = packed;
    for (unsigned i = 0, j = box->level_count; i + 1 < j; i++) {
        struct box_level level = box->levels[i];

        box->levels[i] = box->levels[--j];
        box->levels[j] = level;
    }
}

errint_t
box_make(const struct fstfs_request *request, struct box *box)
{
    const struct fstfs_tensor *tensor = request->tensor;
    errint_t error = CHECK_RESERVED(request, fstfs_request);
    bool empty;

    if (error)
        return error;
    *box = (struct box){.run = tensor->size};
    if (!request->box) {
        finish(box);
        return 0;
    }
    if (tensor->bits == 0)
        return fail(-ENOTSUP, "%s: elements of dtype %s have no known size: no box of it",
                    tensor->name, tensor->dtype);
    error = check_slices(tensor, request->box, &empty);
    if (error || empty)
        return error;
    box->levels = calloc(tensor->rank + 1, sizeof(*box->levels));
    if (!box->levels)
        return fail(-ENOMEM, "out of memory");
    nest(tensor, request->box, box);
    error = bits_to_bytes(tensor, box);
    if (error) {
        box_free(box);
        return error;
    }
    finish(box);
    return 0;
}

void
box_free(struct box *box)
{
    free(box->levels);
    box->levels = NULL;
}

uint64_t
box_range(const struct box *box, uint64_t place)
{
    uint64_t start = box->start;

    for (unsigned i = box->range_levels; i-- > 0;) {
        start += place % box->levels[i].count * box->levels[i].step;
        place /= box->levels[i].count;
    }
    return start;
}

struct copy {
    const struct box *box;
    uint64_t from, end; /* in the tensor */
    const char *bytes;
    char *to;
    uint64_t skipped; /* of where the bytes go, before `to` */
    uint64_t copied;
};

/* The run that starts at `at` in the tensor and at `to` where it goes. */
static inline void
copy_run(struct copy *copy, uint64_t at, uint64_t to)
{
    uint64_t start = at > copy->from ? at : copy->from;
    uint64_t end = at + copy->box->run < copy->end ? at + copy->box->run : copy->end;

    if (start >= end)
        return;
    memcpy(copy->to + (to + (start - at) - copy->skipped), copy->bytes + (start - copy->from),
           end - start);
    copy->copied += end - start;
}

/* NOLINTNEXTLINE(misc-no-recursion): as deep as the tensor has dimensions that are cut */
static void
copy_level(struct copy *copy, unsigned depth, uint64_t at, uint64_t to)
{
    const struct box_level *level = &copy->box->levels[depth];
    uint64_t i = 0;

    if (depth == copy->box->level_count) {
        copy_run(copy, at, to);
        return;
    }
    if (at + level->span <= copy->from)
        i = (copy->from - at - level->span) / level->step + 1;
    for (; i < level->count && at + i * level->step < copy->end; i++) {
        if (depth + 1 == copy->box->level_count)
            copy_run(copy, at + i * level->step, to + i * level->packed);
        else
            copy_level(copy, depth + 1, at + i * level->step, to + i * level->packed);
    }
}

uint64_t
/* NOLINTNEXTLINE(readability-non-const-parameter): it is written to, by way of `copy` */
box_copy(const struct box *box, uint64_t from, const char *bytes, uint64_t length, char *to)
{
    struct copy copy = {.box = box, .from = from, .end = from + length, .bytes = bytes, .to = to};

    copy_level(&copy, 0, box->start, 0);
    return copy.copied;
}

uint64_t
box_before(const struct box *box, uint64_t offset)
{
    uint64_t before = 0;

    if (offset <= box->start)
        return 0;
    offset -= box->start;
    for (unsigned i = 0; i < box->level_count; i++) {
        const struct box_level *level = &box->levels[i];

        if (offset / level->step >= level->count)
            return before + level->count * level->packed;
        before += offset / level->step * level->packed;
        offset %= level->step;
    }
    return before + (offset < box->run ? offset : box->run);
}

uint64_t
/* NOLINTNEXTLINE(readability-non-const-parameter): it is written to, by way of `copy` */
box_pack(const struct box *box, uint64_t from, const char *bytes, uint64_t length, char *to)
{
    struct copy copy = {.box = box,
                        .from = from,
                        .end = from + length,
                        .bytes = bytes,
                        .to = to,
                        .skipped = box_before(box, from)};

    copy_level(&copy, 0, box->start, 0);
    return copy.copied;
}
