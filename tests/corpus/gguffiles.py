# SPDX-License-Identifier: Apache-2.0
"""Writes valid and invalid GGUF files without the gguf package. BAD: (name, rule, content)."""

import struct

U8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 2, 4, 5, 6, 7, 8, 9, 10, 12
FORMATS = {U8: "<B", U16: "<H", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q", F64: "<d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144), 24: (1, 1), 30: (1, 2)}


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, kind, value):
    if kind == STRING:
        return text(key) + struct.pack("<I", kind) + text(value)
    if kind == ARRAY:
        inner, values = value
        items = b"".join(text(v) if inner == STRING else struct.pack(FORMATS[inner], v) for v in values)
        return text(key) + struct.pack("<IIQ", kind, inner, len(values)) + items
    return text(key) + struct.pack("<I", kind) + struct.pack(FORMATS[kind], value)


def size_of(dims, kind):
    elements = 1
    for dim in dims:
        elements *= dim
    per, size = BLOCKS.get(kind, (1, 1))
    return elements // per * size


def info(name, dims, kind, offset):
    return text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset)


def gguf(tensors=(), pairs=(), version=3, align=32, count=None, pair_count=None, infos=None, data=None, magic=b"GGUF"):
    """A GGUF file. `tensors`: (name, dims in the order of the file, type, bytes)."""
    offset, described, body = 0, b"", b""
    for name, dims, kind, content in tensors:
        described += info(name, dims, kind, offset)
        body += content + bytes(-len(content) % align)
        offset = len(body)
    head = magic + struct.pack("<IQQ", version, len(tensors) if count is None else count, len(pairs) if pair_count is None else pair_count)
    head += b"".join(pairs) + (described if infos is None else infos)
    return head + bytes(-len(head) % align) + (body if data is None else data)


def split(tensors, pairs, counts, align=32, versions=None, more=None):
    """The parts of a model as gguf-split writes them: counts[i] tensors in part i, all key-values in the first one. `more`:
    additional pairs of each part."""
    parts = []
    for number, count in enumerate(counts):
        numbers = [pair("split.no", U16, number), pair("split.count", U16, len(counts)), pair("split.tensors.count", I32, len(tensors))]
        own = (list(pairs) if number == 0 else []) + (more[number] if more else [])
        taken = sum(counts[:number])
        parts.append(gguf(tensors[taken : taken + count], own + numbers, align=align, version=versions[number] if versions else 3))
    return parts


W = ("w", (4,), 0, bytes(range(16)))
ONE = struct.pack("<Q", 1)


def with_info(*infos, data=bytes(64), **more):
    return gguf(infos=b"".join(infos), count=len(infos), data=data, **more)


BAD = [
    ("empty-header", "GgufCutOff", b"GGUF"),
    ("magic-only-version", "GgufCutOff", b"GGUF\3\0\0\0"),
    ("version-1", "GgufVersion", gguf([W], version=1)),
    ("version-4", "GgufVersion", gguf([W], version=4)),
    ("version-big-endian", "GgufVersion", gguf([W], version=0x03000000)),
    ("tensors-2-63", "GgufTensors", gguf([W], count=2**63)),
    ("tensors-one-more", "GgufShape", gguf([W], count=2)),
    ("pairs-2-63", "GgufPairs", gguf([W], pair_count=2**63)),
    ("pairs-65537", "GgufPairs", gguf([W], pair_count=65537)),
    ("pairs-one-more", "GgufKey", gguf(pair_count=1)),
    ("key-empty", "GgufKey", gguf([W], [pair("", U32, 1)])),
    ("key-nul", "GgufKey", gguf([W], [pair(b"a\0b", U32, 1)])),
    ("key-2-63", "GgufKey", gguf([W], [struct.pack("<Q", 2**63)])),
    ("key-long", "GgufKey", gguf([W], [pair("k" * 40000, U32, 1)])),
    ("keys-together", "GgufKey", gguf([W], [pair(f"{i}" + "k" * 30000, U32, 1) for i in range(40)])),
    ("key-twice", "GgufKey", gguf([W], [pair("a", U32, 1), pair("b", U32, 1), pair("a", U32, 2)])),
    ("value-type", "GgufValue", gguf([W], [text("a") + struct.pack("<I", 13) + bytes(8)])),
    ("value-type-huge", "GgufValue", gguf([W], [text("a") + b"\xff" * 4 + bytes(8)])),
    ("value-cut", "GgufCutOff", gguf(pairs=[text("a") + struct.pack("<I", U64)], align=1)),
    ("string-2-63", "GgufCutOff", gguf([W], [text("a") + struct.pack("<IQ", STRING, 2**63)])),
    ("array-of-arrays", "GgufValue", gguf([W], [text("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1)])),
    ("array-type", "GgufValue", gguf([W], [text("a") + struct.pack("<IIQ", ARRAY, 99, 1)])),
    ("array-2-61", "GgufCutOff", gguf([W], [text("a") + struct.pack("<IIQ", ARRAY, U64, 2**61)])),
    ("array-beyond", "GgufCutOff", gguf([W], [text("a") + struct.pack("<IIQ", ARRAY, U8, 10**6)])),
    ("array-of-strings-beyond", "GgufCutOff", gguf([W], [text("a") + struct.pack("<IIQ", ARRAY, STRING, 10**6)])),
    ("alignment-0", "GgufAlignment", gguf([W], [pair("general.alignment", U32, 0)])),
    ("alignment-3", "GgufAlignment", gguf([W], [pair("general.alignment", U32, 3)])),
    ("alignment-type", "GgufValue", gguf([W], [pair("general.alignment", U64, 32)])),
    ("alignment-larger", "GgufData", gguf([W], [pair("general.alignment", U32, 2**31)])),
    ("split-number", "GgufSplit", gguf([W], [pair("split.no", U16, 2), pair("split.count", U16, 2)])),
    ("split-type", "GgufValue", gguf([W], [pair("split.no", U32, 0)])),
    ("name-64", "GgufName", gguf([("n" * 64, (4,), 0, bytes(16))])),
    ("name-2-63", "GgufName", with_info(struct.pack("<Q", 2**63) + bytes(40))),
    ("name-nul", "GgufName", gguf([("w\0x", (4,), 0, bytes(16))])),
    ("name-twice", "DuplicateTensorName", gguf([W, W])),
    ("rank-5", "GgufShape", gguf([("w", (1, 1, 1, 1, 1), 0, bytes(4))])),
    ("rank-2-31", "GgufShape", with_info(text("w") + struct.pack("<I", 2**31) + bytes(60))),
    ("dim-2-63", "GgufShape", with_info(info("w", (2**63,), 0, 0))),
    ("dims-overflow", "GgufShape", with_info(info("w", (2**32, 2**32), 0, 0))),
    ("bytes-overflow", "GgufShape", with_info(info("w", (2**62,), 0, 0))),
    ("row-no-block", "GgufShape", with_info(info("w", (33,), 2, 0))),
    ("row-0-blocks", "GgufShape", with_info(info("w", (255, 2), 12, 0))),
    ("type-removed", "GgufType", with_info(info("w", (32,), 4, 0))),
    ("type-removed-2", "GgufType", with_info(info("w", (32,), 31, 0))),
    ("type-unknown", "GgufType", with_info(info("w", (32,), 99, 0))),
    ("type-huge", "GgufType", with_info(info("w", (32,), 2**32 - 1, 0))),
    ("offset-first", "GgufOffset", with_info(info("w", (4,), 0, 32))),
    ("offset-overlap", "GgufOffset", with_info(info("a", (16,), 0, 0), info("b", (4,), 0, 32))),
    ("offset-unpadded", "GgufOffset", with_info(info("a", (4,), 0, 0), info("b", (4,), 0, 16))),
    ("offset-gap", "GgufOffset", with_info(info("a", (4,), 0, 0), info("b", (4,), 0, 64), data=bytes(128))),
    ("offset-huge", "GgufOffset", with_info(info("a", (4,), 0, 0), info("b", (4,), 0, 2**64 - 32))),
    ("end-wraps", "GgufOffset", with_info(info("a", (2**63 - 33,), 24, 0), info("b", (2**63 - 32,), 24, 2**63 - 32),
                                          info("c", (64,), 24, 2**64 - 64), info("d", (32,), 24, 0), data=bytes(32))),
    ("end-beyond-2-63", "GgufOffset", with_info(info("a", (2**60,), 0, 0), info("b", (2**60,), 0, 2**62))),
    ("data-missing", "GgufData", gguf([W], data=b"")),
    ("data-one-byte-short", "GgufData", gguf([W], data=bytes(15))),
]
