# SPDX-License-Identifier: Apache-2.0
"""Compares src/format with the libraries: safetensors' verdicts and headers, and NumPy's headers.

FSTFS_BUILD is the build directory (with tests/format/verdict).
"""

import io
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import headers  # noqa: E402

VERDICT = os.path.join(os.environ.get("FSTFS_BUILD", "build"), "tests/format/verdict")

# The rules in the library's messages.
RULES = [
    ("header too small", "HeaderTooSmall"),
    ("header too large", "HeaderTooLarge"),
    ("invalid header length", "InvalidHeaderLength"),
    ("invalid UTF-8 in header", "InvalidHeader"),
    ("invalid JSON in header", "InvalidHeaderDeserialization"),
    ("invalid offset for tensor", "InvalidOffset"),
    ("overflow computing buffer size", "ValidationOverflow"),
    ("the slice does not end up at a byte boundary", "MisalignedSlice"),
    ("invalid shape, data type, or offset for tensor", "TensorInvalidInfo"),
    ("incomplete metadata, file not fully covered", "MetadataIncompleteBuffer"),
]


def library_verdict(path):
    """The rule by which the library refuses the file; None if it accepts it."""
    try:
        with safetensors.safe_open(path, "np") as f:
            f.keys()
        return None
    except safetensors.SafetensorError as error:
        message = str(error)
    for text, rule in RULES:
        if text in message:
            return rule
    return message


class Verdicts:
    """A verdict process, which answers for one file after another."""

    def __init__(self):
        self.process = subprocess.Popen(
            [VERDICT, "check"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="surrogateescape"
        )

    def of(self, path):
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().rstrip("\n").split(" ", 1)
        assert answer[0], f"verdict died: {self.process.wait()}"
        return (None if answer[0] == "ok" else answer[0]), answer[-1]

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@pytest.fixture(scope="module")
def verdicts():
    v = Verdicts()
    yield v
    v.close()


def write(path, content):
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("name,content,rule,note", headers.CASES, ids=[c[0] for c in headers.CASES])
def test_corpus(verdicts, tmp_path, name, content, rule, note):
    path = tmp_path / "x.safetensors"
    write(path, content)
    ours, text = verdicts.of(path)
    theirs = library_verdict(path)
    path.unlink()
    print(f"{name}: ours {ours} ({text}), safetensors {theirs}")
    assert ours == rule
    if note:
        assert theirs != rule, "the note explains a difference that is not there"
    else:
        assert theirs == rule


def test_corpus_names_are_unique():
    names = [case[0] for case in headers.CASES]
    assert len(names) == len(set(names))


# Rules that are checked for each tensor, in the order of their offsets.
PER_TENSOR = {"InvalidOffset", "ValidationOverflow", "MisalignedSlice", "TensorInvalidInfo"}


def known_difference(data, ours, theirs):
    """Whether two verdicts on a mutated file differ for a known reason."""
    if ours == "DuplicateTensorName":
        return True
    n = struct.unpack("<Q", data[:8])[0]
    if theirs == "InvalidHeaderDeserialization":  # a dtype unknown to the library
        return any(name not in headers.DTYPE_BITS for name, _ in entries(json.loads(data[8 : 8 + n])))
    if {ours, theirs} <= PER_TENSOR:
        # For tensors with the same offset, the library's order is arbitrary; fstfs checks them by
        # name.
        places = [tuple(offsets) for _, offsets in entries(json.loads(data[8 : 8 + n]))]
        return len(set(places)) < len(places)
    return False


def entries(header):
    """The dtype and offsets of each tensor, in either of serde's forms."""
    for name, entry in header.items():
        if name != "__metadata__":
            fields = (entry["dtype"], entry["data_offsets"]) if isinstance(entry, dict) else (entry[0], entry[2])
            yield fields[0] if isinstance(fields[0], str) else next(iter(fields[0])), fields[1]


def mutate(rng, data):
    """Changes a few bytes, mostly in the header, and sometimes corrects N."""
    n = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    header, rest = bytearray(data[8 : 8 + n]), bytearray(data[8 + n :])
    tokens = [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"1", b"9", b"-", b".", b"e", b" ", b"\n", b"\0", b"\x7f",
              b"\x80", b"\xff", b"null", b"true", b"\\u0000", b"\\ud800", b"\\udc00", b'"a"', b'"dtype"', b"U8", b"18446744073709551615",
              b"18446744073709551616", b"\xc3\xa9", b"__metadata__", b"F4", b"BF16", b'"x":1,']  # fmt: skip
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        at = rng.randrange(len(header) + 1)
        kind = rng.randrange(6)
        if kind == 0 and header and rng.random() < 0.3:
            header[min(at, len(header) - 1)] = rng.randrange(256)
        elif kind == 1:
            header[at:at] = rng.choice(tokens)
        elif kind == 2:
            del header[at : at + rng.choice((1, 1, 1, 2, 4, 10))]
        elif kind == 3:
            token = rng.choice(tokens)
            header[at : at + len(token)] = token
        elif kind == 4:
            other = rng.randrange(len(header) + 1)
            header[at:at] = header[other : other + rng.randrange(1, 60)]
        elif header:
            digits = [i for i, c in enumerate(header) if 48 <= c <= 57]
            if digits:
                header[rng.choice(digits)] = rng.choice(b"0123456789")
    if rng.random() < 0.1:
        rest = rest[: rng.randrange(len(rest) + 1)] + bytes(rng.randrange(3))
    length = len(header) if rng.random() < 0.97 else max(0, len(header) + rng.choice((-2, -1, 1, 2)))
    return struct.pack("<Q", length) + bytes(header) + bytes(rest)


@pytest.mark.parametrize("seed", range(8))
def test_mutations(verdicts, tmp_path, seed):
    rng = random.Random(seed)
    cases = [c for c in headers.CASES if not callable(c[1]) and 8 < len(c[1]) < 2000]
    sound = [c[1] for c in cases if c[2] is None]
    broken = [c[1] for c in cases if c[2] is not None]
    path = tmp_path / "x.safetensors"
    tally = {}
    for _ in range(1000):
        data = mutate(rng, rng.choice(sound if rng.random() < 0.7 else broken))
        path.write_bytes(data)
        ours, text = verdicts.of(path)
        theirs = library_verdict(path)
        tally[ours] = tally.get(ours, 0) + 1
        assert ours == theirs or known_difference(data, ours, theirs), f"{data!r}: ours {ours} ({text}), safetensors {theirs}"
    print(tally)
    assert tally.get(None, 0) > 50 and len(tally) > 5, "the mutations test nothing"


SHAPES = [(), (1,), (7,), (2, 3), (0,), (3, 0, 2), (1, 1, 1, 1), (123456789, 0), (2**40, 0), (5,) * 10, (1,) * 60]  # fmt: skip
NUMPY = {
    "BOOL": "bool", "U8": "u1", "I8": "i1", "I16": "i2", "U16": "u2", "F16": "f2", "I32": "i4", "U32": "u4", "F32": "f4",
    "C64": "c8", "F64": "f8", "I64": "i8", "U64": "u8",
}  # fmt: skip


def npy_header(dtype, shape, size=0):
    return subprocess.run([VERDICT, "npy", dtype, str(size), *map(str, shape)], check=True, capture_output=True).stdout


def saved_header(path, array):
    np.save(path, array)
    data = path.read_bytes()
    return data[: len(data) - array.nbytes]


def header_by_numpy(shape):
    """NumPy's header for a shape that no array can have."""
    description = {"descr": "<f4", "fortran_order": False, "shape": shape}
    out = io.BytesIO()
    try:
        np.lib.format.write_array_header_1_0(out, description)
    except ValueError:
        np.lib.format.write_array_header_2_0(out, description)
    return out.getvalue()


@pytest.mark.parametrize("dtype", NUMPY)
def test_npy_headers_equal_numpys(tmp_path, dtype):
    for shape in SHAPES:
        if np.prod(shape, dtype=object) > 10**8:
            continue
        array = np.zeros(shape, NUMPY[dtype])
        assert npy_header(dtype, shape) == saved_header(tmp_path / "x.npy", array), shape


@pytest.mark.parametrize("rank", [*range(57, 90), *range(21780, 21840, 1), 40000])
def test_npy_headers_of_many_dimensions(rank):
    """More dimensions than an array can have, written by NumPy's header function. At about 21,800,
    the header exceeds the 65,535 bytes of version 1.0."""
    shape = (1,) * rank
    assert npy_header("F32", shape) == header_by_numpy(shape)


@pytest.mark.parametrize("digits", range(1, 21))
def test_npy_headers_of_long_dimensions(digits):
    shape = (int("9" * digits) if digits < 20 else 2**64 - 1, 1)
    assert npy_header("F32", shape) == header_by_numpy(shape)


ML_DTYPES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E5M2": "float8_e5m2",
}  # fmt: skip


@pytest.mark.parametrize("dtype", ML_DTYPES)
def test_npy_of_ml_dtypes(tmp_path, dtype):
    """Equal to the output of numpy.save, and numpy.load returns shape and bytes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, ML_DTYPES[dtype]))
    ours = npy_header(dtype, array.shape)
    if dtype == "F8_E5M2":  # numpy.save writes "<f1", which numpy.load refuses
        assert ours == npy_header("F8_E4M3", array.shape)
    else:
        assert ours == saved_header(tmp_path / "saved.npy", array)
    path = tmp_path / "x.npy"
    path.write_bytes(ours + array.tobytes())
    loaded = np.load(path)
    assert loaded.shape == array.shape and loaded.tobytes() == array.tobytes()
    assert loaded.dtype.itemsize == array.dtype.itemsize
    assert loaded.view(array.dtype).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2"])
def test_npy_of_sub_byte_dtypes(tmp_path, dtype):
    path = tmp_path / "x.npy"
    path.write_bytes(npy_header(dtype, (2, 8), 12) + bytes(range(12)))
    loaded = np.load(path)
    assert loaded.dtype == np.uint8 and loaded.shape == (12,) and loaded.tobytes() == bytes(range(12))


def test_written_headers_equal_safetensors(tmp_path):
    """A file of the library that is read and rewritten has the same header, byte for byte. (Without
    empty tensors, which the library orders arbitrarily.)"""
    rng = random.Random(5)
    path = tmp_path / "x.safetensors"
    for turn in range(60):
        tensors = {}
        for _ in range(rng.randrange(0, 30)):
            name = "".join(rng.choice('abc.é中😀"\\/\n\t\b\f\r\x01\x1f\x7f \0') for _ in range(rng.randrange(12)))
            shape = tuple(rng.randrange(1, 4) for _ in range(rng.randrange(4)))
            tensors[name] = np.zeros(shape, rng.choice(list(NUMPY.values())))
        metadata = {f"k{rng.randrange(9)}\n": "v\"\0é"} if turn % 2 else None
        safetensors.numpy.save_file(tensors, path, metadata=metadata)
        data = path.read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        dumped = subprocess.run([VERDICT, "dump", path], check=True, capture_output=True).stdout
        assert dumped == data[: 8 + n]


def index_of(tmp_path, content):
    path = tmp_path / "index.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    answer = subprocess.run([VERDICT, "index", path], check=True, capture_output=True).stdout.decode("utf-8")
    return answer.split("\n")


def test_index(tmp_path):
    names = [f"layer.{i}.w\u00e9ight" for i in range(500)]
    shards = [f"model-{i:05}-of-00007.safetensors" for i in range(7)]
    rng = random.Random(3)
    weight_map = {name: rng.choice(shards) for name in rng.sample(names, 500)}
    for ascii_only in (True, False):
        text = json.dumps({"metadata": {"total_size": 2**40}, "weight_map": weight_map}, ensure_ascii=ascii_only, indent=2)
        answer = index_of(tmp_path, text.encode())
        assert answer[:2] == ["ok", str(2**40)]
        ordered = sorted(weight_map.items(), key=lambda item: item[0].encode())
        assert answer[2:-1] == [f"{shard}\t{name}" for name, shard in ordered]


@pytest.mark.parametrize(
    "size,expected",
    [(5, "5"), (5.0, "5"), (5.5, "-"), (-1, "-"), ("5", "-"), (None, "-"), (2**53, str(2**53)), (1e300, "-"), ([5], "-")],
)
def test_index_total_size(tmp_path, size, expected):
    assert index_of(tmp_path, {"metadata": {"total_size": size}, "weight_map": {}})[:2] == ["ok", expected]
