# SPDX-License-Identifier: Apache-2.0
"""The engine's switches: each way to read gives the same bytes, and status says which ways are on."""

import json
import mmap
import os
import subprocess
import threading
from pathlib import Path

import oracle
import pytest
from corpus import trees

WAYS = {
    "auto": (),
    "threads": ("--io=threads",),
    "buffered": ("--direct=off",),
    "threads-buffered": ("--io=threads", "--direct=off"),
    "no-prefetch": ("--prefetch=off",),
    "narrow": ("--memory=4M", "--queue-depth=1", "--threads=1"),
}


def status(m):
    return json.loads((Path(m.path) / ".fstfs/status").read_bytes())


def metrics(m):
    lines = (Path(m.path) / ".fstfs/metrics").read_text().splitlines()
    return {name: int(value) for name, value in
            (line.split() for line in lines if line and line[0] != "#" and "{" not in line)}


@pytest.fixture
def source(place):
    return trees.rich(place / "s")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_reads_the_same(mount, source, way):
    m = mount(source.root, *WAYS[way])
    oracle.check_source(m.path, source, WAYS[way])
    io = status(m)["io"]
    if "--io=threads" in WAYS[way]:
        assert io["io_uring"]["on"] is False and io["io_uring"]["why"]
    if "--direct=off" in WAYS[way]:
        assert io["direct"]["on"] is False and io["direct"]["why"]
    assert io["prefetch"]["on"] is (way != "no-prefetch")
    if way == "narrow":
        assert (io["memory"], io["queue_depth"], io["threads"]) == (4 << 20, 1, 1)


@pytest.mark.parametrize("way", ["auto", "threads", "narrow"])
def test_many_readers_within_a_small_budget(mount, place, way):
    """Sixteen readers of 16 MiB in 4 MiB of buffers: all end, and read right."""
    data = os.urandom(1 << 20) * 16
    root = place / "big"
    root.mkdir()
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)],
                               "data_offsets": [0, len(data)]}}).encode()
    (root / "one.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    m = mount(root, "--memory=4M", *WAYS[way])
    path, wrong = Path(m.path) / "tensors/one/w", []

    def read(start):
        fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if start % 2 else 0))
        try:
            block = mmap.mmap(-1, 1 << 20)  # aligned, as O_DIRECT wants
            for step in range(16):
                offset = (start + step) % 16 << 20
                if os.preadv(fd, [block], offset) != 1 << 20 or \
                        block[:] != data[offset:offset + (1 << 20)]:
                    wrong.append((start, step))
        finally:
            os.close(fd)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert metrics(m)["fstfs_buffer_bytes"] <= metrics(m)["fstfs_buffer_budget_bytes"] == 4 << 20


def test_metrics_tell_what_was_read(mount, source):
    m = mount(source.root)
    before = metrics(m)
    size = 0
    for folder, _, files in os.walk(Path(m.path) / "tensors"):
        for name in files:
            if not name.endswith(".index.json"):
                with open(os.path.join(folder, name), "rb") as f:
                    size += len(f.read())
    after = metrics(m)
    assert after["fstfs_read_bytes_total"] - before["fstfs_read_bytes_total"] >= size > 0
    assert after["fstfs_read_errors_total"] == after["fstfs_stale_reads_total"] == 0
    assert after["fstfs_prefetched_used_bytes_total"] + \
        after["fstfs_prefetched_wasted_bytes_total"] <= after["fstfs_prefetched_bytes_total"]


@pytest.mark.parametrize("option", ["--io=uring", "--direct=on", "--prefetch=yes", "--memory=1K",
                                    "--memory=x", "--threads=0", "--threads=65",
                                    "--queue-depth=-1", "--readahead=1", "--readahead=much"])
def test_a_wrong_value_is_refused(fstfs, source, place, option):
    (place / "m").mkdir()
    done = subprocess.run([fstfs, option, source.root, place / "m"], capture_output=True, text=True)
    assert done.returncode == 2 and option.split("=")[0] in done.stderr
