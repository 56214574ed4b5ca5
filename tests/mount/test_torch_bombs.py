# SPDX-License-Identifier: Apache-2.0
"""Pickles and archives that try to exhaust the daemon, or to run code in it. Its memory is bounded by the size of the pickle
and of the central directory, and it serves other files."""

import os
import struct
import sys
from pathlib import Path

import oracle
import pytest
from test_bombs import BESIDE, MEMORY, attempt, check, look, much, source  # noqa: F401 a fixture

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "corpus"))
import bad_torch  # noqa: E402
import torchfiles as t  # noqa: E402

MOST_PICKLE = 64 << 20
PARSE_FACTOR = 14  # TORCH_PARSE_FACTOR
ZIP_FACTOR = 4
SIZE = much(20_000_000)
TENSORS = t.instructions_of(bad_torch.ONE)


def repeated(opening, part, closing=b""):
    return b"\x80\x04" + opening + part * (SIZE // len(part)) + closing + b"."


PICKLES = {
    "tuples": repeated(b"", b")"),
    "nested-tuples": repeated(b"N", b"\x85"),
    "dictionaries": repeated(b"", b"}"),
    "lists": repeated(b"", b"]"),
    "memo": repeated(b"N", b"\x94"),
    "memo-of-memo": repeated(b"Nq\0", b"h\0\x94"),
    "strings": repeated(b"", b"\x8c\0"),
    "long-integers": repeated(b"", b"\x8a\x09" + b"\xff" * 8 + b"\x7f"),
    "calls": repeated(b"cos\nsystem\n", b")R"),
    "persistent": repeated(b"N", b"Q"),
    "marks": repeated(b"", b"("),
    "items": repeated(b"}", b"K\1Ns"),
    "globals": repeated(b"", b"ca\nb\n"),
    "one-string": b"\x80\x04X" + struct.pack("<I", SIZE) + b"x" * SIZE + b".",
}


@pytest.mark.parametrize("bomb, way", [*((bomb, "zip") for bomb in PICKLES),
                                       *((bomb, "legacy") for bomb in ("tuples", "memo", "one-string"))])
def test_pickle(mount, source, bomb, way):  # noqa: F811
    content = t.archive(None, {}, pickled=PICKLES[bomb]) if way == "zip" else \
        t.legacy({}, {}).replace(t.dumps({}), PICKLES[bomb], 1)
    Path(source.path("bomb/x.pt")).write_bytes(content)
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    # The older format is read in parts that double, because the length of the pickle is not known.
    check(m, source, PARSE_FACTOR * (1 if way == "zip" else 2) * len(content) + MEMORY + BESIDE)


def test_pickle_over_the_limit(mount, source):  # noqa: F811
    Path(source.path("bomb/x.pt")).write_bytes(t.archive(None, {}, pickled=b"\x80\2" + b"N0" * (MOST_PICKLE // 2) + TENSORS + b"."))
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    check(m, source, MEMORY + BESIDE)
    line, = m.problems()
    assert line.startswith("bomb/x.pt: refused: TorchPickle: ")


@pytest.mark.parametrize("count", [much(1_000_000), 2_000_000])
def test_many_members(mount, source, count):  # noqa: F811
    """A central directory with many entries: read up to 64 MiB."""
    first = bad_torch.SOUND
    end = first.rindex(b"PK\5\6")
    known, length, start = struct.unpack_from("<HII", first, end + 10)
    entry = struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0)
    path = Path(source.path("bomb/x.pt"))
    directory = first[start:end] + b"".join(entry + b"%08d" % i for i in range(count))
    at = start + len(directory)
    path.write_bytes(first[:start] + directory + struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, known + count, known + count,
                                                             len(directory), start)
                     + struct.pack("<IIQI", 0x07064B50, 0, at, 1)
                     + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0))
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    check(m, source, ZIP_FACTOR * min(len(directory), 64 << 20) + MEMORY + BESIDE)
    line, = m.problems()
    assert line.startswith("bomb/x.pt: refused: " + ("ZipDirectory: " if len(directory) > 64 << 20 else "ZipLocalHeader: "))


def test_nothing_is_executed(mount, source):  # noqa: F811
    """Pickles that create a file in pickle.load(), and other files that are unusual: all views show their tensor."""
    ran = Path(source.path("ran"))
    files = dict(bad_torch.READ) | bad_torch.evil(f"touch {ran}")
    for name, content in files.items():
        os.mkdir(source.path(f"bomb/{name}"))
        Path(source.path(f"bomb/{name}/x.pt")).write_bytes(content)
    m = mount(source.root, f"--memory={MEMORY}")
    look(m)
    for name in files:
        for view in ("merged", "shards"):
            assert os.listdir(m / f"{view}/bomb/{name}") == ["x.safetensors"]
            entries, _, _ = oracle.read_header(m / f"{view}/bomb/{name}/x.safetensors")
            assert {entry.read() for entry in entries} - {b""} == {bad_torch.F4 * 2}, name
        for folder, _, names in os.walk(m / f"tensors/bomb/{name}/x"):
            for file in names:
                assert oracle.read_all(os.path.join(folder, file)) in (bad_torch.F4 * 2, b"")
    check(m, source, MEMORY + BESIDE)
    assert attempt(os.stat, ran) != 0
    assert m.problems() == []
