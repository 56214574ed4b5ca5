# SPDX-License-Identifier: Apache-2.0
"""Converts an index of a tensor to slices: (start, stop, step) in elements for each dimension.

As in safetensors, torch tensors are indexed by torch's rules, and tensors of other frameworks by
those of safetensors, with its errors.
"""

import operator

from ._library import SafetensorError

I32 = 1 << 31
I64 = 1 << 63
U64 = 1 << 64


def _bound(value):
    """Returns a start or stop as an unsigned number, or None."""
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
    """Returns the position that an integer index selects in dimension `dim`."""
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
    """Returns an int or (start, stop, step) for each dimension that the index covers. None as start
    or stop is that end of the dimension."""
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


def _format_index(parsed):
    """Formats an index as safetensors prints it."""
    def format_item(item):
        if isinstance(item, int):
            return str(item)
        start, stop, step = ("" if value is None else value for value in item)
        return f"{start}:{stop}" if step == 1 else f"{start}:{stop}:{step}"

    return f"[{', '.join(map(format_item, parsed))}]"


def by_safetensors(index, shape):
    """Returns (slices, shape of the result) by the rules of safetensors. Raises its errors."""
    parsed = _parse(index, shape)

    def refuse(why):
        raise SafetensorError(f"Error during slicing {_format_index(parsed)} with shape {shape}: "
                              f"{why}")

    if len(parsed) > len(shape):
        refuse("more slicing indexes than dimensions in tensor")
    slices, result_shape = [(0, size, 1) for size in shape], list(shape)
    # Innermost dimension first: its error is the one that safetensors reports.
    for dim in reversed(range(len(parsed))):
        item, size = parsed[dim], shape[dim]
        start, stop, step = (item, item + 1, 1) if isinstance(item, int) else item
        start, stop = start or 0, size if stop is None else stop
        if start >= size or stop > size:
            requested = start if start >= size else stop - 1
            refuse(f"index {requested} out of bounds for tensor dimension #{dim} of size {size}")
        if start > stop:
            refuse(f"it ends before it starts in dimension #{dim}")
        slices[dim] = start, stop, step
        result_shape[dim] = None if isinstance(item, int) else -(-(stop - start) // step)
    return slices, [count for count in result_shape if count is not None]


def _is_strided(item):
    return item is Ellipsis or type(item) in (int, slice)


def by_torch(torch, index, shape):
    """Returns (slices, shape of the result) by the rules of torch, and raises its errors. None if
    the index is not a strided slice (a list, a tensor, a mask, None) or has several ellipses: the
    caller must read the whole tensor and let torch index it."""
    items = index if type(index) is tuple else (index,)
    if not all(map(_is_strided, items)) or items.count(Ellipsis) > 1:
        return None
    # On an invalid index this raises torch's error.
    result_shape = list(torch.empty(shape, dtype=torch.uint8, device="meta")[index].shape)
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
    return slices + [(0, size, 1) for size in shape[len(slices):]], result_shape
