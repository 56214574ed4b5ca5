# SPDX-License-Identifier: Apache-2.0
"""Sparse checkpoints of real size: 22,213 tensors in 50 GB, 230,000 tensors in 160 shards."""

import json
import os
import random
import tempfile
from pathlib import Path

import oracle
import pytest
import safetensors
from conftest import SLOW, child
from corpus import trees

DESCRIPTION = Path(__file__).resolve().parents[3] / "shared/data/qwen3.5-25b-a3b.json"
MODEL = "model"


@pytest.fixture(scope="session")
def qwen(shared_place):
    """(root, table, marks): every 15th tensor is marked, and the first and last of each shard."""
    if not DESCRIPTION.exists():
        pytest.skip("../shared/data/qwen3.5-25b-a3b.json does not exist")
    root = shared_place / "qwen"
    table = trees.published(DESCRIPTION, root / "m")
    (root / "m/config.json").write_bytes(b"{}\n")
    chosen = list(table)[::15]
    by_shard = {}
    for name, (shard, *_) in table.items():
        by_shard.setdefault(shard, []).append(name)
    for names in by_shard.values():
        chosen += [names[0], names[-1]]
    return root, table, trees.mark(root / "m", table, sorted(set(chosen)))


@pytest.fixture(scope="session")
def experts(shared_place):
    root = shared_place / "experts"
    table = trees.experts(root / "m")
    rng = random.Random(3)
    chosen = set(rng.sample(list(table), 400)) | {next(iter(table)), list(table)[-1]}
    return root, table, trees.mark(root / "m", table, sorted(chosen))


def edges(fd, path, offset, size, marks):
    """Reads the marks at a tensor's edges, and one byte beyond."""
    first, last = marks
    width = len(first)
    assert os.pread(fd, width, offset) == first, path
    assert os.pread(fd, width, offset + size - width) == last, path


def check_tensor_files(view_root, table, marks, npy=False):
    for name, mark in marks.items():
        _, dtype, shape, _, size = table[name]
        escaped = os.fsdecode(oracle.escape(name))
        path = f"{view_root}/m/{MODEL}/{escaped}" + (".npy" if npy else "")
        fd = os.open(path, os.O_RDONLY)
        try:
            total = os.fstat(fd).st_size
            if npy:
                head = os.pread(fd, 4096, 0)[:total - size]
                assert head.startswith(b"\x93NUMPY") and str(tuple(shape)).encode() in head
            else:
                assert total == size
            edges(fd, path, total - size, size, mark)
            assert os.pread(fd, 100, total - 3) == mark[1][-3:]
        finally:
            os.close(fd)


def check_whole(path, table, names, marks):
    """Compares a safetensors file of the mount with the table, and reads marks at its offsets."""
    entries, _, start = oracle.read_header(path)
    fd = os.open(path, os.O_RDONLY)
    before = None
    try:
        for e in entries:
            _, dtype, shape, _, size = table[e.name]
            assert (e.dtype, list(e.shape), e.size) == (dtype, list(shape), size)
            if e.name in marks:
                edges(fd, path, e.offset, e.size, marks[e.name])
                if before in marks and e.size:  # across the edge between two tensors
                    left, right = marks[before][1], marks[e.name][0]
                    assert os.pread(fd, len(left) + len(right), e.offset - len(left)) \
                        == left + right
            before = e.name
    finally:
        os.close(fd)
    with safetensors.safe_open(path, "numpy") as f:
        assert set(f.keys()) == {e.name for e in entries}
    return entries, start


def merged_order(table):
    """The names in the order of the merged file."""
    placed = sorted(table, key=lambda n: (table[n][0], table[n][3]))
    entries = [oracle.Entry(n, table[n][1], table[n][2], "", 0, table[n][4]) for n in placed]
    return [e.name for e in oracle.file_order(entries)]


def check_listing(view_root, table, npy=False):
    """Compares all names and sizes."""
    found = {}
    with os.scandir(f"{view_root}/m/{MODEL}") as listing:
        for e in listing:
            found[e.name] = e.stat().st_size
    suffix = ".npy" if npy else ""
    assert found.keys() == {os.fsdecode(oracle.escape(n)) + suffix for n in table}
    for name, (_, _, _, _, size) in table.items():
        got = found[os.fsdecode(oracle.escape(name)) + suffix]
        assert got == size or npy and size + 64 <= got <= size + 192 and got % 64 == size % 64


@pytest.mark.limit(200)
def test_published_checkpoint_in_every_view(mount, qwen):
    root, table, marks = qwen
    m = mount(root, limit=200 * SLOW)
    check_listing(m / "tensors", table)
    check_listing(m / "npy", table, npy=True)
    check_tensor_files(m / "tensors", table, marks)
    check_tensor_files(m / "npy", table, marks, npy=True)
    entries, start = child(check_whole, m / f"merged/m/{MODEL}.safetensors", table, None, marks,
                           seconds=100)
    assert start % 4096 == 0
    assert [e.name for e in entries] == merged_order(table)
    assert sorted(os.listdir(m / "merged/m")) == ["config.json", "model.safetensors"]
    for shard in sorted({t[0] for t in table.values()}):
        check_whole(m / f"shards/m/{shard}", table, None, marks)
        assert os.stat(m / f"shards/m/{shard}").st_size == os.stat(root / "m" / shard).st_size
    with open(m / "tensors/m/model.index.json") as f:
        index = json.load(f)
    assert index["weight_map"] == {n: t[0] for n, t in table.items()}
    assert index["metadata"]["total_size"] == 50182743296
    assert m.problems() == []


@pytest.mark.limit(200)
@pytest.mark.parametrize("option", ["--shards=7", "--shard-size=1G", "--shard-size=1GB"])
def test_published_checkpoint_recut(mount, qwen, option):
    root, table, marks = qwen
    m = mount(root, option, limit=200 * SLOW)
    limit = {"--shards=7": None, "--shard-size=1G": 1 << 30, "--shard-size=1GB": 10**9}[option]
    names = sorted(n for n in os.listdir(m / "shards/m") if n.endswith(".safetensors"))
    count = len(names)
    assert names == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    seen = {}
    for name in names:
        entries, start = child(check_whole, m / f"shards/m/{name}", table, None, marks)
        size = sum(e.size for e in entries)
        assert limit is None or size <= limit or len(entries) == 1
        for e in entries:
            assert e.name not in seen
            seen[e.name] = name
    assert seen.keys() == table.keys()
    if limit is None:
        assert count == 7
    else:
        assert count <= 50182743296 / limit * 1.3 + 2
    with open(m / "shards/m/model.safetensors.index.json") as f:
        index = json.load(f)
    assert index["weight_map"] == seen
    assert index["metadata"]["total_size"] == 50182743296
    assert m.problems() == []


@pytest.mark.limit(200)
def test_230000_tensors(mount, experts):
    root, table, marks = experts
    m = mount(root, "--shards=9", limit=200 * SLOW)
    check_listing(m / "tensors", table)
    check_tensor_files(m / "tensors", table, marks)
    check_tensor_files(m / "npy", table, marks, npy=True)
    names = os.listdir(m / f"npy/m/{MODEL}")
    assert len(names) == 230_000 and names == sorted(names)
    entries, _ = child(check_whole, m / "merged/m/model.safetensors", table, None, marks,
                       seconds=100)
    assert [e.name for e in entries] == merged_order(table)
    seen = set()
    shards = [n for n in sorted(os.listdir(m / "shards/m")) if n.endswith(".safetensors")]
    assert len(shards) == 9
    for name in shards:
        entries, _ = check_whole(m / f"shards/m/{name}", table, None, marks)
        seen |= {e.name for e in entries}
    assert seen == table.keys()
    with open(m / "tensors/m/model.index.json") as f:
        assert len(json.load(f)["weight_map"]) == 230_000
    assert m.problems() == []


def test_more_than_a_file_can_have(mount):
    """Sparse shards that have over 2^63 bytes together: no merged file, and a reason."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("needs tmpfs, which has such large files")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        for i in (1, 2):
            table = {f"t{i}{k}": {"dtype": "U8", "shape": [1 << 60], "data_offsets": [k << 60, k + 1 << 60]}
                     for k in range(5)}
            header = json.dumps(table).encode()
            path = Path(root, f"model-0000{i}-of-00002.safetensors")
            path.write_bytes(len(header).to_bytes(8, "little") + header)
            os.truncate(path, 8 + len(header) + (5 << 60))
        m = mount(root, "--shards=1")
        assert os.stat(m / "tensors/model/t24").st_size == 1 << 60
        assert [os.listdir(m / view) for view in ("merged", "shards")] == [[], []]
        for what in ("merged file", "re-cut shards"):
            assert any(f"no {what}: it would be longer than a file can be" in line for line in m.problems()), m.problems()
        m.unmount()
