# SPDX-License-Identifier: Apache-2.0
"""Ranks of one node read each byte of a checkpoint from storage once.

The source is on a disk: the kernel counts the bytes that the daemon and the ranks read from it.
"""

import multiprocessing
import os
import random
import subprocess
from pathlib import Path

import pytest
import rank as ranks
from conftest import BUILD, SANITIZED, drop_from_page_cache, eventually
from corpus import trees

DISKS = ("ext2/ext3", "xfs", "btrfs", "f2fs")
SHARDS, TENSORS, SIZE = 4, 24, 2 << 20
MODEL = TENSORS * SIZE
COUNTS = (2, 4, 8)
COUNT = 4
# Of the bytes of the model: headers, and blocks that tensors share.
ONCE = 1.05

needs_library = pytest.mark.skipif(
    SANITIZED, reason="a sanitized library cannot be loaded into a Python that is not")


class Storage:
    """A mount of a checkpoint that is not in the page cache."""

    def __init__(self, mount, directory):
        self.expected = ranks.hashes(directory)
        self.files = list(Path(directory).glob("*.safetensors"))
        self.mount = mount(directory)
        self.mount.read("shards/model.safetensors.index.json")  # reads the headers
        drop_from_page_cache(self.files)
        if self.kept() > 0:
            pytest.skip("another program uses the files, and keeps them in the page cache")
        self.by_ranks = 0
        self.start = self._read_by_daemon()

    def _read_by_daemon(self):
        """A prefetched chunk that no reader requested within five seconds, because the machine is
        busy, does not count."""
        return (ranks.device_bytes(self.mount.pid) -
                self.mount.metric("prefetched_wasted_bytes_total"))

    def ratio(self):
        """Bytes read from storage since the start, over the bytes of the model."""
        return (self._read_by_daemon() - self.start + self.by_ranks) / MODEL

    def kept(self):
        """Bytes in the page cache of the source, over the bytes of the model."""
        cached = subprocess.run([BUILD / "tests/bench/reader", "cached", *self.files], check=True,
                                capture_output=True, text=True)
        return int(cached.stdout) / MODEL

    def run(self, views, order="file", together=True, half=None, environment=None):
        """Loads by one process for each of `views`, which all start at once or one after another.
        Compares all bytes."""
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(len(views) if together else 1)
        environment = {"FSTFS_LIBRARY": f"{BUILD}/src/client/libfstfs.so.0", **(environment or {})}
        started = []
        for number, view in enumerate(views):
            rank = ranks.Rank(number, self.mount.path, view, order,
                              half=number % 2 if half else None, environment=environment)
            results = context.SimpleQueue()
            process = context.Process(target=run_rank, args=(rank, barrier, results))
            process.start()
            started.append((process, results))
            if not together:
                self._finish(started.pop(), half)
        for one in started:
            self._finish(one, half)

    def _finish(self, started, half):
        process, results = started
        found, read = results.get()
        process.join()
        assert process.exitcode == 0, found
        self.by_ranks += read
        assert found.items() <= self.expected.items()
        assert len(found) == (TENSORS // 2 if half else TENSORS)


def run_rank(rank, barrier, results):
    os.environ.pop("LOCAL_WORLD_SIZE", None)
    try:
        rank.prepare()
        before = ranks.device_bytes("self")
        barrier.wait()
        found = rank.load()
        results.put((found, ranks.device_bytes("self") - before))
    except BaseException as error:
        barrier.abort()  # otherwise the other ranks would wait for this one forever
        results.put((repr(error), 0))
        raise


@pytest.fixture(scope="module")
def directory(shared_place):
    names = [f"w{i:02}" for i in range(TENSORS)]
    random.Random(4).shuffle(names)
    source = trees.Source(shared_place / "ranks")
    source.add("", "model", [trees.tensor(name, "U8", (SIZE,), seed=i)
                             for i, name in enumerate(names)], shards=SHARDS)
    kind = subprocess.run(["stat", "-f", "-c", "%T", source.root], check=True, capture_output=True,
                          text=True).stdout.strip()
    if kind not in DISKS:
        pytest.skip(f"the kernel does not count reads from {kind}")
    return source.root


def is_read_once(mount, directory, *args, keeps=None, **more):
    """Whether storage is read once, in one of several loads: the kernel may evict pages at any
    time, which are then read again. `keeps`: whether the source is in the page cache then."""
    def load():
        storage = Storage(mount, directory)
        storage.run(*args, **more)
        kept = storage.kept()
        assert keeps is not False or kept <= 0.01
        return storage.ratio() <= ONCE and (not keeps or kept >= 0.99)

    return eventually(load, 60)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("view", ["merged", "shards", "tensors"])
def test_one_view(mount, directory, view, count, together):
    assert is_read_once(mount, directory, [view] * count, together=together, keeps=False)


@pytest.mark.parametrize("order", ["name", "random"])
def test_orders_one_after_another(mount, directory, order):
    assert is_read_once(mount, directory, ["merged"] * COUNT, order, together=False)


def test_halves(mount, directory):
    assert is_read_once(mount, directory, ["merged"] * COUNT, half=True, keeps=False)


@needs_library
@pytest.mark.parametrize("order", ["file", "random"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("together", [True, False])
def test_library(mount, directory, together, count, order):
    assert is_read_once(mount, directory, ["libfstfs"] * count, order, together, keeps=True,
                        environment={"LOCAL_WORLD_SIZE": str(count)})


@needs_library
def test_library_before_the_mount(mount, directory):
    """The daemon finds what a rank that uses the library has read."""
    assert is_read_once(mount, directory, ["libfstfs", "merged", "shards"], together=False,
                        environment={"LOCAL_WORLD_SIZE": "2"})


@needs_library
@pytest.mark.parametrize("value", [None, "1", "0", "", "x"])
def test_library_alone(mount, directory, value):
    """One process reads past the page cache."""
    assert is_read_once(mount, directory, ["libfstfs"], keeps=False,
                        environment={} if value is None else {"LOCAL_WORLD_SIZE": value})


def test_views_one_after_another(mount, directory):
    """Views are different files: each reads all bytes, and leaves nothing in the page cache of the source."""
    def load():
        """Repeated as in is_read_once()."""
        storage = Storage(mount, directory)
        storage.run(["merged", "shards"], together=False)
        assert storage.kept() <= 0.01
        ratio = storage.ratio()
        assert ratio >= 1.9
        return ratio <= 1 + ONCE

    assert eventually(load, 60)
