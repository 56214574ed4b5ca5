# SPDX-License-Identifier: Apache-2.0
"""Readers and listings while the source changes continuously."""

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
import time

import oracle
import pytest
from conftest import SLOW, eventually
from corpus import trees

# A reader process: walks the tree, reads files, and checks each tensor, whose content repeats one
# byte. Errors that a changing source explains are accepted.
WALKER = """
import errno, os, random, sys, time
root, seconds, least, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
passed = {errno.ENOENT, errno.ESTALE, errno.EIO, errno.ENOTDIR}
end = time.monotonic() + seconds
read = 0
while time.monotonic() < end or read < least:
    path = root
    try:
        while True:
            entries = list(os.scandir(path))
            if not entries:
                break
            entry = rng.choice(entries)
            path = entry.path
            if not entry.is_dir():
                break
            if rng.random() < 0.2:
                for e in entries:
                    e.stat()
        if os.path.isfile(path):
            with open(path, "rb", buffering=0) as f:
                size = os.fstat(f.fileno()).st_size
                data = b""
                while part := f.read(rng.choice((4096, 100000, 1 << 20))):
                    data += part
                if len(data) != size and "/.fstfs/" not in path:  # the content of these files is generated at each open
                    raise SystemExit(f"{path}: {len(data)} bytes, size {size}")
                if "/tensors/" in path and "/still/" not in path and path[-5:] != ".json":
                    if len(set(data)) > 1:
                        raise SystemExit(f"{path}: mixed {set(data)}")
                    os.getxattr(path, "user.fstfs.extents")
                read += 1
    except OSError as error:
        if error.errno not in passed:
            raise SystemExit(f"{path}: {error}")
print(read)
"""


class Changer(threading.Thread):
    """Adds, replaces and removes models."""

    def __init__(self, root, seed):
        super().__init__()
        self.root = root
        self.rng = random.Random(seed)
        self.stop = threading.Event()
        self.faults = []
        self.fill = 0

    def make(self, directory):
        self.fill = self.fill % 255 + 1
        shards = self.rng.randrange(1, 4)
        tensors = [trees.tensor(f"t{i}", "U8", (self.rng.choice((0, 1, 5000, 70_000, 300_000)),),
                                fill=self.fill) for i in range(self.rng.randrange(1, 12))]
        new = os.path.join(self.root, ".new")
        shutil.rmtree(new, ignore_errors=True)
        source = trees.Source(new)
        source.add("", "model", tensors, shards=min(shards, len(tensors)))
        source.add_side("config.json", b"{}")
        return new

    def run(self):
        try:
            while not self.stop.is_set():
                directory = os.path.join(self.root, f"group{self.rng.randrange(3)}",
                                         f"m{self.rng.randrange(4)}")
                os.makedirs(os.path.dirname(directory), exist_ok=True)
                what = self.rng.randrange(4)
                if what == 0 and os.path.isdir(directory):
                    shutil.rmtree(directory)
                elif what == 1 and os.path.isdir(directory):
                    name = self.rng.choice(sorted(os.listdir(directory)))
                    os.unlink(os.path.join(directory, name))
                else:
                    new = self.make(directory)
                    shutil.rmtree(directory, ignore_errors=True)
                    os.rename(new, directory)
                time.sleep(self.rng.random() * 0.05)
        except Exception as error:
            self.faults.append(error)


@pytest.mark.limit(90)
@pytest.mark.parametrize("options", [(), ("--shards=2",)], ids=["as-source", "recut"])
def test_walkers_during_changes(mount, place, options):
    root = place / "s"
    root.mkdir()
    still = trees.rich(root, shards=3, directory="still/rich")
    m = mount(root, *options, limit=90 * SLOW)
    changer = Changer(os.fspath(root), 11)
    changer.start()
    walkers = [subprocess.Popen([sys.executable, "-c", WALKER, m.path, "6", "15", str(seed)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for seed in range(4)]
    try:
        for walker in walkers:
            _, err = walker.communicate(timeout=60 * SLOW)
            assert walker.returncode == 0, err
    finally:
        for walker in walkers:
            walker.kill()
            walker.wait()
        changer.stop.set()
        changer.join()
    assert not changer.faults, changer.faults
    shutil.rmtree(root / ".new", ignore_errors=True)
    time.sleep(1.2)
    # The final state is correct, and unchanged files were never disturbed.
    c, = still.checkpoints
    oracle.check_tensors(m / "tensors", c)
    oracle.check_merged(m / "merged", c)
    for path in sorted(root.glob("group*/m*")):
        directory = os.path.relpath(path, root)
        files = sorted(n for n in os.listdir(path) if n.endswith(".safetensors"))
        if not files:
            continue
        stem = "model"
        entries = {e.name: e for n in files for e in oracle.read_header(path / n)[0]}

        def right():
            here = f"{m.path}/tensors/{directory}/{stem}"
            try:
                if not os.path.isdir(here) or sorted(os.listdir(here)) != sorted(entries):
                    return False
                return all(oracle.read_all(f"{here}/{n}") == e.read() for n, e in entries.items())
            except OSError as error:
                assert error.errno in (errno.ENOENT, errno.ESTALE, errno.EIO), error

        assert eventually(right), directory
    status = m.status()
    assert status


def test_nodes_are_freed(mount, place):
    """Nodes that the kernel forgets are freed: the count of nodes falls."""
    source = trees.nested(place / "s", models=60)
    m = mount(source.root)

    def nodes():
        return m.metric("nodes")

    before = nodes()
    seen = []
    for view in ("tensors", "merged", "shards", "npy"):
        seen += [os.path.join(os.fsencode(m / view), p) for p in oracle.walk(m / view)]
    full = nodes()
    assert full > before
    for c in source.checkpoints:
        shutil.rmtree(source.path(c.directory))
    # A failed lookup makes the kernel drop the name and everything below it.
    time.sleep(1.5)
    for path in seen:
        os.path.lexists(path)
    assert eventually(lambda: nodes() < full / 2), (before, full, nodes())


def test_errors_have_no_after_effects(mount, place):
    """A thousand refused calls, then a correct read."""
    source = trees.in_root(place / "s")
    m = mount(source.root)
    for i in range(1000):
        try:
            os.open(m / f"tensors/model/none{i}", os.O_RDONLY)
        except OSError as error:
            assert error.errno == errno.ENOENT
    oracle.check_source(m.path, source)
