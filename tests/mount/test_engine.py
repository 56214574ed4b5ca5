# SPDX-License-Identifier: Apache-2.0
"""Options of the I/O engine: every method reads the same bytes, and status reports which are used."""

import json
import mmap
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import oracle
import pytest
from bench.harness import cached
from conftest import BUILD, child, drop_from_page_cache, keep_in_memory
from corpus import trees

METHODS = {
    "auto": (),
    "threads": ("--io=threads",),
    "buffered": ("--direct=off",),
    "threads-buffered": ("--io=threads", "--direct=off"),
    "no-prefetch": ("--prefetch=off",),
    "narrow": ("--memory=4M", "--queue-depth=1", "--threads=1"),
}


@pytest.fixture
def source(place):
    return trees.rich(place / "s")


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_read_the_same(mount, source, method):
    m = mount(source.root, *METHODS[method])
    oracle.check_source(m.path, source, METHODS[method])
    io = m.status()["io"]
    if "--io=threads" in METHODS[method]:
        assert io["io_uring"]["on"] is False and io["io_uring"]["why"]
    if "--direct=off" in METHODS[method]:
        assert io["direct"]["on"] is False and io["direct"]["why"]
    assert io["prefetch"]["on"] is (method != "no-prefetch")
    if method == "narrow":
        assert (io["memory"], io["queue_depth"], io["threads"]) == (4 << 20, 1, 1)
        assert io["queue_depth_ahead"] == io["rings"]


@pytest.mark.parametrize("method", ["auto", "threads", "narrow"])
def test_many_readers_within_a_small_budget(mount, place, method):
    """Sixteen readers of 16 MiB with 4 MiB of buffers: all finish with correct bytes."""
    data = os.urandom(1 << 20) * 16
    root = place / "big"
    root.mkdir()
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)],
                               "data_offsets": [0, len(data)]}}).encode()
    (root / "one.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    m = mount(root, "--memory=4M", *METHODS[method])
    path, wrong = Path(m.path) / "tensors/one/w", []

    def read(start):
        fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if start % 2 else 0))
        try:
            block = mmap.mmap(-1, 1 << 20)  # aligned, as O_DIRECT requires
            for step in range(16):
                offset = (start + step) % 16 << 20
                if os.preadv(fd, [block], offset) != 1 << 20 or \
                        block[:] != data[offset:offset + (1 << 20)]:
                    wrong.append((start, step))
        finally:
            os.close(fd)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(read, range(16)))  # raises their exceptions
    assert not wrong
    assert m.metrics()["fstfs_buffer_bytes"] <= m.metrics()["fstfs_buffer_budget_bytes"] == 4 << 20


def test_metrics_count_reads(mount, source):
    m = mount(source.root)
    before = m.metrics()
    size = 0
    for folder, _, files in os.walk(Path(m.path) / "tensors"):
        for name in files:
            if not name.endswith(".index.json"):
                with open(os.path.join(folder, name), "rb") as f:
                    size += len(f.read())
    after = m.metrics()
    assert after["fstfs_read_bytes_total"] - before["fstfs_read_bytes_total"] >= size > 0
    assert after["fstfs_read_errors_total"] == after["fstfs_stale_reads_total"] == 0
    assert after["fstfs_prefetched_used_bytes_total"] + \
        after["fstfs_prefetched_wasted_bytes_total"] <= after["fstfs_prefetched_bytes_total"]


@pytest.fixture
def large(place):
    """A source with one tensor of a few MiB, and its path in the mount."""
    source = trees.Source(place / "large")
    source.add("", "model", [trees.tensor("w", "U8", ((5 << 20) + 12_345,))])
    return source, "tensors/model/w"


def make_cold(path):
    drop_from_page_cache([path])
    if cached(BUILD, [path]):
        pytest.skip("the file system keeps its files in the page cache")


REQUESTS = ("reads_total", "read_duration_seconds_count",
            'read_duration_seconds_bucket{le="+Inf"}')


class Counted:
    """The increase of the metrics since this object was created."""

    def __init__(self, m):
        self.m = m
        m.wait_until_idle()
        self.before = m.metrics()

    def grown(self):
        self.m.wait_until_idle()
        after = self.m.metrics()
        # Metrics of a load appear when it ends.
        return {name.removeprefix("fstfs_"): after[name] - self.before.get(name, 0) for name in after}


def test_status_pages_are_not_counted(mount, large):
    """Reading the files in .fstfs changes no counter, even if they are read in several parts."""
    m = mount(large[0].root)
    os.stat(m / large[1])
    counted = Counted(m)
    for name in os.listdir(m / ".fstfs"):
        fd = os.open(m / f".fstfs/{name}", os.O_RDONLY)
        whole = os.pread(fd, 1 << 20, 0)
        assert b"".join(os.pread(fd, 100, at) for at in range(0, len(whole) + 200, 100)) == whole
        os.close(fd)
    assert {name: by for name, by in counted.grown().items() if "read" in name and by} == {}


def read_directly(path):
    """One read request of the kernel: the file, and the length."""
    block, parts = mmap.mmap(-1, 65536), []
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    size = os.fstat(fd).st_size
    while sum(map(len, parts)) < size:
        parts.append(block[:os.preadv(fd, [block], sum(map(len, parts)))])
    os.close(fd)
    return b"".join(parts), len(parts)


@pytest.mark.parametrize("method", METHODS)
def test_metrics_add_up(mount, large, method):
    source, path = large
    m = mount(source.root, *METHODS[method])
    want = source.checkpoints[0].tensors[0].data
    os.stat(m / path)  # reads the header
    make_cold(source.path("model.safetensors"))
    counted = Counted(m)
    data, reads = read_directly(m / path)
    assert data == want
    grew = counted.grown()
    assert grew["requested_bytes_total"] == grew["read_bytes_total"] == len(want)
    assert [grew[name] for name in REQUESTS] == [reads] * 3
    assert grew["read_duration_seconds_sum"] > 0
    assert grew["read_errors_total"] == grew["stale_reads_total"] == 0
    # Cold: the storage was read once, and every read was timed.
    assert grew["page_cache_read_bytes_total"] == 0
    assert len(want) <= grew["storage_read_bytes_total"] <= \
        len(want) + reads * 8192 + grew["expired_bytes_total"]
    assert grew["storage_reads_total"] == grew["storage_read_duration_seconds_count"] > 0
    assert grew["storage_read_duration_seconds_sum"] > 0
    assert 1 <= grew["stalls_total"] <= reads
    # Every fetch was either foreground or prefetched.
    assert len(want) - grew["cached_bytes_total"] + grew["prefetched_bytes_total"] <= \
        grew["storage_read_bytes_total"]
    assert 0 <= grew["cached_bytes_total"] < len(want)
    if method == "no-prefetch":
        assert grew["prefetched_bytes_total"] == 0
    else:
        assert_prefetched(grew, 1)


def assert_prefetched(grew, least):
    """Prefetched bytes were all used, unless they expired before."""
    used, wasted = (grew[f"prefetched_{what}_bytes_total"] for what in ("used", "wasted"))
    assert used + wasted >= least
    assert wasted <= grew["expired_bytes_total"]


def test_one_copy_in_memory(mount, large):
    """Loading through the mount's page cache leaves no second copy in the shard's: reading the
    header must not start the kernel's readahead."""
    source, path = large
    shard = source.path("model.safetensors")
    make_cold(shard)
    m = mount(source.root)
    with open(m / path, "rb") as tensor:
        assert tensor.read() == source.checkpoints[0].tensors[0].data
    assert cached(BUILD, [shard]) <= 65536


@pytest.fixture
def larger(place):
    source = trees.Source(place / "larger")
    source.add("", "model", [trees.tensor(f"w{i}", "U8", (16 << 20,)) for i in range(4)])
    return source


def test_threads_sharing_a_file_read_it_once(mount, larger):
    """A thread that reaches the start of the next thread's range does not prefetch it again."""
    m = mount(larger.root)
    path, parts = m / "merged/model.safetensors", 8
    size = os.path.getsize(path)
    make_cold(larger.path("model.safetensors"))

    def read(part):
        fd = os.open(path, os.O_RDONLY)
        for offset in range(size * part // parts, size * (part + 1) // parts, 1 << 20):
            os.pread(fd, 1 << 20, offset)
        os.close(fd)

    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(read, range(parts)))  # raises their exceptions
    metrics = m.metrics()
    assert metrics["fstfs_storage_read_bytes_total"] <= \
        size + (1 << 20) + metrics["fstfs_expired_bytes_total"]


def test_second_read_is_prefetched_too(mount, larger):
    m = mount(larger.root)
    path = m / "merged/model.safetensors"
    make_cold(larger.path("model.safetensors"))
    for _ in range(2):
        counted = Counted(m)
        data, _ = read_directly(path)
        make_cold(larger.path("model.safetensors"))
        assert_prefetched(counted.grown(), len(data) // 2)


@pytest.mark.parametrize("method", METHODS)
def test_metrics_of_a_warm_shard(mount, large, method):
    """Bytes in the shard's page cache are neither fetched nor waited for."""
    source, path = large
    m = mount(source.root, *METHODS[method])
    if not m.status()["io"]["cachestat"]["on"]:
        pytest.skip("the kernel has no cachestat")
    make_cold(source.path("model.safetensors"))
    with keep_in_memory(source.path("model.safetensors")):
        counted = Counted(m)
        data, _ = read_directly(m / path)
        grew = counted.grown()
    assert grew["cached_bytes_total"] == grew["read_bytes_total"] == len(data)
    assert grew["page_cache_read_bytes_total"] >= len(data)
    assert grew["stalls_total"] == grew["storage_read_duration_seconds_count"] == 0


@pytest.mark.parametrize("method", METHODS)
def test_metrics_of_fallbacks(mount, source, method):
    m = mount(source.root, *METHODS[method])
    taken = {name for name, value in m.metrics().items() if "_fallback{" in name and value}
    wanted = set()
    if "--io=threads" in METHODS[method]:
        wanted.add('fstfs_fallback{mechanism="io_uring",reason="not_wanted"}')
    if "--direct=off" in METHODS[method]:
        wanted.add('fstfs_fallback{mechanism="direct",reason="not_wanted"}')
    if "auto" in method or "narrow" in method:
        assert m.status()["io"]["io_uring"]["on"] or \
            'fstfs_fallback{mechanism="io_uring",reason="refused"}' in taken
    assert {name for name in taken if "not_wanted" in name} == wanted


def test_status_and_documentation_list_every_metric(mount, source):
    m = mount(source.root)
    oracle.check_source(m.path, source, ())
    m.wait_until_idle()
    numbers = m.metrics()
    families = {line.split()[2] for line in m.read(".fstfs/metrics").decode().splitlines()
                if line.startswith("# TYPE ")}
    documented = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    assert families == set(re.findall(r"`(fstfs_[a-z0-9_]+)[`{]", documented))
    output = m.status()["counters"]
    for name in output:
        assert f"fstfs_{name}" in families
    for name in "storage_reads_total", "prefetched_used_bytes_total", "stalls_total":
        assert output[name] == numbers[f"fstfs_{name}"]
    duration = output["storage_read_duration_seconds"]
    assert duration["count"] == numbers["fstfs_storage_read_duration_seconds_count"]
    assert duration["seconds"] == numbers["fstfs_storage_read_duration_seconds_sum"]


@pytest.mark.parametrize("option", ["--io=uring", "--direct=on", "--prefetch=yes", "--memory=1K",
                                    "--memory=x", "--threads=0", "--threads=65",
                                    "--queue-depth=-1", "--readahead=1", "--readahead=much"])
def test_invalid_value_is_refused(fstfs, source, place, option):
    (place / "m").mkdir()
    done = subprocess.run([fstfs, option, source.root, place / "m"], capture_output=True, text=True)
    assert done.returncode == 2 and option.split("=")[0] in done.stderr


def readahead(path):
    return json.loads((Path(path) / ".fstfs/status").read_bytes())["kernel"]["readahead"]


def test_readahead_as_root(mount, source):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for size in 32 << 10, 1 << 20:
        m = mount(source.root, f"--readahead={size}")
        assert readahead(m.path) == {"bytes": size}
        oracle.check_source(m.path, source, ())


def test_readahead_as_unprivileged_user(mount, source, test_user, user_binary):
    """The readahead can be lowered. It cannot be raised, and status has the reason."""
    lowered = mount(source.root, "--readahead=32K", user=test_user, binary=user_binary)
    assert child(readahead, lowered.path, user=test_user) == {"bytes": 32 << 10}
    raised = mount(source.root, "--readahead=1M", user=test_user, binary=user_binary)
    output = child(readahead, raised.path, user=test_user)
    assert output == {"bytes": 128 << 10, "refused": "Permission denied"}


def read_around(path):
    """Bytes that enter the page cache when a page fault in the middle of the file is served."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        content[len(content) // 2]
        return cached(BUILD, [path])


def test_readahead_by_file(mount, place):
    """An eighth of a tensor file, and a fortieth of the mean tensor of a file of several, from
    128 KiB to 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    (place / "s").mkdir()
    for name, size, count in ("small", 3 << 20, 4), ("large", 12 << 20, 3):
        trees.write_sparse(place / f"s/{name}.safetensors",
                           [(f"t{i}", "U8", [size], size) for i in range(count)])
    expected = {"merged/small.safetensors": 128 << 10, "merged/large.safetensors": 256 << 10,
                "tensors/small/t0": 384 << 10, "tensors/large/t0": 1 << 20,
                "shards/large.safetensors": 256 << 10}
    m = mount(place / "s")
    assert {path: read_around(m / path) for path in expected} == expected
    assert readahead(m.path) == {"bytes": 128 << 10, "by_file": True}
    fixed = mount(place / "s", "--readahead=keep")
    assert {read_around(fixed / path) for path in expected} == {128 << 10}
