# SPDX-License-Identifier: Apache-2.0
"""Compares every view with the oracle, by every method of reading a file."""

import json
import mmap
import os
import random
import threading

import numpy as np
import oracle
import pytest
import safetensors
from conftest import child
from corpus import trees

RECUTS = {"as-source": (), "shards-7": ("--shards=7",), "shards-1": ("--shards=1",),
          "shard-size": ("--shard-size=2M",)}


@pytest.fixture(scope="session")
def rich(shared_place):
    return trees.rich(shared_place / "rich")


@pytest.fixture(scope="session")
def rich_single(shared_place):
    """The same tensors in one file whose header leaves the data unaligned."""
    source = trees.Source(shared_place / "rich-single")
    source.add("", "single", trees.rich_tensors(), metadata={"format": "pt"}, pad=1)
    return source


def ranges(rng, size, count):
    """Random ranges, and ranges at edges: pages, 128 KiB, the end."""
    edges = [0, 1, 4095, 4096, 4097, 131071, 131072, size // 2, size - 4096, size - 1, size]
    for _ in range(count):
        offset = rng.choice(edges) if rng.random() < 0.4 else rng.randrange(size + 1)
        offset = max(0, min(offset, size))
        length = rng.choice((1, 2, 511, 4096, 4097, 65536, 131072, 1 << 20, rng.randrange(1, 9000)))
        yield offset, length


@pytest.mark.parametrize("how", RECUTS)
def test_whole_files(mount, rich, how):
    m = mount(rich.root, *RECUTS[how])
    oracle.check_source(m.path, rich, RECUTS[how])
    assert m.problems() == [] or all("metadata" in p for p in m.problems())


def test_whole_files_of_a_single_shard(mount, rich_single):
    m = mount(rich_single.root)
    oracle.check_source(m.path, rich_single)
    assert m.problems() == []


@pytest.mark.parametrize("how", RECUTS)
def test_random_pread(mount, rich, how):
    m = mount(rich.root, *RECUTS[how])
    rng = random.Random(how)
    for path, want in oracle.plain_files(m.path, rich):
        fd = os.open(path, os.O_RDONLY)
        try:
            assert os.fstat(fd).st_size == len(want), path
            for offset, length in ranges(rng, len(want), 12):
                got = os.pread(fd, length, offset)
                assert got == want[offset:offset + length], (path, offset, length)
        finally:
            os.close(fd)


def test_reads_across_the_end(mount, rich):
    m = mount(rich.root)
    for path, want in oracle.plain_files(m.path, rich):
        size = len(want)
        fd = os.open(path, os.O_RDONLY)
        try:
            for back in (0, 1, 5, 4095, 4096, 5000):
                if back <= size:
                    assert os.pread(fd, 100_000, size - back) == want[size - back:][:100_000]
            assert os.pread(fd, 10, size + 1) == b""
            assert os.pread(fd, 10, size + (1 << 40)) == b""
            first, second = bytearray(3), bytearray(8192)
            got = os.preadv(fd, [first, second], max(0, size - 4000))
            tail = want[max(0, size - 4000):]
            assert got == len(tail) and (bytes(first) + bytes(second))[:got] == tail
        finally:
            os.close(fd)


def test_seeks(mount, rich):
    m = mount(rich.root)
    rng = random.Random(7)
    for path, want in oracle.plain_files(m.path, rich):
        if not want:
            continue
        fd = os.open(path, os.O_RDONLY)
        try:
            for _ in range(6):
                at = rng.randrange(len(want))
                assert os.lseek(fd, at, os.SEEK_SET) == at
                assert os.read(fd, 777) == want[at:at + 777]
            assert os.lseek(fd, -1, os.SEEK_END) == len(want) - 1
            assert os.read(fd, 2) == want[-1:]
            assert os.lseek(fd, 0, os.SEEK_DATA) == 0
            assert os.lseek(fd, 0, os.SEEK_HOLE) == len(want)
        finally:
            os.close(fd)


def map_and_compare(files, flags, protection, seed):
    """In a child, because an unserved page fault is SIGBUS."""
    rng = random.Random(seed)
    for path, want in files:
        if not want:
            continue
        fd = os.open(path, os.O_RDONLY)
        try:
            with mmap.mmap(fd, 0, flags, protection) as view:
                assert len(view) == len(want)
                for offset, length in ranges(rng, len(want), 8):
                    assert view[offset:offset + length] == want[offset:offset + length], \
                        (path, offset, length)
                assert view[:] == want, path
                assert view[len(want) - 1] == want[-1]
                if protection & mmap.PROT_WRITE:  # a private copy; the file does not change
                    view[0] = want[0] ^ 0xFF
                    assert os.pread(fd, 1, 0) == want[:1]
        finally:
            os.close(fd)


@pytest.mark.parametrize("how", RECUTS)
@pytest.mark.parametrize("mode", ["shared", "private", "private-writable"])
def test_mmap(mount, rich, how, mode):
    m = mount(rich.root, *RECUTS[how])
    flags = mmap.MAP_SHARED if mode == "shared" else mmap.MAP_PRIVATE
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if mode == "private-writable" else 0)
    child(map_and_compare, oracle.plain_files(m.path, rich), flags, protection, mode)


def test_mmap_shared_writable_is_refused(mount, rich):
    m = mount(rich.root)
    path, _ = oracle.plain_files(m.path, rich)[0]
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 1, mmap.MAP_SHARED, mmap.PROT_WRITE)
    os.close(fd)


@pytest.mark.parametrize("how", ["as-source", "shards-7"])
def test_direct(mount, rich, how):
    m = mount(rich.root, *RECUTS[how])
    rng = random.Random(how)
    buffer = mmap.mmap(-1, 1 << 21)  # page-aligned
    for path, want in oracle.plain_files(m.path, rich):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            pages = (len(want) + 4095) // 4096
            for _ in range(10):
                offset = 4096 * rng.randrange(pages + 1)
                length = 4096 * rng.choice((1, 2, 32, 33, 256, 512))
                got = os.preadv(fd, [memoryview(buffer)[:length]], offset)
                assert buffer[:got] == want[offset:offset + length], (path, offset, length)
            # up to the unaligned end, one request after another
            at = 0
            while at < len(want):
                got = os.preadv(fd, [memoryview(buffer)], at)
                assert got > 0 and buffer[:got] == want[at:at + got], (path, at)
                at += got
            assert os.preadv(fd, [memoryview(buffer)[:4096]], 4096 * (pages + 1)) == 0
        finally:
            os.close(fd)


def test_direct_and_cached_agree(mount, rich):
    """Both kinds of descriptor open at once on one file."""
    m = mount(rich.root)
    buffer = mmap.mmap(-1, 1 << 20)
    for path, want in oracle.plain_files(m.path, rich):
        if len(want) < 100_000:
            continue
        cached = os.open(path, os.O_RDONLY)
        direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for offset in (0, 4096, 65536):
            assert os.pread(cached, 40960, offset) == want[offset:offset + 40960]
            got = os.preadv(direct, [memoryview(buffer)[:40960]], offset)
            assert buffer[:got] == want[offset:offset + 40960]
        os.close(cached)
        os.close(direct)


@pytest.mark.parametrize("shared", [True, False], ids=["one-descriptor", "own-descriptors"])
def test_threads(mount, rich, shared):
    m = mount(rich.root, "--shards=5")
    files = [f for f in oracle.plain_files(m.path, rich) if len(f[1]) > 60_000]
    opened = {path: os.open(path, os.O_RDONLY) for path, _ in files}
    faults = []

    def reader(seed):
        rng = random.Random(seed)
        try:
            for _ in range(60):
                path, want = rng.choice(files)
                fd = opened[path] if shared else os.open(path, os.O_RDONLY)
                for offset, length in ranges(rng, len(want), 3):
                    if os.pread(fd, length, offset) != want[offset:offset + length]:
                        faults.append((path, offset, length))
                if not shared:
                    os.close(fd)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for fd in opened.values():
        os.close(fd)
    assert not faults, faults[:5]


def test_beyond_two_and_four_gibibytes(mount, place):
    """A sparse tensor of 5 GiB between small ones, with marks at offsets where counters overflow."""
    size = (5 << 30) + 12345
    entries = [("before", "U8", (99,), 99), ("huge", "U8", (size,), size),
               ("after", "F32", (3,), 12)]
    root = place / "s"
    root.mkdir()
    start = trees.write_sparse(root / "model.safetensors", entries)
    spots = {}
    with open(root / "model.safetensors", "r+b") as f:
        for base in (0, 1 << 31, 1 << 32, (1 << 31) - 8192, (1 << 32) + 777_777, size - 64,
                     (3 << 30) + 1):
            for at in {max(0, base - 20), base}:
                data = b"@%015d" % at
                f.seek(start + 99 + at)
                f.write(data)
        f.seek(start)
        f.write(b"b" * 99)
        f.seek(start + 99 + size)
        f.write(b"a" * 12)
        for base in (0, 1 << 31, 1 << 32, (1 << 31) - 8192, (1 << 32) + 777_777, size - 64):
            at = max(0, base - 50)
            length = min(5000, size - at)
            f.seek(start + 99 + at)
            spots[at] = f.read(length)
    m = mount(root)
    huge = {m / "tensors/model/huge": 0}
    head = oracle.npy_bytes("U8", (1,), b"x")[:-1]
    npy = m / "npy/model/huge.npy"
    huge[npy] = os.stat(npy).st_size - size
    assert huge[npy] == len(head)
    assert np.load(npy, mmap_mode="r").shape == (size,)
    for path in (m / "merged/model.safetensors", m / "shards/model.safetensors"):
        table, _, _ = oracle.read_header(path)
        huge[path] = next(e.offset for e in table if e.name == "huge")
        after = next(e for e in table if e.name == "after")
        assert after.read() == b"a" * 12
        with safetensors.safe_open(path, "numpy") as f:
            assert set(f.keys()) == {"before", "huge", "after"}
            assert f.get_slice("huge")[(1 << 32) - 50:(1 << 32) + 4950].tobytes() == \
                spots[(1 << 32) - 50]

    def compare():
        for path, offset in huge.items():
            fd = os.open(path, os.O_RDONLY)
            with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as view:
                for at, want in spots.items():
                    got = os.pread(fd, len(want), offset + at)
                    assert got == want, (path, at)
                    assert view[offset + at:offset + at + len(want)] == want, (path, at)
            os.close(fd)

    child(compare)


@pytest.mark.parametrize("how", RECUTS)
def test_safetensors_library_reads_views(mount, rich, how):
    m = mount(rich.root, *RECUTS[how])
    c, = rich.checkpoints
    want = {t.name: (t.dtype, t.shape, t.data) for t in c.tensors}

    def library(paths):
        seen = {}
        for path in paths:
            with open(path, "rb") as f:
                for name, t in safetensors.deserialize(f.read()):
                    assert name not in seen
                    seen[name] = (t["dtype"], t["shape"], bytes(t["data"]))
            with safetensors.safe_open(path, "numpy") as f:
                assert set(f.keys()) <= seen.keys()
                for name in f.keys():
                    if seen[name][0] in ("U8", "F32"):
                        assert f.get_tensor(name).tobytes() == seen[name][2]
        return seen

    merged = m / "merged/rich/model.safetensors"
    assert child(library, [merged]) == want
    shards = [m / f"shards/rich/{n}" for n in oracle.recut_files(m / "shards", c)]
    assert child(library, shards) == want
    with safetensors.safe_open(merged, "numpy") as f:
        assert (f.metadata() or None) == (c.merged_metadata or None)
        assert f.metadata()["format"] == "pt"


def test_numpy_maps_npy(mount, rich):
    m = mount(rich.root)
    c, = rich.checkpoints
    for t in c.tensors:
        path = os.fsdecode(oracle.tensor_file(m / "npy", c, t, npy=True))
        array = np.load(path, mmap_mode="r" if t.size else None)
        assert array.tobytes() == t.data
        assert list(array.shape) == (t.shape if trees.DTYPE_BITS[t.dtype] >= 8 else [t.size])


def test_merged_order_and_padding(mount, rich):
    m = mount(rich.root)
    c, = rich.checkpoints
    entries, _, start = oracle.read_header(m / "merged/rich/model.safetensors")
    assert start % 4096 == 0
    with open(m / "merged/rich/model.safetensors", "rb") as f:
        text = f.read(start)[8:]
    assert text.rstrip(b" ").endswith(b"}") and len(text) - len(text.rstrip(b" ")) < 4096
    json.loads(text)
    sizes = [e.size for e in entries]
    pages = [s > 0 and s % 4096 == 0 for s in sizes]
    assert pages == sorted(pages, reverse=True) and any(pages) and not all(pages)
    for e in entries[:sum(pages)]:
        assert e.offset % 4096 == 0
    for e in entries:  # torch refuses a tensor whose offset is not a multiple of its element
        assert e.offset % max(1, trees.DTYPE_BITS[e.dtype] // 8) == 0, e
    assert [e.name for e in entries] == [t.name for t in oracle.file_order(c.tensors)]


def test_conflicting_metadata_is_reported(mount, rich):
    m = mount(rich.root)
    os.stat(m / "merged/rich/model.safetensors")
    output = [p for p in m.problems() if "shard" in p and "metadata" in p]
    assert len(output) == 1 and output[0].startswith("rich/"), m.problems()


def test_recut_counts_and_sizes(mount, place):
    source = trees.Source(place / "s")
    tensors = [trees.tensor(f"t{i:02}", "U8", (size,), seed=1) for i, size in
               enumerate([400_000] * 12 + [5_000_000, 1, 0, 4096, 300_000, 700_000, 999_999])]
    source.add("m", "model", tensors, shards=4)
    c, = source.checkpoints
    total = sum(t.size for t in tensors)
    for count in (1, 2, 3, 7, 19, 500):
        m = mount(source.root, f"--shards={count}")
        shards = oracle.check_recut(m / "shards", c)
        assert len(shards) == min(count, len(tensors)), shards
        if count in (2, 3):
            assert max(s[1] for s in shards) < total / count + 5_000_000
        m.unmount()
    for spelled, size in (("1M", 1 << 20), ("1MB", 10**6), ("1MiB", 1 << 20), ("800K", 800 << 10),
                          ("2500000", 2_500_000), ("1G", 1 << 30), ("1GB", 10**9)):
        m = mount(source.root, f"--shard-size={spelled}")
        shards = oracle.check_recut(m / "shards", c)
        for name, data, count in shards:
            assert data <= size or count == 1, (spelled, name, data)
        assert len(shards) <= 2 * total / size + 2  # fills shards exactly
        m.unmount()


def test_adapters_are_not_recut(mount, place):
    source = trees.adapters(place / "s")
    options = ("--shards=3",)
    m = mount(source.root, *options)
    oracle.check_source(m.path, source, options)
    assert sorted(os.listdir(m / "shards/loras/lora0")) == \
        ["adapter_config.json", "adapter_model.safetensors"]


def test_reads_during_listings(mount, rich):
    m = mount(rich.root)
    files = oracle.plain_files(m.path, rich)
    stop = threading.Event()
    faults = []

    def lister():
        while not stop.is_set():
            try:
                for view in ("tensors", "merged", "shards", "npy"):
                    oracle.walk(m / view)
            except Exception as error:
                faults.append(error)
                return

    thread = threading.Thread(target=lister)
    thread.start()
    try:
        for path, want in files:
            assert oracle.read_all(path) == want
    finally:
        stop.set()
        thread.join()
    assert not faults
