# SPDX-License-Identifier: Apache-2.0
"""Writes files as torch.save() does, sound and broken, without torch.

`Pickler` writes the instructions of a pickle by hand, so that a case can have any of them. The formats are those of
torch/serialization.py; tests/loaders/test_containers.py compares with torch itself.
"""

import io
import math
import pickle
import random
import struct
import zipfile
import zlib

MAGIC = 0x1950A86A20F9469CFC6C
SIZES = {"DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
         "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexFloatStorage": 8,
         "ComplexDoubleStorage": 16, "QInt8Storage": 1, "UntypedStorage": 1}


class Global:
    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments


class Persistent:
    def __init__(self, *identity):
        self.identity = identity


class Raw:
    """Literal instructions, which must leave one value on the stack."""

    def __init__(self, instructions):
        self.instructions = instructions


def instructions_of(value):
    if isinstance(value, Raw):
        return value.instructions
    if isinstance(value, Global):
        return b"c" + value.module.encode() + b"\n" + value.name.encode() + b"\n"
    if isinstance(value, Call):
        return instructions_of(value.function) + instructions_of(tuple(value.arguments)) + b"R"
    if isinstance(value, Persistent):
        return instructions_of(tuple(value.identity)) + b"Q"
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return b"J" + struct.pack("<i", value) if -(2**31) <= value < 2**31 else b"\x8a" + bytes([len(data)]) + data
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(data)) + data
    if isinstance(value, tuple):
        return b"(" + b"".join(map(instructions_of, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(instructions_of, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(instructions_of(k) + instructions_of(v) for k, v in value.items()) + b"u"
    raise TypeError(value)


def dumps(value):
    return b"\x80\x02" + instructions_of(value) + b"."


def storage(key, elements, kind="FloatStorage", *view):
    return Persistent("storage", Global("torch.storage" if kind == "UntypedStorage" else "torch", kind), key, "cpu", elements, *view)


def strides_of(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


def tensor(at, shape, offset=0, strides=None, function="_rebuild_tensor_v2", more=()):
    """A tensor in the storage `at`, as torch pickles it."""
    return Call(Global("torch._utils", function), at, offset, tuple(shape), strides_of(shape) if strides is None else strides,
                False, Call(Global("collections", "OrderedDict")), *more)


def archive(root, storages, prefix="archive", extra=(), order=b"little", pickled=None):
    """A zip archive of torch.save(): storages begin at multiples of 64 bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:

        def add(name, data):
            info = zipfile.ZipInfo(f"{prefix}/{name}")
            at = out.tell() + 30 + len(info.filename)
            info.extra = struct.pack("<2sH", b"FB", (60 - at) % 64) + b"Z" * ((60 - at) % 64)
            file.writestr(info, data)

        add("data.pkl", dumps(root) if pickled is None else pickled)
        if order is not None:
            add("byteorder", order)
        for key, data in storages.items():
            add(f"data/{key}", data)
        for name, data in extra:
            add(name, data)
        add("version", b"3\n")
    return out.getvalue()


def legacy(root, storages, little=True):
    """The format before PyTorch 1.6. `storages`: key -> (elements, bytes)."""
    info = {"protocol_version": 1001, "little_endian": little, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    out = b"".join(pickle.dumps(value, protocol=2) for value in (MAGIC, 1001, info))
    out += dumps(root) + pickle.dumps(sorted(storages), protocol=2)
    for key in sorted(storages):
        elements, data = storages[key]
        out += struct.pack("<Q", elements) + data
    return out


def zip64(content, **changes):
    """The archive with all sizes and offsets in zip64 fields, as PyTorch writes it above 4 GiB. `changes`: other values for
    `count`, `start` and `length` of the zip64 end record, or bytes `between` it and its locator; with `end`, the end record keeps
    its values."""
    end = content.rindex(b"PK\5\6")
    count, length, start = struct.unpack_from("<HII", content, end + 10)
    directory, at = b"", start
    while at < end:
        fields = bytearray(content[at : at + 46])
        name, extra, comment = struct.unpack_from("<HHH", fields, 28)
        packed, size = struct.unpack_from("<II", fields, 20)
        header = struct.unpack_from("<I", fields, 42)[0]
        more = struct.pack("<HHQQQ", 1, 24, size, packed, header)
        struct.pack_into("<II", fields, 20, 0xFFFFFFFF, 0xFFFFFFFF)
        struct.pack_into("<I", fields, 42, 0xFFFFFFFF)
        struct.pack_into("<H", fields, 30, len(more))
        directory += bytes(fields) + content[at + 46 : at + 46 + name] + more
        at += 46 + name + extra + comment
    after = start + len(directory)
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, changes.get("count", count), changes.get("count", count),
                        changes.get("length", len(directory)), changes.get("start", start))
    locator = struct.pack("<IIQI", 0x07064B50, 0, after, 1)
    tail = changes.get("end", struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))
    return content[:start] + directory + end64 + changes.get("between", b"") + locator + tail


TINY = {"layer.weight": (8, 16), "layer.bias": (8,), "scale": (), "none": (0, 3)}


def weights(seed, shapes=None):
    """Random float32 tensors: {name: (shape, bytes)}."""
    made = random.Random(seed)
    return {name: (shape, made.randbytes(4 * math.prod(shape))) for name, shape in (shapes or TINY).items()}


def torch_file(tensors, how=archive):
    """A file of torch.save() with the tensors of weights(), each in a storage of its own."""
    root = {name: tensor(storage(str(i), len(data) // 4), shape) for i, (name, (shape, data)) in enumerate(tensors.items())}
    storages = {str(i): data for i, (_, data) in enumerate(tensors.values())}
    if how is legacy:
        storages = {key: (len(data) // 4, data) for key, data in storages.items()}
    return how(root, storages)


def save(path, tensors, how=archive):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(torch_file(tensors, how))


def write_sparse(path, tensors):
    """Writes an archive whose storages are holes, as torch.save() lays it out. `tensors`: (name, shape) of F16."""
    root = {name: tensor(storage(str(i), math.prod(shape), "HalfStorage"), shape) for i, (name, shape) in enumerate(tensors)}
    members = [("data.pkl", dumps(root)), ("byteorder", b"little")]
    members += [(f"data/{i}", 2 * math.prod(shape)) for i, (_, shape) in enumerate(tensors)] + [("version", b"3\n")]
    directory = b""
    with open(path, "wb") as file:
        at = 0
        for name, content in members:
            name = f"archive/{name}".encode()
            size = content if isinstance(content, int) else len(content)
            crc = 0 if isinstance(content, int) else zlib.crc32(content)
            before = at + 30 + len(name) + 20
            pad = (-before - 4) % 64
            wide = struct.pack("<HHQQ", 1, 16, size, size) + b"FB" + struct.pack("<H", pad) + b"Z" * pad
            head = struct.pack("<IHHHHHIIIHH", 0x04034B50, 0, 0, 0, 0, 0, crc, 2**32 - 1, 2**32 - 1, len(name), len(wide)) + name + wide
            more = struct.pack("<HHQQQ", 1, 24, size, size, at)
            directory += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, 0, 0, 0, 0, crc, 2**32 - 1, 2**32 - 1, len(name), len(more),
                                     0, 0, 0, 0, 2**32 - 1) + name + more
            file.seek(at)
            file.write(head if isinstance(content, int) else head + content)
            at += len(head) + size
        file.seek(at)
        file.write(directory + struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, len(members), len(members), len(directory), at)
                   + struct.pack("<IIQI", 0x07064B50, 0, at + len(directory), 1)
                   + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0))
