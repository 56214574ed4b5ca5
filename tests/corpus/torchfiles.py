# SPDX-License-Identifier: Apache-2.0
"""Writes files as torch.save() does, sound and broken, without torch.

`Pickler` writes the instructions of a pickle by hand, so that a case can have any of them. The formats are those of
torch/serialization.py; tests/loaders/test_containers.py compares with torch itself.
"""

import io
import pickle
import struct
import zipfile

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
