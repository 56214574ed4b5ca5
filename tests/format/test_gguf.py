# SPDX-License-Identifier: Apache-2.0
"""src/format reads GGUF files and reports the right rule for invalid ones."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import gguffiles  # noqa: E402
from gguffiles import ARRAY, BOOL, F64, STRING, U8, U16, U32, I32, gguf, pair  # noqa: E402
from test_torch import read  # noqa: E402

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
