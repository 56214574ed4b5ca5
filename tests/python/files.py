# SPDX-License-Identifier: Apache-2.0
"""Writes safetensors files of every dtype and checkpoints of several shards."""

import json
import os
import random
import struct

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "F4": 4, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32,
        "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}
SHAPES = [(), (1,), (0,), (6, 4), (4, 0, 2), (2, 3, 4), (513, 1026)]


def content(dtype, shape, seed):
    bits = BITS[dtype]
    for dim in shape:
        bits *= dim
    data = random.Random(seed).randbytes(bits // 8)
    return bytes(b & 1 for b in data) if dtype == "BOOL" else data


def tensors_of(dtypes, shapes, seed=0):
    """{name: (dtype, shape, bytes)}"""
    return {f"{dtype}.{'x'.join(map(str, shape))}": (dtype, shape, content(dtype, shape, seed + i))
            for dtype in dtypes for i, shape in enumerate(shapes)
            if not (dtype == "F4" and (not shape or shape[-1] % 2))}


def write(path, tensors, metadata=None, shift=0):
    """Writes the tensors in the order of the dict. `shift`: bytes by which the data is moved from an
    aligned offset."""
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + shift)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data for _, _, data in tensors.values())


def write_checkpoint(directory, tensors, shards=3):
    os.mkdir(directory)
    names, weight_map = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        write(os.path.join(directory, file), part, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {}, "weight_map": weight_map}, file)


def forget(path):
    """Drops a file, or the files of a directory, from the page cache."""
    for name in os.listdir(path) if os.path.isdir(path) else [""]:
        fd = os.open(os.path.join(path, name) if name else path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def remember(path):
    """Reads a file, or the files of a directory, into the page cache."""
    for name in os.listdir(path) if os.path.isdir(path) else [""]:
        with open(os.path.join(path, name) if name else path, "rb") as file:
            file.read()


def slices_of(rng, shape):
    """A random index into a tensor, valid or invalid."""
    def bound(size):
        return rng.choice((None, None, rng.randint(0, size + 1)))

    def one(size):
        return rng.choice((slice(bound(size), bound(size), rng.choice((None, 1, 2, 3))),
                           rng.randint(-size - 1, size), slice(None)))

    items = [one(size) for size in shape]
    if rng.random() < 0.3:
        items.insert(rng.randint(0, len(items)), Ellipsis)
    items = items[:rng.randint(0, len(items) + 1)]
    if rng.random() < 0.1:
        items.append(rng.choice((None, "a", 1.5, Ellipsis, slice(None, None, -1),
                                 slice(-1, None), [])))
    return items[0] if len(items) == 1 and rng.random() < 0.7 else tuple(items)


def answer(work):
    """The result of work(), or the type and message of the exception that it raises."""
    try:
        return work()
    except Exception as error:
        return type(error), str(error)
