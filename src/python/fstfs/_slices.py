# SPDX-License-Identifier: Apache-2.0
"""Converts indices into a tensor to slices: (start, stop, step) for each dimension.

As in safetensors there are two sets of rules: for torch those of torch, for other frameworks those
of safetensors, with its errors.
"""

import operator

from ._library import SafetensorError

I32 = 1 << 31
I64 = 1 << 63
U64 = 1 << 64


def _bound(value):
    """A start or stop as an unsigned number, or None."""
    if value is None:
        return None
    number = operator.index(value)
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number >= U64:
        raise OverflowError("int too big to convert")
    return number


def _step(value):
    number = 1 if value is None else operator.index(value)
    if not -I64 <= number < I64:
        raise OverflowError("int too big to convert")
    if number < 1:
        raise SafetensorError(f"Slice step must be a positive integer, got {number}")
    return number


def _select(item, dim, shape):
    """The element that an integer index selects in dimension `dim`."""
    try:
        number = operator.index(item)
    except TypeError:
        number = I32
    if not -I32 <= number < I32:
        raise SafetensorError(f"Unsupported slice index at position {dim}: expected slice, int, or "
                              "ellipsis")
    size = shape[dim] if dim < len(shape) else 0
    if number < 0 and number + size < 0:
        raise SafetensorError(f"Invalid index {number} for dimension {dim} of size {size}")
    return number + size if number < 0 else number


def _parse(index, shape):
    """An int or (start, stop, step) for each dimension that the index names. A start or stop of
    None is that end of the dimension."""
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        return [(0, 0, 1)]
    items = index if isinstance(index, tuple) else (index,)
    ellipses = sum(item is Ellipsis for item in items)
    if ellipses > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    parsed = []
    for item in items:
        if item is Ellipsis:
            parsed += [(None, None, 1)] * max(0, len(shape) - (len(items) - 1))
        elif isinstance(item, slice):
            parsed.append((_bound(item.start), _bound(item.stop), _step(item.step)))
        else:
            parsed.append(_select(item, len(parsed), shape))
    return parsed


def _shown(parsed):
    """An index as safetensors prints it."""
    def one(item):
        if isinstance(item, int):
            return str(item)
        start, stop, step = ("" if value is None else value for value in item)
        return f"{start}:{stop}" if step == 1 else f"{start}:{stop}:{step}"

    return f"[{', '.join(map(one, parsed))}]"


def by_safetensors(index, shape):
    """(slices, shape of the result) by the rules of safetensors. Raises its errors."""
    parsed = _parse(index, shape)

    def refuse(why):
        raise SafetensorError(f"Error during slicing {_shown(parsed)} with shape {shape}: {why}")

    if len(parsed) > len(shape):
        refuse("more slicing indexes than dimensions in tensor")
    slices, taken = [(0, size, 1) for size in shape], list(shape)
    # innermost first, because safetensors reports the innermost error
    for dim in reversed(range(len(parsed))):
        item, size = parsed[dim], shape[dim]
        start, stop, step = (item, item + 1, 1) if isinstance(item, int) else item
        start, stop = start or 0, size if stop is None else stop
        if start >= size or stop > size:
            asked = start if start >= size else stop - 1
            refuse(f"index {asked} out of bounds for tensor dimension #{dim} of size {size}")
        if start > stop:
            refuse(f"it ends before it starts in dimension #{dim}")
        slices[dim] = start, stop, step
        taken[dim] = None if isinstance(item, int) else -(-(stop - start) // step)
    return slices, [count for count in taken if count is not None]


def _plain(item):
    return item is Ellipsis or type(item) in (int, slice)


def by_torch(torch, index, shape):
    """(slices, shape of the result) by the rules of torch. None if the index is not a strided slice
    (a list, a tensor, None, a mask) or has several ellipses: torch must index the whole tensor."""
    items = index if type(index) is tuple else (index,)
    if not all(map(_plain, items)) or items.count(Ellipsis) > 1:
        return None
    # Raises the error of torch for an invalid index.
    taken = list(torch.empty(shape, dtype=torch.uint8, device="meta")[index].shape)
    slices = []
    for item in items:
        if item is Ellipsis:
            whole = len(shape) - (len(items) - 1)
            slices += [(0, size, 1) for size in shape[len(slices):len(slices) + whole]]
            continue
        size = shape[len(slices)]
        if type(item) is int:
            start = item + size if item < 0 else item
            slices.append((start, start + 1, 1))
        else:
            start, stop, step = item.indices(size)
            slices.append((start, max(start, stop), step))
    return slices + [(0, size, 1) for size in shape[len(slices):]], taken
