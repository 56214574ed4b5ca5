# SPDX-License-Identifier: Apache-2.0
"""src/format reads GGUF files and reports the right rule for invalid ones."""

import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import gguffiles  # noqa: E402
from gguffiles import ARRAY, BOOL, F32, F64, STRING, U8, U16, U32, U64, I32, gguf, pair, split, text  # noqa: E402
from test_torch import BUILD, read  # noqa: E402

DATA = bytes(range(256)) * 4
PAIRS = [pair("general.architecture", STRING, "llama"), pair("long", STRING, "x" * 100000), pair("ratio", F64, 0.5),
         pair("flag", BOOL, 1), pair("tokens", ARRAY, (STRING, [f"token {i}" for i in range(20000)])),
         pair("scores", ARRAY, (U8, range(200))), pair("split.no", U16, 1), pair("split.count", U16, 3), pair("split.tensors.count", I32, 9)]


@pytest.mark.parametrize("name, rule, content", gguffiles.BAD, ids=[case[0] for case in gguffiles.BAD])
def test_bad_file(tmp_path, name, rule, content):
    verdict = read(tmp_path, content)[0]
    assert verdict.split()[0] == rule, verdict


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("align", [1, 8, 32, 4096])
def test_tensors(tmp_path, version, align):
    """Types, shapes in NumPy's order, padding, and a header that takes several reads."""
    tensors = [("token_embd.weight", (64, 3), 8, DATA[: 64 // 32 * 34 * 3]), ("norm", (5,), 0, DATA[7:27]),
               ("blk.0.q", (256, 2), 12, DATA[: 144 * 2]), ("n" * 63, (3,), 30, DATA[1:7]), ("i8", (2, 3, 4, 5), 24, DATA[:120]),
               ("none", (0,), 0, b""), ("scalar", (), 0, DATA[:4]), ("last", (1,), 1, DATA[9:11])]
    pairs = PAIRS + [pair("general.alignment", U32, align)]
    verdict, _, _, found = read(tmp_path, gguf(tensors, pairs, version=version, align=align))
    assert verdict.startswith("ok 8"), verdict
    names = {0: "F32", 1: "F16", 8: "Q8_0", 12: "Q4_K", 24: "I8", 30: "BF16"}
    assert found == {name: (names[kind], tuple(reversed(dims)), content) for name, dims, kind, content in tensors}


def test_no_tensors(tmp_path):
    assert read(tmp_path, gguf(pairs=PAIRS))[0].startswith("ok 0")


# --- key-values ---


def metadata_of(tmp_path, pairs):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([gguffiles.W], pairs))
    done = subprocess.run([BUILD / "tests/format/verdict", "metadata", path], capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        key, value, kind = line.split(" ")
        value = bytes.fromhex(value).decode("utf-8", "surrogateescape")
        found[bytes.fromhex(key).decode()] = json.loads(value) if kind == "json" else value
    assert list(found) == sorted(found)
    return found


def test_metadata(tmp_path):
    """Numbers, flags, strings and short arrays are kept; the split keys are not."""
    I8, I16, I64 = 1, 3, 11
    assert metadata_of(tmp_path, [
        pair("b.u8", U8, 255), pair("b.u16", U16, 65535), pair("b.u32", U32, 2**32 - 1), pair("b.u64", U64, 2**64 - 1),
        text("i8") + struct.pack("<Ib", I8, -128), text("i16") + struct.pack("<Ih", I16, -32768), pair("i32", I32, -(2**31)),
        text("i64") + struct.pack("<Iq", I64, -(2**63)), pair("false", BOOL, 0), pair("true", BOOL, 1), pair("f64", F64, 0.1),
        pair("a", STRING, "llama \u00e9\"\\"), pair("empty", STRING, ""), pair("nul", STRING, "x\0y"), pair("n", ARRAY, (U16, range(64))),
        pair("s", ARRAY, (STRING, ["a", "\"", "\u00e9"])), pair("none", ARRAY, (STRING, [])), pair("general.alignment", U32, 32),
        pair("split.no", U16, 0), pair("split.count", U16, 1), pair("split.tensors.count", I32, 1)]) == {
        "b.u8": 255, "b.u16": 65535, "b.u32": 2**32 - 1, "b.u64": 2**64 - 1, "i8": -128, "i16": -32768, "i32": -(2**31), "i64": -(2**63),
        "false": False, "true": True, "f64": 0.1, "a": "llama \u00e9\"\\", "empty": "", "nul": "x\0y", "n": list(range(64)), "s": ["a", "\"", "\u00e9"],
        "none": [], "general.alignment": 32}


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-5, 1e-6, 10000.0, 0.1, 1 / 3, 3.4028234663852886e38, 1.4e-45])
def test_metadata_floats(tmp_path, value):
    """A number is read back as the same float32 or float64, and is written in its shortest form."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    found = metadata_of(tmp_path, [pair("s", F32, value), pair("d", F64, value)])
    assert struct.pack("<f", found["s"]) == struct.pack("<f", single) and found["d"] == value


def test_metadata_that_json_cannot_express(tmp_path):
    found = metadata_of(tmp_path, [pair("a", F32, math.inf), pair("b", F64, -math.inf), pair("c", ARRAY, (F32, [math.nan]))])
    assert found == {"a": "Infinity", "b": "-Infinity", "c": ["NaN"]}


def test_large_values_are_described(tmp_path):
    """Arrays over 64 elements, values over 32 KiB, and those beyond 1 MiB in total."""
    found = metadata_of(tmp_path, [
        pair("tokens", ARRAY, (STRING, [str(i) for i in range(65)])), pair("scores", ARRAY, (F32, [0.5] * 30000)),
        pair("most", STRING, "x" * 32768), pair("over", STRING, "x" * 32769), pair("long", STRING, "x" * 10**6), pair("strings", ARRAY, (STRING, ["\x01" * 6000])),
        *[pair(f"many{i:03}", STRING, "y" * 32768) for i in range(40)], pair("z", U32, 7)])
    assert found["tokens"] == {"type": "array", "of": "string", "count": 65}
    assert found["scores"] == {"type": "array", "of": "float32", "count": 30000}
    assert found["most"] == "x" * 32768
    assert found["over"] == {"type": "string", "bytes": 32769} and found["long"] == {"type": "string", "bytes": 10**6}
    assert found["strings"] == {"type": "array", "of": "string", "count": 1}
    kept = [key for key in found if key.startswith("many") and found[key] == "y" * 32768]
    assert kept == [f"many{i:03}" for i in range(30)]
    assert found["many039"] == {"type": "string", "bytes": 32768} and found["z"] == 7


# --- merging ---


def merge(tmp_path, parts):
    paths = []
    for number, content in enumerate(parts):
        paths.append(tmp_path / f"m-{number + 1:05}-of-{len(parts):05}.gguf")
        paths[-1].write_bytes(content)
    done = subprocess.run([BUILD / "tests/format/verdict", "merge", tmp_path / "merged", *paths], capture_output=True, text=True, check=True)
    return done.stdout.strip(), (tmp_path / "merged").read_bytes()


TENSORS = [("token_embd.weight", (64, 3), 8, DATA[:204]), ("norm", (5,), 0, DATA[7:27]), ("blk.0.q", (256, 2), 12, DATA[:288]),
           ("n" * 63, (3,), 30, DATA[1:7]), ("none", (0,), 0, b""), ("scalar", (), 0, DATA[:4]), ("last", (1,), 1, DATA[9:11])]
MODEL = [pair("general.architecture", STRING, "llama"), pair("tokens", ARRAY, (STRING, [f"token {i}" for i in range(30000)])), pair("ratio", F64, 0.5)]


@pytest.mark.parametrize("counts", [(7, 0), (0, 7), (3, 4), (1, 1, 1, 1, 1, 1, 1), (2, 0, 5)], ids=str)
@pytest.mark.parametrize("align", [1, 8, 32, 4096])
def test_merge_is_the_model_before_it_was_split(tmp_path, counts, align):
    pairs = MODEL + [pair("general.alignment", U32, align)]
    more = [[]] + [[pair("general.alignment", U32, align)]] * (len(counts) - 1)
    assert merge(tmp_path, split(TENSORS, pairs, counts, align, more=more)) == ("ok", gguf(TENSORS, pairs, align=align))


def test_merge_without_final_padding_and_with_split_keys_first(tmp_path):
    """Parts that end with their last tensor, have version 2, or other bytes than zero in the padding."""
    first, second = split(TENSORS, [], (3, 4), versions=(2, 3), more=[MODEL, [pair("only.here", U32, 1)]])
    padding = len(first) - 288 - 12  # of norm, before blk.0.q
    first = first[:padding] + b"\xff" * 12 + first[padding + 12 :]
    second = second[: second.rindex(DATA[9:11]) + 2]
    assert merge(tmp_path, [first, second]) == ("ok", gguf(TENSORS, MODEL))


@pytest.mark.parametrize("rule, parts", [
    ("0 GgufSplit split.no is 1, expected 0", split(TENSORS, MODEL, (3, 4))[::-1]),
    ("1 GgufSplit split.no is 0, expected 1", [split(TENSORS, MODEL, (3, 4))[0]] * 2),
    ("0 GgufSplit split.no is 0 (absent), expected 0", [gguf(TENSORS, MODEL), split(TENSORS, MODEL, (3, 4))[1]]),
    ("0 GgufSplit split.count is 3, expected 2", split(TENSORS, MODEL, (3, 2, 2))[:2]),
    ("1 GgufSplit split.count is 4, expected 3", [*split(TENSORS, MODEL, (3, 2, 2))[:1], *split(TENSORS, MODEL, (3, 2, 1, 1))[1:3]]),
    ("0 GgufSplit split.tensors.count is 6, all parts have 7 tensors", [split(TENSORS[:6], MODEL, (3, 3))[0], split(TENSORS, MODEL, (3, 4))[1]]),
    ('1 GgufSplit the value of key "general.alignment" differs from that in the first part',
     [split(TENSORS, MODEL + [pair("general.alignment", U32, 32)], (3, 4))[0],
      split(TENSORS, [], (3, 4), align=64, more=[[], [pair("general.alignment", U32, 64)]])[1]]),
    ("0 GgufAlignment general.alignment is 131072, expected at most 65536 to merge the parts",
     split(TENSORS, MODEL, (3, 4), align=131072, more=[[pair("general.alignment", U32, 131072)]] * 2)),
    ('1 GgufSplit the value of key "ratio" differs from that in the first part', split(TENSORS, MODEL, (3, 4), more=[[], [pair("ratio", F64, 0.25)]])),
    ('1 GgufSplit the value of key "general.architecture" differs from that in the first part',
     split(TENSORS, MODEL, (3, 4), more=[[], [pair("a", F64, 0.25), pair("general.architecture", STRING, "bert")]])),
], ids=lambda value: value[:60] if isinstance(value, str) else "")
def test_parts_that_do_not_belong_together(tmp_path, rule, parts):
    assert merge(tmp_path, parts) == (rule, b"")


@pytest.mark.parametrize("first, other", [(64, 32), (1, 32), (4096, 32), (32, 64), (32, 131072)])
def test_parts_of_other_alignments(tmp_path, first, other):
    """llama.cpp opens each part by itself, without general.alignment with that of 32, and merges by that of the first part."""
    key, others = ([pair("general.alignment", U32, align)] if align != 32 else [] for align in (first, other))
    parts = [split(TENSORS, MODEL + key, (3, 4), first)[0], split(TENSORS, [], (3, 4), other, more=[[], others if first == 32 else []])[1]]
    assert merge(tmp_path, parts) == ("ok", gguf(TENSORS, MODEL + key, align=first))


def test_file_that_is_not_split(tmp_path):
    assert merge(tmp_path, [gguf(TENSORS, MODEL)]) == ("ok", gguf(TENSORS, MODEL))
    assert merge(tmp_path, split(TENSORS, MODEL, (7,))) == ("ok", gguf(TENSORS, MODEL))


def test_equal_keys_of_parts_agree(tmp_path):
    parts = split(TENSORS, MODEL, (3, 4), more=[[], MODEL])
    assert merge(tmp_path, parts) == ("ok", gguf(TENSORS, MODEL))
