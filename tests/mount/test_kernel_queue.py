# SPDX-License-Identifier: Apache-2.0
"""The kernel's queue of background reads, which all files of a mount share: reads of storage that
hangs fill it. Reads of other storage continue, and later reads return the right bytes."""

import errno
import mmap
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import oracle
import pytest
from conftest import BUILD, child, drop_from_page_cache, eventually
from corpus import trees
from test_hang import callers, set_rules

__all__ = ["callers"]  # a fixture

SLOWFS = BUILD / "tests/slowfs/slowfs"
LIMIT = 40
FLOODS = 4
MOST = Path("/sys/module/fuse/parameters/max_user_bgreq")
LARGEST = 20_000  # reads that these tests let hang
NEIGHBOURS = 40
MIB = 1 << 20


def queue_size():
    size = int(MOST.read_text())
    if size > LARGEST:
        pytest.skip(f"the kernel's queue has room for {size} reads, more than {LARGEST}")
    return size


@pytest.fixture
def slow(mount, place):
    """slow(name, size, **options): a file system below the source `place/s`, which has a checkpoint
    of one tensor of `size` bytes, most of it a hole. Returns the path of its file in slowfs's source."""
    if not SLOWFS.exists():
        pytest.skip("tests/slowfs/slowfs is not built")

    def make(name, size, **options):
        source = trees.Source(place / "real" / name)
        os.makedirs(place / "s" / name)
        if os.geteuid() == 0:
            options["allow_other"] = None
        values = ",".join(key if value is None else f"{key}={value}"
                          for key, value in options.items())
        mount(source.root, "-o", f"valid=0,age=60,{values}", binary=SLOWFS,
              mountpoint=place / "s" / name, limit=290)
        trees.write_sparse(source.path("m.safetensors"), [("t", "U8", [size], size)])
        return source.path("m.safetensors")

    return make


def request_pages(path, first, distance, count):
    """Starts background reads of single pages."""
    fd = os.open(path, os.O_RDONLY)
    for i in range(count):
        os.posix_fadvise(fd, first + i * FLOODS * distance, 4096, os.POSIX_FADV_WILLNEED)
    while True:
        signal.pause()


def read_at(path, offset, length=9000):
    with open(path, "rb") as f:
        f.seek(offset)
        return f.read(length)


def read_error(path, offset):
    try:
        read_at(path, offset)
    except OSError as error:
        return error.errno
    return 0


def read_files(paths):
    return [oracle.read_all(path) for path in paths]


def in_flight(m):
    return child(m.metrics)["fstfs_reads_in_flight"]


@pytest.mark.limit(300)
@pytest.mark.parametrize("method, systems, distance",
                         [("auto", 1, 512 << 10), ("auto", 1, 8 << 10), ("auto", 2, 64 << 10),
                          ("threads", 1, 64 << 10)])
def test_background_reads_that_hang(mount, place, slow, callers, method, systems, distance):
    """Twice as many reads as the queue has room for hang. All files of another file system are
    read; further reads of a file system that hangs fail, and succeed once it answers."""
    most, source, rules = queue_size(), trees.Source(place / "s"), place / "faults"
    for i in range(NEIGHBOURS):
        source.add("good", f"m{i}", [trees.tensor("t", "U8", (300_000,), fill=i)])
    size = (2 * most + 1) * distance
    offsets = [distance * i for i in (*range(1, 9), most // 3, most, 2 * most)]
    real = {f"far{i}": slow(f"far{i}", size, faults=rules) for i in range(systems)}
    for path in real.values():
        with open(path, "r+b") as f:
            for offset in offsets:
                f.seek(offset)
                f.write(os.urandom(5000))
    m = mount(source.root, f"--io={method}", limit=290)
    shown = {m / f"merged/{name}/m.safetensors": path for name, path in real.items()}
    assert eventually(lambda: all(os.path.exists(path) for path in shown))
    set_rules(rules, "read m.safetensors hang")

    group = callers()
    for path in shown:
        for i in range(FLOODS):
            group.add(request_pages, path, distance * (i + 1), distance, 2 * most // FLOODS)
    assert eventually(lambda: in_flight(m) > most * 0.9, LIMIT), in_flight(m)
    good = [f"good/m{i}.safetensors" for i in range(NEIGHBOURS)]
    drop_from_page_cache(source.path(name) for name in good)
    assert child(read_files, [m / f"merged/{name}" for name in good], seconds=LIMIT) == \
        read_files(source.path(name) for name in good)
    for path in shown:
        assert eventually(lambda: child(read_error, path, size // 2) == errno.EIO, 2 * LIMIT)
    assert in_flight(m) <= most * systems * 1.1
    assert child(m.status)["kernel"]["reads"]["failed"] > 0
    assert m.log_text().count("does not answer") == systems

    group.kill()
    assert eventually(group.reap, LIMIT), f"{group.left()} are left"
    rules.unlink()
    assert eventually(lambda: in_flight(m) == 0, LIMIT), in_flight(m)
    for path, original in shown.items():
        for offset in offsets:
            assert read_at(path, offset) == read_at(original, offset)
    assert eventually(lambda: m.metrics()["fstfs_buffer_bytes"] == 0, LIMIT)
    assert m.unmount() == 0


def read_direct(path, offset, mebibytes):
    """Returns the number of bytes read: less than requested if one of the reads has failed."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    return os.preadv(fd, [mmap.mmap(-1, MIB)] * mebibytes, offset)


@pytest.mark.limit(300)
def test_slow_storage(mount, place, slow):
    """Direct I/O fills the queue for half a minute, because the storage is slow. No read fails."""
    most, readers = queue_size(), 12
    each = min(most * 11 // 10 // readers, 1024)
    slow("far", (readers * each + 1) * MIB, bandwidth=readers * each // 30)
    m = mount(place / "s", limit=290)
    path = m / "merged/far/m.safetensors"
    assert eventually(lambda: os.path.exists(path))
    with ProcessPoolExecutor(readers, multiprocessing.get_context("fork")) as pool:
        reads = [pool.submit(read_direct, path, i * each * MIB, each) for i in range(readers)]
        assert eventually(lambda: in_flight(m) > most * 0.8, LIMIT), in_flight(m)
        assert [read.result() for read in reads] == [each * MIB] * readers
    assert m.status()["kernel"]["reads"]["failed"] == 0
    assert m.unmount() == 0
